// The guide: two chats that share a beginning, asked one after the other, and what to see in it.

import { Conversation } from "./conversation.js";
import { byId, plural } from "./dom.js";

const TOKENS = 120;
const SYSTEM =
  "You are the guide of a small museum of clocks in a harbour town. You know the sundials in the " +
  "garden, the tower clock with its iron wheels and the ship's chronometers in the glass case. You " +
  "answer short questions in a few plain sentences.";
const CHATS = [
  { title: "Guide: towers", question: "Tell me about the tower clock and how it keeps time." },
  { title: "Guide: ships", question: "Tell me about the ship's chronometers and what they were for." },
];

export class Guide {
  #chats;
  #sampling;
  #pair = [];
  #most = 0;

  constructor(chats, sampling) {
    this.#chats = chats;
    this.#sampling = sampling;
    byId("guide").addEventListener("click", () => this.#run());
    byId("guide-close").addEventListener("click", () => this.#open(false));
  }

  /** Counts, while it runs, the blocks that both of its chats hold. */
  update(frame) {
    if (!this.#pair.length) return;
    const both = ({ request_ids: ids }) =>
      this.#pair.every((chat) => ids.some((id) => chat.owns(id)));
    const shared = frame.shared.filter(both).reduce((sum, group) => sum + group.block_ids.length, 0);
    if (shared === 0) return;
    this.#most = Math.max(this.#most, shared);
    this.#say(`${plural(shared, "block")} in two colours: both chats read what was computed once.`);
  }

  async #run() {
    const values = this.#sampling.values();
    if (!values || this.#pair.length) return;
    this.#open(true);
    this.#most = 0;
    this.#say("The first chat is asked…");
    const sampling = { ...values, max_tokens: TOKENS };
    this.#pair = CHATS.map(({ title }) => new Conversation({ title, system: SYSTEM }));
    const [first, second] = this.#pair;
    const asked = [this.#chats.ask(this.#chats.open(first), CHATS[0].question, sampling)];
    // What the second is to find must be written first.
    const begun = () => (first.isBusy ? first.last.content !== "" : true);
    while (!begun()) await new Promise((resolve) => setTimeout(resolve, 50));
    this.#say("…and now the second, which begins with the same words.");
    asked.push(this.#chats.ask(this.#chats.open(second), CHATS[1].question, sampling));
    await Promise.all(asked);
    this.#pair = [];
    this.#say(this.#most
      ? `Both are done. They shared ${plural(this.#most, "block")}, and each kept only its own end.`
      : "They shared no block this time; it takes a server with prefix caching.");
  }

  #open(isOpen) {
    byId("guide").hidden = isOpen;
    byId("guide-panel").hidden = !isOpen;
  }

  #say(words) {
    byId("guide-said").textContent = words;
  }
}
