// The drawn timeline of one request: its steps, how long each took, its tokens in the cache.

import { byId, milliseconds, plural, redrawWhenNeeded, surface, tint } from "./dom.js";

const HEIGHT = 190;
const LEFT = 74;
const RIGHT = 12;
const LANES = { bars: [8, 40], step: [58, 104], cache: [122, 168] };
const KINDS = { prompt_chunk: "prompt", decode: "decode", recompute: "recompute" };

/** Draws into its canvas; `show` takes what /requests/{id}/timeline says of a request. */
export class TimelineFigure {
  #canvas = byId("timeline-canvas");
  #request = null;

  constructor() {
    redrawWhenNeeded(this.#canvas, () => this.#draw());
  }

  show(request) {
    this.#request = request;
    byId("timeline").hidden = false;
    byId("timeline-summary").textContent = summary(request);
    this.#draw();
  }

  fail(message) {
    byId("timeline").hidden = false;
    byId("timeline-summary").textContent = message;
  }

  #draw() {
    if (this.#request === null || this.#canvas.clientWidth === 0) return;
    const { context, width } = surface(this.#canvas, HEIGHT);
    const steps = this.#request.events.filter((event) => event.event in KINDS);
    const last = this.#request.events.at(-1);
    const end = Math.max(last ? last.seconds + (last.milliseconds ?? 0) / 1000 : 0, 1e-3);
    const x = (seconds) => LEFT + ((width - LEFT - RIGHT) * seconds) / end;
    axis(context, { x, end, width });
    drawBars(context, this.#request.events, x);
    drawCurve(context, steps, {
      x, lane: LANES.step, name: "step", unit: " ms",
      value: (step) => step.milliseconds, at: (step) => step.seconds, colour: tint("decode"),
    });
    drawCurve(context, steps, {
      x, lane: LANES.cache, name: "in cache", unit: "",
      value: (step) => step.num_cache_tokens,
      at: (step) => step.seconds + step.milliseconds / 1000, colour: tint("accent"),
    });
  }
}

function axis(context, { x, end, width }) {
  const step = niceStep(end / Math.max(2, Math.floor((width - LEFT) / 90)));
  context.strokeStyle = tint("line");
  context.fillStyle = tint("faint");
  context.textAlign = "center";
  for (let at = 0; at <= end * 1.0001; at += step) {
    context.beginPath();
    context.moveTo(x(at), LANES.bars[0]);
    context.lineTo(x(at), LANES.cache[1]);
    context.stroke();
    context.fillText(at === 0 ? "0" : milliseconds(at), Math.min(x(at), width - 20), HEIGHT - 6);
  }
}

/** 1, 2 or 5 times a power of ten, at least the given size. */
function niceStep(least) {
  const power = 10 ** Math.floor(Math.log10(least));
  return [1, 2, 5, 10].find((factor) => factor * power >= least) * power;
}

function drawBars(context, events, x) {
  const [top, bottom] = LANES.bars;
  label(context, "request", (top + bottom) / 2);
  const bar = (from, to, colour) => {
    context.fillStyle = tint(colour);
    const gap = x(to) - x(from) > 3 ? 0.75 : 0;
    context.fillRect(x(from), top, Math.max(x(to) - x(from) - gap, 0.75), bottom - top);
  };
  let waitingSince = null;
  for (const event of events) {
    if (event.event in KINDS) {
      bar(event.seconds, event.seconds + event.milliseconds / 1000, KINDS[event.event]);
    } else if (event.event === "queued" || event.event === "preempted") {
      waitingSince = event.seconds;
    } else if (waitingSince !== null) {
      bar(waitingSince, event.seconds, "waiting");
      waitingSince = null;
    }
  }
}

function drawCurve(context, steps, { x, lane, name, unit, value, at, colour }) {
  const [top, bottom] = lane;
  const highest = Math.max(...steps.map(value), 1e-9);
  label(context, name, (top + bottom) / 2 - 7);
  if (!steps.length) return;
  context.fillStyle = tint("faint");
  context.textAlign = "left";
  context.fillText(`≤ ${highest >= 10 ? Math.round(highest) : highest.toFixed(1)}${unit}`, 4, (top + bottom) / 2 + 11);
  context.beginPath();
  for (const step of steps) context.lineTo(x(at(step)), bottom - ((bottom - top) * value(step)) / highest);
  context.lineWidth = 1.5;
  context.strokeStyle = colour;
  context.stroke();
  context.lineWidth = 1;
}

function label(context, text, y) {
  context.fillStyle = tint("text");
  context.textAlign = "left";
  context.fillText(text, 4, y + 4);
}

/** The timeline in a sentence, for who cannot see it and for who wants the numbers. */
function summary(request) {
  const of = (kind) => request.events.filter((event) => event.event === kind);
  const decodes = of("decode").map((event) => event.milliseconds).sort((a, b) => a - b);
  const parts = [
    `Waited ${milliseconds(request.waited_seconds)}`,
    `${plural(request.num_prompt_tokens, "prompt token")}, ${request.num_cached_tokens} cached, ` +
      `in ${plural(of("prompt_chunk").length, "step")}`,
    `first token after ${milliseconds(request.first_token_seconds)}`,
  ];
  if (decodes.length) {
    const median = decodes[Math.floor(decodes.length / 2)];
    parts.push(`then ${plural(decodes.length, "step")}, the median one ${milliseconds(median / 1000)}`);
  }
  if (request.num_preemptions) parts.push(plural(request.num_preemptions, "preemption"));
  if (request.num_lost_events) parts.push(`${request.num_lost_events} early events no longer kept`);
  return `${parts.join("; ")}.`;
}
