// Calls to the server: the key, the one shape of its errors, and streams of events.

import { KeyDialog } from "./key_dialog.js";

// The page may be served under a path prefix: everything is asked for beside its own files.
const ROOT = new URL("..", import.meta.url);
const dialog = new KeyDialog();

/** What the server refused, in its own words. */
export class Refusal extends Error {
  constructor(message, status) {
    super(message);
    this.status = status;
  }
}

/** The response of a call; asks for the key when the server does, and when `json` is sent, again. */
export async function call(path, options = {}) {
  const isUsers = options.json !== undefined;
  for (;;) {
    const { key } = dialog;
    const headers = { ...options.headers };
    if (key) headers.Authorization = `Bearer ${key}`;
    if (isUsers) headers["Content-Type"] = "application/json";
    const response = await fetch(new URL(path, ROOT), {
      method: isUsers ? "POST" : "GET",
      body: isUsers ? JSON.stringify(options.json) : undefined,
      headers,
      signal: options.signal,
      cache: "no-store",
    });
    if (response.ok) return response;
    const again = response.status === 401 && (dialog.key !== key || (await dialog.ask(isUsers)));
    if (!again) throw new Refusal(await reason(response), response.status);
  }
}

/** Lets the server's next 401 ask again, though the user had cancelled. */
export const mayAskForKey = () => dialog.forgetRefusal();

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
