// ChatPanel: the chat's corner of the page: tabs, messages and the box; decides nothing itself.

import { ChatTabs } from "./chat_tabs.js";
import { button, byId, element, saveAs } from "./dom.js";
import { MessageView } from "./message_view.js";

export class ChatPanel {
  #on;
  #tabs;
  #shown = null;
  #views = [];

  /** `on` has what is done for each of the user's wishes; Chats says which there are. */
  constructor(on) {
    this.#on = on;
    this.#tabs = new ChatTabs(byId("chats"), on);
    byId("ask").addEventListener("submit", (event) => {
      event.preventDefault();
      on.send(this.draft.trim());
    });
    byId("question").addEventListener("keydown", (event) => {
      if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
      event.preventDefault();
      on.send(this.draft.trim());
    });
    document.addEventListener("keydown", (event) => {
      if (event.key === "Escape" && !byId("key-dialog").open) this.#escape();
    });
    byId("system").addEventListener("input", () => on.system(byId("system").value));
    const actions = {
      stop: on.stop, "new-chat": on.open, branch: on.branch, "delete-chat": on.remove,
      "rename-chat": () => this.#tabs.rename(this.#shown), "export-chat": () => this.#export(),
    };
    for (const [id, action] of Object.entries(actions)) byId(id).addEventListener("click", action);
  }

  get draft() {
    return byId("question").value;
  }

  set draft(text) {
    if (this.draft !== text) byId("question").value = text; // the cursor stays where it is
  }

  focus() {
    byId("question").focus({ preventScroll: true });
  }

  /** Says something to who cannot see it. */
  announce(words) {
    byId("chat-said").textContent = words;
  }

  drawTabs({ chats, shown, colourOf }) {
    this.#tabs.draw(chats, shown, colourOf);
    byId("messages").style.setProperty("--chat", colourOf(shown));
  }

  draw(shown, { deleted }) {
    const isOther = shown !== this.#shown;
    this.#shown = shown;
    byId("messages").setAttribute("aria-labelledby", `chat-${shown.id}`);
    this.#views = shown.messages.map((message) => new MessageView(message, {
      isLast: message === shown.last && !shown.isBusy, actions: this.#on,
    }));
    const rows = this.#views.map((view) => view.element);
    if (!rows.length) rows.push(element("p", { className: "hint" }, "Nothing said yet."));
    byId("messages").replaceChildren(...rows);
    byId("notices").replaceChildren(...this.#notices(shown, deleted));
    if (document.activeElement !== byId("system")) byId("system").value = shown.system;
    this.#buttons(shown);
    this.#follow(isOther || shown.isBusy);
  }

  /** Draws what was added to a message. */
  grow(message) {
    this.#views.find((view) => view.message === message)?.grow(() => this.#follow(false));
  }

  #notices(shown, deleted) {
    const found = [];
    if (shown.notice) {
      const row = element("p", { className: "notice bad", role: "alert" }, shown.notice.text);
      if (shown.notice.retry) row.append(" ", button("Try again", this.#on.retry, { id: "try-again" }));
      found.push(row);
    }
    if (shown.edited !== null) {
      const words = "Sending replaces this question and what followed it.";
      found.push(element("p", { className: "notice" }, words, " ", button("Keep it", this.#on.cancelEdit)));
    }
    if (deleted) {
      const undo = button("Undo", this.#on.undo, { id: "undo" });
      found.push(element("p", { className: "notice" }, `“${deleted.name}” is deleted.`, " ", undo));
    }
    return found;
  }

  #buttons(shown) {
    byId("send").hidden = shown.isBusy;
    byId("stop").hidden = !shown.isBusy;
    byId("branch").disabled = !shown.messages.some(
      ({ role, streaming }) => role === "assistant" && !streaming,
    );
    for (const id of ["export-chat", "delete-chat", "rename-chat"]) {
      byId(id).disabled = !shown.messages.length;
    }
  }

  #escape() {
    if (this.#shown.isBusy) this.#on.stop();
    else if (this.#shown.edited !== null) this.#on.cancelEdit();
  }

  /** Follows the text, unless the user has scrolled up to read. */
  #follow(always) {
    const box = byId("messages");
    const atEnd = box.scrollHeight - box.scrollTop - box.clientHeight < 80;
    if (always || atEnd) box.scrollTop = box.scrollHeight;
  }

  #export() {
    const { name, prompt } = this.#shown;
    const json = JSON.stringify({ messages: prompt }, null, 2);
    saveAs(`${name.replace(/[^\p{L}\p{N}]+/gu, "-")}.json`, new Blob([json], { type: "application/json" }));
  }
}
