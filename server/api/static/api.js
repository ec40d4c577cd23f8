// Calls to the server: the key, the one shape of its errors, and streams of events.

import { byId } from "./dom.js";

const STORED_KEY = "kvserve-key";
let key = sessionStorage.getItem(STORED_KEY) ?? "";
let asking = null;

/** What the server refused, in its own words. */
export class Refusal extends Error {
  constructor(message, status) {
    super(message);
    this.status = status;
  }
}

/** The response of a call; asks for the key when the server does. */
export async function call(path, options = {}) {
  for (;;) {
    const used = key;
    const headers = { ...options.headers };
    if (used) headers.Authorization = `Bearer ${used}`;
    if (options.json !== undefined) headers["Content-Type"] = "application/json";
    const response = await fetch(path, {
      method: options.json === undefined ? "GET" : "POST",
      body: options.json === undefined ? undefined : JSON.stringify(options.json),
      headers,
      signal: options.signal,
      cache: "no-store",
    });
    if (response.ok) return response;
    if (response.status === 401 && (key !== used || (await askForKey(Boolean(used))))) continue;
    throw new Refusal(await reason(response), response.status);
  }
}

export async function getJson(path, options) {
  return (await call(path, options)).json();
}

/** The JSON objects of a stream of server-sent events, up to [DONE]. */
export async function* events(path, options) {
  const response = await call(path, options);
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let buffer = "";
  try {
    for (;;) {
      const { value, done } = await reader.read();
      if (done) return;
      buffer += value;
      const parts = buffer.split("\n\n");
      buffer = parts.pop();
      for (const part of parts) {
        if (!part.startsWith("data: ")) continue;
        const data = part.slice("data: ".length);
        if (data === "[DONE]") return;
        const event = JSON.parse(data);
        if (event.error) throw new Refusal(event.error.message, response.status);
        yield event;
      }
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}

async function reason(response) {
  try {
    return (await response.json()).error.message;
  } catch {
    return `The server answered ${response.status}.`;
  }
}

/** Whether the user gave a key; several calls that need one share the question. */
function askForKey(wasRefused) {
  asking ??= showKeyDialog(wasRefused).finally(() => {
    asking = null;
  });
  return asking;
}

function showKeyDialog(wasRefused) {
  const dialog = byId("key-dialog");
  const input = byId("key");
  byId("key-reason").textContent = wasRefused
    ? "The server did not accept that key. Try another."
    : "It is kept in this tab and sent to this server only.";
  input.value = "";
  dialog.returnValue = "";
  dialog.showModal();
  input.focus();
  byId("key-cancel").onclick = () => dialog.close("");
  return new Promise((resolve) => {
    dialog.addEventListener(
      "close",
      () => {
        const given = dialog.returnValue === "ok" && input.value !== "";
        if (given) {
          key = input.value;
          sessionStorage.setItem(STORED_KEY, key);
        }
        resolve(given);
      },
      { once: true },
    );
  });
}
