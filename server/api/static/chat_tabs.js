// ChatTabs: a tab for each chat, in the chat's colour; the shown one can be renamed here.

import { element } from "./dom.js";

export class ChatTabs {
  #list;
  #on;

  /** `on` has show(chat), rename(chat, title), and hover(chat), which is told null in the end. */
  constructor(list, on) {
    this.#list = list;
    this.#on = on;
  }

  draw(chats, shown, colourOf) {
    const hadFocus = this.#list.contains(document.activeElement);
    const tabs = chats.map((chat) => this.#tab(chat, chat === shown, colourOf(chat)));
    this.#list.replaceChildren(...tabs);
    const current = tabs[chats.indexOf(shown)];
    if (hadFocus) current?.focus();
    if (current) this.#reveal(current);
  }

  /** Scrolls the list, and nothing else, to where a tab is seen. */
  #reveal({ offsetLeft, offsetWidth }) {
    const from = offsetLeft - this.#list.offsetLeft;
    const { scrollLeft, clientWidth } = this.#list;
    if (from < scrollLeft) this.#list.scrollLeft = from;
    else if (from + offsetWidth > scrollLeft + clientWidth) this.#list.scrollLeft = from + offsetWidth - clientWidth;
  }

  #tab(chat, isShown, colour) {
    const swatch = element("span", { className: "swatch", "aria-hidden": "true" });
    swatch.style.background = colour;
    const tab = element(
      "button",
      {
        type: "button", role: "tab", id: `chat-${chat.id}`, className: chat.isBusy ? "busy" : "",
        tabIndex: isShown ? 0 : -1, "aria-selected": String(isShown), "aria-controls": "messages",
        "data-chat": chat.id,
      },
      swatch,
      element("span", { className: "tab-name" }, chat.name),
    );
    tab.addEventListener("click", () => this.#on.show(chat));
    tab.addEventListener("dblclick", () => this.rename(chat));
    tab.addEventListener("pointerenter", () => this.#on.hover(chat));
    tab.addEventListener("pointerleave", () => this.#on.hover(null));
    tab.addEventListener("focus", () => this.#on.hover(chat));
    tab.addEventListener("blur", () => this.#on.hover(null));
    tab.addEventListener("keydown", (event) => this.#key(event, chat));
    return tab;
  }

  #key(event, chat) {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (event.key === "F2") this.rename(chat);
    if (!step) return;
    event.preventDefault();
    const tabs = [...this.#list.children];
    const at = tabs.findIndex((tab) => tab.dataset.chat === chat.id) + step;
    tabs.at(at % tabs.length).click();
  }

  /** A field in the place of the tab's name, until Enter, Escape or a click elsewhere. */
  rename(chat) {
    const name = this.#list.querySelector(`[data-chat="${chat.id}"] .tab-name`);
    const field = element("input", { type: "text", value: chat.name, maxLength: 80, className: "tab-name" });
    field.setAttribute("aria-label", "Name of the chat");
    name.closest("button").replaceWith(field);
    let isOver = false;
    const end = (title) => {
      if (isOver) return;
      isOver = true;
      this.#on.rename(chat, title);
    };
    field.addEventListener("keydown", (event) => {
      if (event.key !== "Enter" && event.key !== "Escape") return;
      event.stopPropagation();
      end(event.key === "Enter" ? field.value.trim() : chat.title);
    });
    field.addEventListener("blur", () => end(field.value.trim()));
    field.focus();
    field.select();
  }
}
