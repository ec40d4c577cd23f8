// Conversations kept in this browser, each in an entry of its own, so that tabs do not collide.

import { Conversation } from "./conversation.js";

const PREFIX = "kvserve-chat-";

/** All that are kept, the oldest first; what cannot be read is left alone. */
export function storedConversations() {
  const found = [];
  for (const key of Object.keys(localStorage)) {
    if (!key.startsWith(PREFIX)) continue;
    try {
      const kept = JSON.parse(localStorage.getItem(key));
      if (Array.isArray(kept.messages)) found.push(new Conversation(kept));
    } catch {
      // Not ours, or of another version.
    }
  }
  return found.sort((one, other) => one.created - other.created);
}

/** Keeps a conversation; whether there was room for it. An empty one is not kept. */
export function store(conversation) {
  if (!conversation.messages.length && !conversation.system) return true;
  try {
    localStorage.setItem(PREFIX + conversation.id, JSON.stringify(conversation));
    return true;
  } catch {
    return false;
  }
}

export function forget(conversation) {
  localStorage.removeItem(PREFIX + conversation.id);
}
