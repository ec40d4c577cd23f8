// MessageView: one message of a chat on the page, with what can be done to it.

import { copyText } from "./clipboard.js";
import { CUT } from "./conversation.js";
import { button, element, plural } from "./dom.js";
import { MarkdownView } from "./markdown.js";

const ENDS = {
  [CUT.stopped]: "You stopped it here.",
  [CUT.lost]: "It broke off here.",
};

export class MessageView {
  #markdown = null;
  #drawn = true;

  /** `actions` has what the buttons do: edit, regenerate, goOn. */
  constructor(message, { isLast, actions }) {
    this.message = message;
    const isUsers = message.role === "user";
    const said = element("div", { className: "said" });
    this.element = element(
      "article",
      { className: `message ${message.role}${message.streaming ? " streaming" : ""}` },
      element("h3", {}, isUsers ? "You" : "Model"),
      said,
    );
    if (isUsers) said.textContent = message.content;
    else this.#markdown = new MarkdownView(said);
    this.#markdown?.show(message.content);
    if (!message.streaming) this.element.append(...this.#footnotes(isLast, actions));
  }

  /** Draws what has been written since, once for each frame of the screen. */
  grow(after) {
    if (!this.#drawn) return;
    this.#drawn = false;
    requestAnimationFrame(() => {
      this.#drawn = true;
      this.#markdown.show(this.message.content);
      after();
    });
  }

  #footnotes(isLast, actions) {
    const { message } = this;
    const row = element("div", { className: "message-tools" });
    if (message.role === "user") {
      row.append(button("Edit", () => actions.edit(message)));
      return [row];
    }
    const copy = button("Copy", () => copyText(message.content, copy));
    row.append(copy);
    if (isLast) row.append(button("Regenerate", actions.regenerate));
    if (message.usage || message.times) row.append(element("span", { className: "hint" }, counts(message)));
    return message.end ? [this.#ending(isLast, actions), row] : [row];
  }

  /** Says that the answer is not whole, and offers to go on. */
  #ending(isLast, { goOn }) {
    const { end, usage } = this.message;
    const words = ENDS[end] ?? `Cut off at the limit of ${plural(usage?.completion_tokens ?? 0, "token")}.`;
    const box = element("p", { className: "ending" }, words);
    if (isLast) box.append(" ", button("Continue", goOn));
    return box;
  }
}

function counts({ usage, times }) {
  const parts = [];
  if (usage) {
    const cached = usage.prompt_tokens_details.cached_tokens;
    parts.push(`${usage.prompt_tokens} tokens read, ${cached} of them cached`, `${usage.completion_tokens} written`);
  }
  if (times?.between) parts.push(`${(1 / times.between).toFixed(1)} tokens/s`);
  return parts.join(" · ");
}
