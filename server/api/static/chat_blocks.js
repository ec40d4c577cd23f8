// ChatBlocks: which blocks of the cache each chat holds, or held last and still finds remembered.

export class ChatBlocks {
  #held = new Map(); // chat id -> block ids, in the order of the tokens

  update(frame, colours) {
    const written = this.#rewritten(frame, colours);
    const known = new Set(frame.reusable_block_ids);
    for (const region of frame.regions) region.block_ids.forEach((id) => known.add(id));
    for (const [chat, ids] of this.#held) {
      this.#held.set(chat, ids.filter((id) => known.has(id) && !written.get(id)?.some((by) => by !== chat)));
    }
    for (const region of frame.regions) {
      const chat = colours.chatOf(region.request_id);
      if (chat) this.#held.set(chat.id, region.block_ids);
    }
  }

  /** Blocks that somebody has written anew, with the chats that did; found ones are as they were. */
  #rewritten(frame, colours) {
    const written = new Map();
    for (const region of frame.regions) {
      const chat = colours.chatOf(region.request_id)?.id ?? region.request_id;
      const found = Math.floor(region.num_cached_tokens / frame.block_size);
      for (const id of region.block_ids.slice(found)) {
        written.set(id, [...(written.get(id) ?? []), chat]);
      }
    }
    return written;
  }

  of(chat) {
    return new Set(this.#held.get(chat.id));
  }
}
