// AttentionMap: a row for each token, a column for each it may look at, the fuller the more weight.

import { redrawWhenNeeded, surface, tint, zoom } from "./dom.js";

const LARGEST_CELL = 26;
const LONGEST_LABEL = 14;
const SMALLEST_NAMED = 11;

export class AttentionMap {
  #canvas;
  #say;
  #result = null;
  #grid = null;
  #inspected = null;

  /** `say` is told in words what is shown and what a cell holds. */
  constructor(canvas, say) {
    this.#canvas = canvas;
    this.#say = say;
    redrawWhenNeeded(canvas, () => this.#draw());
    canvas.addEventListener("pointermove", ({ offsetX, offsetY }) => this.#point(offsetX, offsetY));
    canvas.addEventListener("pointerdown", ({ offsetX, offsetY }) => this.#point(offsetX, offsetY));
    canvas.addEventListener("pointerleave", () => this.#inspect(-1, -1));
    canvas.addEventListener("keydown", (event) => this.#key(event));
  }

  /** Shows an answer of /v1/attention; the weight that is drawn full. */
  show(result) {
    this.#result = result;
    this.#inspected = null;
    this.#draw();
    this.#say(about(result));
    return largest(result);
  }

  #point(offsetX, offsetY) {
    const { cell, left, top } = this.#grid;
    const at = (offset, edge) => Math.floor((offset / zoom() - edge) / cell);
    this.#inspect(at(offsetY, top), at(offsetX, left));
  }

  #key(event) {
    const [down, right] =
      { ArrowDown: [1, 0], ArrowUp: [-1, 0], ArrowRight: [0, 1], ArrowLeft: [0, -1] }[event.key] ?? [];
    if (down === undefined || !this.#result) return;
    event.preventDefault();
    const limit = (index) => Math.min(Math.max(index, 0), this.#result.tokens.length - 1);
    const { row, column } = this.#inspected ?? { row: -down, column: -right };
    this.#inspect(limit(row + down), limit(column + right));
  }

  #inspect(row, column) {
    const count = this.#result.tokens.length;
    const inside = row >= 0 && column >= 0 && row < count && column < count;
    this.#inspected = inside ? { row, column } : null;
    this.#draw();
    this.#say(inside ? words(this.#result, this.#inspected) : about(this.#result));
  }

  #draw() {
    if (!this.#result || this.#canvas.clientWidth === 0) return;
    const { tokens, weights } = this.#result;
    const names = tokens.map(shorten);
    this.#grid = layOut(this.#canvas, names);
    const { cell, left, top } = this.#grid;
    const { context } = surface(this.#canvas, top + cell * names.length + 2);
    const side = cell - (cell >= 8 ? 1 : 0);
    const fill = (x, y, colour, alpha) => {
      context.globalAlpha = alpha;
      context.fillStyle = colour;
      context.fillRect(left + x * cell, top + y * cell, side, side);
    };
    const [empty, full, highest] = [tint("cell"), tint("accent"), largest(this.#result)];
    weights.forEach((row, y) => {
      for (let x = 0; x <= y; x += 1) {
        fill(x, y, empty, 1);
        fill(x, y, full, Math.sqrt(row[x] / highest));
      }
    });
    context.globalAlpha = 1;
    if (cell >= SMALLEST_NAMED) drawLabels(context, names, this.#grid);
    if (!this.#inspected) return;
    context.strokeStyle = tint("ring");
    context.lineWidth = 2;
    const { row, column } = this.#inspected;
    context.strokeRect(left + column * cell, top + row * cell, side, side);
  }
}

const largest = ({ weights }) => Math.max(...weights.map((row) => Math.max(...row)));

function about({ layer, head, window: span }) {
  const which = (value, noun) => (value === null || value === undefined ? `the mean of all ${noun}s` : `${noun} ${value}`);
  const within = span ? ` This layer sees the last ${span} tokens.` : "";
  return `Shown: ${which(layer, "layer")}, ${which(head, "head")}.${within} Point at a cell, or use the arrow keys.`;
}

function words({ tokens, weights }, { row, column }) {
  const name = (index) => `“${tokens[index]}” (${index})`;
  if (column > row) return `${name(row)} cannot look ahead at ${name(column)}`;
  return `${name(row)} looks at ${name(column)} with ${(100 * weights[row][column]).toFixed(1)} %`;
}

function shorten(token) {
  const shown = token.replaceAll("\n", "⏎").replaceAll(" ", "\u00a0");
  return shown.length > LONGEST_LABEL ? `${shown.slice(0, LONGEST_LABEL - 1)}…` : shown;
}

function layOut(canvas, names) {
  const measure = canvas.getContext("2d");
  measure.font = "12px system-ui, sans-serif";
  const label = Math.ceil(Math.max(...names.map((name) => measure.measureText(name).width))) + 8;
  const room = canvas.clientWidth / zoom() - label;
  const cell = Math.max(2, Math.min(LARGEST_CELL, Math.floor(room / names.length)));
  return { cell, left: label, top: label + 6 };
}

function drawLabels(context, names, { cell, left, top }) {
  context.fillStyle = tint("text");
  names.forEach((name, index) => {
    const middle = (index + 0.5) * cell + 4;
    context.textAlign = "right";
    context.fillText(name, left - 5, top + middle);
    context.save();
    context.translate(left + middle, top - 5);
    context.rotate(-Math.PI / 2);
    context.textAlign = "left";
    context.fillText(name, 0, 0);
    context.restore();
  });
}
