// The question for the API key, which is kept for this tab; one who cancels it is left alone.

import { byId } from "./dom.js";

const STORED_KEY = "kvserve-key";

export class KeyDialog {
  key = sessionStorage.getItem(STORED_KEY) ?? "";
  #asking = null;
  #wasCancelled = false;

  /** Whether a key was given; several calls that need one share the question. */
  ask(isUsers) {
    if (this.#wasCancelled && !isUsers) return Promise.resolve(false);
    this.#asking ??= this.#show().finally(() => {
      this.#asking = null;
    });
    return this.#asking;
  }

  forgetRefusal() {
    this.#wasCancelled = false;
  }

  #show() {
    const dialog = byId("key-dialog");
    const input = byId("key");
    byId("key-reason").textContent = this.key
      ? "The server did not accept that key. Try another."
      : "It is kept in this tab and sent to this server only.";
    input.value = "";
    dialog.returnValue = "";
    dialog.showModal();
    input.focus();
    byId("key-cancel").onclick = () => dialog.close("");
    return new Promise((resolve) => {
      const closed = () => {
        const given = dialog.returnValue === "ok" && input.value !== "";
        this.#wasCancelled = !given;
        if (given) {
          this.key = input.value;
          sessionStorage.setItem(STORED_KEY, this.key);
        }
        resolve(given);
      };
      dialog.addEventListener("close", closed, { once: true });
    });
  }
}
