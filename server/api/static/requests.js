// The list of requests, and the timeline of the one that is chosen.

import { call, getJson } from "./api.js";
import { byId, element, milliseconds, saveAs } from "./dom.js";
import { TimelineFigure } from "./timeline.js";

const MOST_SHOWN = 30;
const NAMES = ["prompt", "cached", "answer", "first token", "end"];
const PAUSE = 400;

export class Requests {
  #figure = new TimelineFigure();
  #chosen = null;
  #pending = null;
  #running = "";
  #colours;

  constructor(colours) {
    this.#colours = colours;
    byId("download-trace").addEventListener("click", () => this.#download());
  }

  /** Asks again when someone came or went. */
  update(frame) {
    const running = frame.regions.map((region) => region.request_id).join();
    if (running === this.#running) return;
    this.#running = running;
    this.refresh();
  }

  refresh() {
    this.#pending ??= setTimeout(async () => {
      this.#pending = null;
      try {
        this.#show((await getJson("requests")).data);
      } catch {
        // The stream of snapshots says when the server is gone.
      }
    }, PAUSE);
  }

  /** Draws the timeline of an answer that has just ended. */
  async choose(requestId) {
    try {
      const { data } = await getJson(`requests/${encodeURIComponent(requestId)}/timeline`);
      this.#chosen = data[0].request_id;
      this.#figure.show(data[0]);
      byId("download-trace").disabled = false;
    } catch (error) {
      this.#figure.fail(error.message);
    }
    this.refresh();
  }

  #show(requests) {
    byId("no-requests").hidden = requests.length > 0;
    const focused = document.activeElement?.dataset.request;
    const rows = requests.slice(0, MOST_SHOWN).map((request) => this.#row(request));
    byId("requests").replaceChildren(...rows);
    const again = rows.map((row) => row.querySelector("button"));
    again.find((button) => focused && button.dataset.request === focused)?.focus();
  }

  #row(request) {
    const id = request.request_id;
    const choose = element(
      "button",
      { type: "button", className: "link", title: id, "data-request": id },
      this.#colours.nameOf(id),
    );
    choose.addEventListener("click", () => this.choose(id));
    const end = {
      waiting: "waits", running: "runs", finished: request.finish_reason ?? "ended",
    }[request.status];
    const preempted = request.num_preemptions ? `, preempted ${request.num_preemptions}×` : "";
    const cells = [
      request.num_prompt_tokens,
      request.num_cached_tokens,
      request.num_output_tokens,
      milliseconds(request.first_token_seconds),
      `${end}${preempted} ${request.finished_seconds === null ? "" : milliseconds(request.finished_seconds)}`,
    ];
    const row = element(
      "tr",
      {},
      element("th", { scope: "row" }, choose),
      ...cells.map((cell, index) => element("td", { "data-name": NAMES[index] }, String(cell))),
    );
    row.classList.toggle("chosen", id === this.#chosen);
    return row;
  }

  async #download() {
    const path = `requests/${encodeURIComponent(this.#chosen)}/timeline?format=chrome`;
    try {
      saveAs(`${this.#chosen}.trace.json`, await (await call(path)).blob());
    } catch (error) {
      this.#figure.fail(error.message);
    }
  }
}
