// Conversation: what was said in one chat, and how it goes on. Knows no elements of the page.

const LONGEST_TITLE = 28;

/** Why an answer ended, where that is not the end that the model chose. */
export const CUT = { length: "length", stopped: "stopped", lost: "lost" };

export class Conversation {
  /** A new one, or one that was stored. */
  constructor({ id, created, title, system, messages, hue } = {}) {
    this.id = id ?? crypto.getRandomValues(new Uint32Array(2)).join("");
    this.created = created ?? Date.now();
    this.title = title ?? "";
    this.system = system ?? "";
    this.messages = messages ?? [];
    this.hue = hue ?? null;
    this.draft = ""; // what stands in the box and was not sent
    this.notice = null; // what went wrong last: {text, retry}
    this.edited = null; // the place of the question that the next one replaces
    this.abort = null; // ends the answer that is being written
    this.calls = 0;
  }

  /** What it goes by: its own name, or how it begins. */
  get name() {
    if (this.title) return this.title;
    const first = this.messages.find(({ role }) => role === "user")?.content.trim() ?? "";
    if (!first) return "New chat";
    return first.length > LONGEST_TITLE ? `${first.slice(0, LONGEST_TITLE - 1)}…` : first;
  }

  get isBusy() {
    return this.abort !== null;
  }

  get last() {
    return this.messages.at(-1);
  }

  /** The name of its next request, by which the cache's map knows it. */
  nextExchange() {
    this.calls += 1;
    return `chat${this.id}.${this.calls}`;
  }

  /** Whether a request of the engine belongs to this chat. */
  owns(requestId) {
    return requestId.includes(`-chat${this.id}.`);
  }

  /** Adds a question, in place of the one that was edited and all that followed it. */
  ask(content) {
    if (this.edited !== null) this.messages.length = this.edited;
    this.edited = null;
    this.messages.push({ role: "user", content });
  }

  /** The last answer is no more, so that another can be written. */
  dropAnswer() {
    if (this.last?.role === "assistant") this.messages.pop();
  }

  /** The messages as a request has them. */
  get prompt() {
    const system = this.system.trim() ? [{ role: "system", content: this.system }] : [];
    return [...system, ...this.messages.map(({ role, content }) => ({ role, content }))];
  }

  /** Another chat with the same beginning, up to its last whole answer. */
  branch() {
    const end = this.messages.findLastIndex(({ role, streaming }) => role === "assistant" && !streaming);
    const messages = structuredClone(this.messages.slice(0, end + 1));
    return new Conversation({ title: `${this.name} ⑂`, system: this.system, messages });
  }

  toJSON() {
    const { id, created, title, system, hue } = this;
    const messages = this.messages.map(({ streaming, ...message }) =>
      streaming ? { ...message, end: CUT.lost } : message,
    );
    return { id, created, title, system, hue, messages };
  }
}
