// The stream of cache snapshots: connects, says when the server is gone, connects again.

import { Refusal, events, mayAskForKey } from "./api.js";
import { byId } from "./dom.js";

const FIRST_PAUSE = 1;
const LONGEST_PAUSE = 10;

/** Calls `onFrame` with every snapshot, `onConnect` and `onGone` as connections come and go. */
export async function watch({ onFrame, onConnect, onGone }) {
  let pause = FIRST_PAUSE;
  for (;;) {
    let words = "The server is gone. Trying again every few seconds.";
    try {
      let connected = false;
      for await (const frame of events("kv/stream")) {
        if (!connected) {
          connected = true;
          pause = FIRST_PAUSE;
          show("live");
          onConnect();
        }
        try {
          onFrame(frame);
        } catch (error) {
          reportError(error); // a fault of the page is not a fault of the server
        }
      }
    } catch (error) {
      if (error instanceof Refusal) words = error.message;
      else if (!(error instanceof TypeError)) console.warn("the live view failed:", error);
    }
    onGone();
    await wait(pause, words);
    pause = Math.min(pause * 2, LONGEST_PAUSE);
  }
}

function show(state, words = "") {
  const pill = byId("connection");
  document.body.dataset.server = state;
  if (pill.dataset.state !== state) {
    pill.dataset.state = state;
    pill.textContent = state;
  }
  byId("gone").hidden = !words;
  if (byId("gone-text").textContent !== words) byId("gone-text").textContent = words;
}

/** Waits some seconds, or until the user is impatient. */
function wait(seconds, words) {
  show("away", words);
  return new Promise((resolve) => {
    const timer = setTimeout(resolve, seconds * 1000);
    byId("retry").onclick = () => {
      mayAskForKey();
      clearTimeout(timer);
      resolve();
    };
  });
}
