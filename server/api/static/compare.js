// Comparison: the same continuation with the cache and without it, measured by the server.

import { events } from "./api.js";
import { drawComparison } from "./compare_chart.js";
import { byId, milliseconds, plural, redrawWhenNeeded } from "./dom.js";

export class Comparison {
  #canvas = byId("compare-canvas");
  #steps = null;
  #isRunning = false;
  #mostOthers = 0; // requests that ran beside the comparison that is shown

  constructor() {
    redrawWhenNeeded(this.#canvas, () => this.#draw());
    byId("compare-form").addEventListener("submit", (event) => {
      event.preventDefault();
      this.#run();
    });
  }

  /** For a server that has the endpoint. */
  offer() {
    byId("compare-card").hidden = false;
  }

  /** Warns of other requests: they share the steps that a comparison times. */
  update({ regions, num_waiting: waiting }) {
    const served = regions.filter(({ request_id: id }) => !id.startsWith("compare-")).length;
    // Without the cache the comparison itself has no region, and is counted as one that waits.
    const isOurs = this.#isRunning && served === regions.length;
    const others = served + Math.max(waiting - (isOurs ? 1 : 0), 0);
    if (this.#isRunning) this.#mostOthers = Math.max(this.#mostOthers, others);
    const wereThere = this.#mostOthers > 0;
    byId("compare-others").hidden = !(wereThere || others);
    byId("compare-others").textContent = wereThere
      ? `Up to ${plural(this.#mostOthers, "other request")} ran beside this comparison: its steps took longer for that.`
      : `${plural(others, "other request")} on this server now: a comparison would measure ${others === 1 ? "it" : "them"} too.`;
  }

  async #run() {
    if (this.#isRunning) return;
    this.#isRunning = byId("compare-go").disabled = true;
    this.#mostOthers = 0;
    say("Measuring, first with the cache, then without it…");
    const line = () => ({ length: [], ms: [] });
    this.#steps = { cached: line(), uncached: line() };
    byId("compare-figure").hidden = false;
    const json = {
      prompt: byId("compare-prompt").value,
      max_tokens: Number(byId("compare-tokens").value),
      stream: true,
    };
    try {
      for await (const step of events("v1/compare", { json })) this.#take(step);
    } catch (error) {
      if (!this.#steps.cached.length.length) byId("compare-figure").hidden = true;
      say(error instanceof TypeError ? "The server is gone; nothing was measured." : error.message);
    }
    this.#isRunning = byId("compare-go").disabled = false;
  }

  #take(step) {
    if (step.object === "compare") {
      this.#steps = step.steps;
      say(sentence(step));
    } else {
      const { length, ms } = this.#steps[step.use_cache ? "cached" : "uncached"];
      length.push(step.length);
      ms.push(step.step_ms);
    }
    requestAnimationFrame(() => this.#draw());
  }

  #draw() {
    if (this.#steps) drawComparison(this.#canvas, this.#steps);
  }
}

function say(words) {
  byId("compare-status").textContent = words;
}

function sentence(result) {
  const last = result.rows.at(-1);
  const equal = result.equal
    ? "The tokens are the same."
    : `The tokens differ from length ${result.first_difference} on.`;
  return (
    `${last.total_speedup.toFixed(1)} times faster with the cache: ` +
    `${milliseconds(last.cached.total_ms / 1000)} instead of ${milliseconds(last.uncached.total_ms / 1000)} ` +
    `up to ${last.length} tokens; the last step alone is ${last.step_speedup.toFixed(1)} times faster. ${equal}`
  );
}
