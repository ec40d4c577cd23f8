// Chats with the model, several side by side; each streams on when another is shown.

import { events } from "./api.js";
import { byId, element } from "./dom.js";

export class Chats {
  #chats = [];
  #shown = null;
  #count = 0;
  #onAnswer;

  /** `onAnswer` is told the times and the id of every answer. */
  constructor(onAnswer) {
    this.#onAnswer = onAnswer;
    byId("ask").addEventListener("submit", (event) => {
      event.preventDefault();
      this.#submit();
    });
    byId("question").addEventListener("keydown", (event) => {
      if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
        event.preventDefault();
        this.#submit();
      }
    });
    document.addEventListener("keydown", (event) => {
      if (event.key === "Escape" && !byId("key-dialog").open) this.#stop();
    });
    byId("stop").addEventListener("click", () => this.#stop());
    byId("new-chat").addEventListener("click", () => this.#open([]));
    byId("branch").addEventListener("click", () => this.#open(this.#shown.messages));
    byId("chats").addEventListener("keydown", (event) => this.#move(event));
    this.#open([]);
  }

  /** A chat that begins with what another has come to, or empty. */
  #open(messages) {
    this.#count += 1;
    const answered = messages.findLastIndex(({ role, streaming }) => role === "assistant" && !streaming);
    const chat = {
      number: this.#count,
      messages: messages.slice(0, answered + 1).map((message) => ({ ...message })),
      abort: null,
    };
    chat.tab = element("button", {
      type: "button", role: "tab", id: `chat-${chat.number}`, textContent: `Chat ${chat.number}`,
    });
    chat.tab.setAttribute("aria-controls", "messages");
    chat.tab.addEventListener("click", () => this.#show(chat));
    this.#chats.push(chat);
    byId("chats").append(chat.tab);
    byId("chats").hidden = this.#chats.length < 2;
    this.#show(chat);
    if (this.#chats.length > 1) byId("question").focus();
  }

  #show(chat) {
    this.#shown = chat;
    for (const other of this.#chats) {
      other.tab.setAttribute("aria-selected", String(other === chat));
      other.tab.tabIndex = other === chat ? 0 : -1;
    }
    byId("messages").setAttribute("aria-labelledby", chat.tab.id);
    const rows = chat.messages.map((message) => (message.row = describe(message)));
    if (!rows.length) rows.push(element("p", { className: "hint" }, "Nothing said yet."));
    byId("messages").replaceChildren(...rows);
    this.#scroll(true);
    this.#buttons();
  }

  #move(event) {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!step) return;
    const at = this.#chats.indexOf(this.#shown) + step;
    const next = this.#chats[(at + this.#chats.length) % this.#chats.length];
    this.#show(next);
    next.tab.focus();
  }

  #buttons() {
    const busy = this.#shown.abort !== null;
    byId("send").hidden = busy;
    byId("stop").hidden = !busy;
    byId("branch").disabled = !this.#shown.messages.some(
      ({ role, streaming }) => role === "assistant" && !streaming,
    );
    for (const chat of this.#chats) chat.tab.classList.toggle("busy", chat.abort !== null);
  }

  #stop() {
    this.#shown.abort?.abort();
  }

  #submit() {
    const question = byId("question");
    const text = question.value.trim();
    if (!text || this.#shown.abort !== null) return;
    const chat = this.#shown;
    chat.messages = chat.messages.filter((message) => message.role !== "error");
    chat.messages.push({ role: "user", content: text });
    question.value = "";
    this.#answer(chat);
  }

  async #answer(chat) {
    const json = {
      messages: chat.messages.map(({ role, content }) => ({ role, content })),
      stream: true,
      stream_options: { include_usage: true },
      temperature: Number(byId("temperature").value),
      max_tokens: Number(byId("max-tokens").value),
    };
    const answer = { role: "assistant", content: "", streaming: true };
    chat.messages.push(answer);
    chat.abort = new AbortController();
    this.#show(chat);
    const watch = new Stopwatch();
    try {
      for await (const chunk of events("/v1/chat/completions", { json, signal: chat.abort.signal })) {
        answer.id = chunk.id;
        if (chunk.usage) answer.usage = chunk.usage;
        const text = chunk.choices[0]?.delta?.content;
        if (text) {
          watch.lap();
          answer.content += text;
          this.#grow(chat, answer);
        }
      }
    } catch (error) {
      if (error.name !== "AbortError") this.#fail(chat, error);
    }
    answer.streaming = false;
    answer.times = watch.times(answer.usage?.completion_tokens);
    if (!answer.content) chat.messages = chat.messages.filter((message) => message !== answer);
    chat.abort = null;
    if (chat === this.#shown) {
      this.#show(chat);
      byId("chat-said").textContent = answer.content;
    } else {
      this.#buttons();
    }
    this.#onAnswer({ id: answer.id, ...answer.times });
  }

  #grow(chat, answer) {
    if (chat !== this.#shown) return;
    answer.row.querySelector(".said").textContent = answer.content;
    this.#scroll(false);
  }

  #fail(chat, error) {
    const lost = error instanceof TypeError;
    const content = lost ? "The server is gone; the answer ends here." : error.message;
    chat.messages.push({ role: "error", content });
    byId("chat-said").textContent = content;
  }

  /** Follows the text, unless the user has scrolled up to read. */
  #scroll(always) {
    const box = byId("messages");
    const atEnd = box.scrollHeight - box.scrollTop - box.clientHeight < 60;
    if (always || atEnd) box.scrollTop = box.scrollHeight;
  }
}

function describe(message) {
  const names = { user: "You", assistant: "Model", error: "Error" };
  const row = element(
    "article",
    { className: `message ${message.role}${message.streaming ? " streaming" : ""}` },
    element("h3", {}, names[message.role]),
    element("p", { className: "said" }, message.content),
  );
  if (message.usage) {
    const { prompt_tokens: prompt, completion_tokens: answer } = message.usage;
    const cached = message.usage.prompt_tokens_details.cached_tokens;
    row.append(
      element("p", { className: "hint" }, `${prompt} tokens read, ${cached} of them cached · ${answer} written`),
    );
  }
  return row;
}

/** Times of the pieces of an answer, as they arrive here. */
class Stopwatch {
  #start = performance.now();
  #first = null;
  #last = null;
  #numPieces = 0;

  lap() {
    this.#numPieces += 1;
    this.#last = performance.now();
    this.#first ??= this.#last;
  }

  /** Seconds until the first piece, and between tokens after it: of one that was stopped, pieces. */
  times(numTokens = this.#numPieces) {
    if (this.#first === null) return { first: null, between: null };
    return {
      first: (this.#first - this.#start) / 1000,
      between: numTokens > 1 ? (this.#last - this.#first) / 1000 / (numTokens - 1) : null,
    };
  }
}
