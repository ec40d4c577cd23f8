// One colour for each chat and for each request of others, the same in tabs, batch and map.

const PALETTE = [
  "#4c78d8", "#e0803c", "#2f9e96", "#c4559a", "#7a9f35", "#8468cf",
  "#cf9a1f", "#d25555", "#3f97cc", "#97745a", "#4fa870", "#a96fc0",
];

export class Colours {
  #chats = [];
  #given = new Map();

  /** Gives every chat a colour of its own, as long as there are enough. */
  adopt(chats) {
    this.#chats = chats;
    for (const chat of chats) chat.hue ??= leastUsed(chats.map((other) => other.hue));
  }

  ofChat(chat) {
    return PALETTE[chat.hue % PALETTE.length];
  }

  /** The chat of this page that a request answers, if it is one of them. */
  chatOf(requestId) {
    return this.#chats.find((chat) => chat.owns(requestId));
  }

  /** Keeps the colours of those who still run and gives others' new ones the least used. */
  update(requestIds) {
    const running = new Set(requestIds);
    for (const id of this.#given.keys()) if (!running.has(id)) this.#given.delete(id);
    for (const id of requestIds) {
      if (this.#given.has(id) || this.chatOf(id)) continue;
      const busy = this.#chats.filter((chat) => chat.isBusy).map((chat) => chat.hue);
      this.#given.set(id, leastUsed([...this.#given.values(), ...busy]));
    }
  }

  of(requestId) {
    const chat = this.chatOf(requestId);
    return chat ? this.ofChat(chat) : PALETTE[this.#given.get(requestId) ?? 0];
  }

  /** What a request is called: the name of its chat, or the end of its id. */
  nameOf(requestId) {
    return this.chatOf(requestId)?.name ?? shortId(requestId);
  }
}

function leastUsed(hues) {
  const uses = PALETTE.map(() => 0);
  for (const hue of hues) if (hue !== null) uses[hue % PALETTE.length] += 1;
  return uses.indexOf(Math.min(...uses));
}

/** The end of an id, which tells requests apart. */
export function shortId(requestId) {
  return requestId.length > 14 ? `…${requestId.slice(-10)}` : requestId;
}
