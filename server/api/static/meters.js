// Tokens per second and latencies as they are; nothing is smoothed beyond the window named here.

import { byId, milliseconds, redrawWhenNeeded, surface, tint } from "./dom.js";

const WINDOW = 1; // seconds over which a rate is taken, where frames come that often
const LONGEST_WINDOW = 5;
const HISTORY = 60; // seconds that the line shows
const HEIGHT = 46;

export class Meters {
  #canvas = byId("spark");
  #seen = []; // {time, tokens} of recent frames
  #points = []; // {time, rate}, one per tick
  #clock = 0; // the server's time minus ours

  constructor() {
    redrawWhenNeeded(this.#canvas, () => this.#draw());
    setInterval(() => this.#tick(), 500);
  }

  update(frame) {
    const { totals, time } = frame;
    this.#clock = time - Date.now() / 1000;
    const last = this.#seen.at(-1);
    if (last && totals.num_generated_tokens < last.tokens) this.#seen = []; // it started anew
    this.#seen.push({ time, tokens: totals.num_generated_tokens });
    byId("meter-step").textContent = totals.num_steps
      ? milliseconds(totals.last_step_seconds)
      : "–";
    byId("meter-step").title = `a batch of ${totals.last_batch_size}`;
    byId("meter-hits").textContent =
      frame.hit_rate === null ? "–" : `${Math.round(100 * frame.hit_rate)} %`;
  }

  /** Nothing is known of a server that does not answer. */
  gone() {
    this.#seen = [];
    for (const name of ["step", "hits"]) byId(`meter-${name}`).textContent = "–";
  }

  /** Shows what the chat measured of an answer. */
  answered({ first, between }) {
    byId("meter-first").textContent = milliseconds(first);
    byId("meter-between").textContent = milliseconds(between);
  }

  #tick() {
    const now = Date.now() / 1000 + this.#clock;
    while (this.#seen.length > 1 && this.#seen[1].time < now - WINDOW) this.#seen.shift();
    const first = this.#seen[0];
    const last = this.#seen.at(-1);
    const gap = this.#seen.length > 1 ? last.time - this.#seen.at(-2).time : 0;
    const fresh = last && last.time > now - Math.min(Math.max(WINDOW, 2 * gap), LONGEST_WINDOW);
    const rate = fresh && last !== first ? (last.tokens - first.tokens) / Math.max(now - first.time, WINDOW) : 0;
    this.#points.push({ time: now, rate });
    this.#points = this.#points.filter((point) => point.time > now - HISTORY);
    const isAway = document.body.dataset.server === "away";
    byId("meter-rate").textContent = isAway ? "–" : rate >= 100 ? Math.round(rate).toLocaleString() : rate.toFixed(rate ? 1 : 0);
    this.#draw();
  }

  #draw() {
    if (this.#canvas.clientWidth === 0) return;
    const { context, width, height } = surface(this.#canvas, HEIGHT);
    const highest = Math.max(1, ...this.#points.map((point) => point.rate));
    const end = this.#points.at(-1)?.time ?? 0;
    const x = (time) => width * (1 - (end - time) / HISTORY);
    const y = (rate) => height - 2 - (height - 16) * (rate / highest);
    context.strokeStyle = tint("line");
    context.beginPath();
    context.moveTo(0, height - 1.5);
    context.lineTo(width, height - 1.5);
    context.stroke();
    if (this.#points.length < 2) return;
    context.beginPath();
    for (const { time, rate } of this.#points) context.lineTo(x(time), y(rate));
    context.lineWidth = 1.75;
    context.strokeStyle = tint("accent");
    context.stroke();
    context.lineTo(x(end), height - 2);
    context.lineTo(x(this.#points[0].time), height - 2);
    context.globalAlpha = 0.14;
    context.fillStyle = tint("accent");
    context.fill();
    context.globalAlpha = 1;
    context.fillStyle = tint("faint");
    context.textAlign = "left";
    context.fillText(`${Math.round(highest)} tokens/s at most in the last minute`, 2, 11);
  }
}
