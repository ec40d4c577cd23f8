// Chats with the model, several side by side; each streams on when another is shown.

import { mayAskForKey } from "./api.js";
import { streamAnswer } from "./answer_stream.js";
import { ChatPanel } from "./chat_panel.js";
import { CUT, Conversation } from "./conversation.js";
import { forget, store, storedConversations } from "./conversation_store.js";

export class Chats {
  #chats = storedConversations();
  #shown = null;
  #deleted = null;
  #panel;
  #colours;
  #sampling;
  #on;

  /** `on` has answer(answer), told of every answer's times, and hover(chat or null). */
  constructor(colours, sampling, on) {
    this.#colours = colours;
    this.#sampling = sampling;
    this.#on = on;
    this.#panel = new ChatPanel({
      show: (chat) => this.#show(chat),
      hover: on.hover,
      rename: (chat, title) => this.#rename(chat, title),
      open: () => this.open(new Conversation()),
      branch: () => this.open(this.#shown.branch()),
      remove: () => this.#remove(),
      undo: () => this.#undo(),
      send: (text) => this.#send(text),
      stop: () => this.#shown.abort?.abort(),
      system: (text) => this.#setSystem(text),
      edit: (message) => this.#edit(message),
      cancelEdit: () => this.#cancelEdit(),
      retry: () => this.#retry(),
      regenerate: () => this.#regenerate(),
      goOn: () => this.#goOn(),
    });
    window.addEventListener("pagehide", () => this.#chats.forEach(store));
    if (this.#chats.length) this.#show(this.#chats.at(-1));
    else this.#show(this.#add(new Conversation()));
  }

  /** Shows a new chat; an empty one that is there already gives way. */
  open(chat) {
    this.#shown.draft = this.#panel.draft;
    this.#chats = this.#chats.filter(({ messages, system, draft }) => messages.length || system || draft);
    this.#show(this.#add(chat));
    this.#panel.focus();
    return chat;
  }

  #add(chat) {
    this.#chats.push(chat);
    return chat;
  }

  /** Asks in a chat; answers come into it while another may be shown. Refused questions come back. */
  async ask(chat, text, sampling = this.#sampling.values()) {
    if (!sampling || chat.isBusy) return;
    const before = [...chat.messages];
    chat.ask(text);
    const refused = await this.#answer(chat, { role: "assistant", content: "" }, sampling);
    if (!refused) return;
    chat.messages = before;
    chat.draft = chat.draft ? `${text}\n${chat.draft}` : text;
    this.#changed(chat);
  }

  #show(chat) {
    if (this.#shown) this.#shown.draft = this.#panel.draft;
    this.#shown = chat;
    this.#draw();
    this.#panel.draft = chat.draft;
  }

  #draw() {
    this.#colours.adopt(this.#chats);
    this.#panel.drawTabs(this.#tabs);
    this.#panel.draw(this.#shown, { deleted: this.#deleted });
  }

  get #tabs() {
    const colourOf = (chat) => this.#colours.ofChat(chat);
    return { chats: this.#chats, shown: this.#shown, colourOf };
  }

  /** Keeps and redraws a chat that has changed. */
  #changed(chat) {
    const isKept = store(chat);
    if (!isKept) chat.notice = { text: "This browser has no room to keep this chat; export it." };
    if (chat === this.#shown) {
      this.#panel.draft = chat.draft;
      this.#draw();
    } else {
      this.#panel.drawTabs(this.#tabs);
    }
  }

  #rename(chat, title) {
    chat.title = title === chat.name ? chat.title : title;
    this.#changed(chat);
  }

  #remove() {
    const chat = this.#shown;
    chat.abort?.abort();
    const at = this.#chats.indexOf(chat);
    this.#chats.splice(at, 1);
    forget(chat);
    this.#deleted = chat.messages.length ? chat : null;
    if (this.#chats.length) this.#show(this.#chats[Math.min(at, this.#chats.length - 1)]);
    else this.#show(this.#add(new Conversation()));
  }

  #undo() {
    const chat = this.#deleted;
    this.#deleted = null;
    store(chat);
    this.#show(this.#add(chat));
  }

  #send(text) {
    const sampling = this.#sampling.values();
    if (!sampling || !text || this.#shown.isBusy) return;
    mayAskForKey();
    this.#panel.draft = this.#shown.draft = "";
    this.ask(this.#shown, text, sampling);
  }

  #setSystem(text) {
    this.#shown.system = text;
    store(this.#shown);
  }

  #edit(message) {
    const chat = this.#shown;
    if (chat.isBusy) return;
    chat.edited = chat.messages.indexOf(message);
    chat.draft = message.content;
    this.#changed(chat);
    this.#panel.focus();
  }

  #cancelEdit() {
    this.#shown.edited = null;
    this.#shown.draft = "";
    this.#changed(this.#shown);
  }

  #retry() {
    const chat = this.#shown;
    if (chat.draft) this.#send(this.#panel.draft.trim());
    else this.#regenerate();
  }

  #regenerate() {
    const sampling = this.#sampling.values();
    if (!sampling || this.#shown.isBusy) return;
    this.#shown.dropAnswer();
    this.#answer(this.#shown, { role: "assistant", content: "" }, sampling);
  }

  #goOn() {
    const sampling = this.#sampling.values();
    if (!sampling || this.#shown.isBusy) return;
    this.#answer(this.#shown, this.#shown.messages.pop(), sampling);
  }

  /** Streams an answer into the chat; whether nothing came of it because it was refused. */
  async #answer(chat, answer, sampling) {
    chat.notice = null;
    chat.abort = new AbortController();
    answer.streaming = true;
    chat.messages.push(answer);
    this.#changed(chat);
    let failure = null;
    try {
      const onText = () => chat === this.#shown && this.#panel.grow(answer);
      await streamAnswer(chat, answer, { sampling, onText });
    } catch (error) {
      failure = error;
      answer.end = answer.content ? CUT.lost : answer.end;
      const isLost = error instanceof TypeError;
      chat.notice = { text: isLost ? "The server is gone." : error.message, retry: true };
    }
    delete answer.streaming;
    chat.abort = null;
    if (!answer.content) chat.messages = chat.messages.filter((message) => message !== answer);
    if (chat === this.#shown) chat.draft = this.#panel.draft;
    if (this.#chats.includes(chat)) this.#changed(chat);
    if (chat === this.#shown) this.#panel.announce(failure ? chat.notice.text : answer.content);
    this.#on.answer({ id: answer.id, ...answer.times });
    return failure !== null && !answer.content;
  }
}
