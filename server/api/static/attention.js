// The attention map of a short text: a row for each token, a column for each it may look at.

import { getJson } from "./api.js";
import { byId, redrawWhenNeeded, surface, tint } from "./dom.js";

const LARGEST_CELL = 26;
const LONGEST_LABEL = 14;

/** Shows the panel; called again after each new connection. */
export function setUpAttention() {
  if (!byId("attention-card").hidden) return;
  byId("attention-card").hidden = false;
  const canvas = byId("attention-canvas");
  let result = null;
  let grid = null;
  let inspected = null;
  const draw = () => {
    if (result) grid = drawMap(canvas, result, inspected);
  };
  const inspect = (row, column) => {
    const count = result.tokens.length;
    const inside = row >= 0 && column >= 0 && row < count && column < count;
    inspected = inside ? { row, column } : null;
    draw();
    byId("attention-status").textContent = inside ? words(result, inspected) : about(result);
  };
  redrawWhenNeeded(canvas, draw);
  canvas.addEventListener("pointermove", ({ offsetX, offsetY }) => {
    const at = (offset, edge) => Math.floor((offset - edge) / grid.cell);
    inspect(at(offsetY, grid.top), at(offsetX, grid.left));
  });
  canvas.addEventListener("pointerleave", () => inspect(-1, -1));
  canvas.addEventListener("keydown", (event) => {
    const [down, right] =
      { ArrowDown: [1, 0], ArrowUp: [-1, 0], ArrowRight: [0, 1], ArrowLeft: [0, -1] }[event.key] ?? [];
    if (down === undefined) return;
    event.preventDefault();
    const limit = (index) => Math.min(Math.max(index, 0), result.tokens.length - 1);
    const { row, column } = inspected ?? { row: -down, column: -right };
    inspect(limit(row + down), limit(column + right));
  });
  byId("attention-form").addEventListener("submit", async (event) => {
    event.preventDefault();
    byId("attention-status").textContent = "Computing…";
    try {
      const json = { prompt: byId("attention-text").value };
      for (const name of ["layer", "head"]) {
        const { value } = byId(`attention-${name}`);
        if (value !== "") json[name] = Number(value);
      }
      result = await getJson("/v1/attention", { json });
      byId("attention-layer").max = result.num_layers - 1;
      byId("attention-head").max = result.num_heads - 1;
      inspected = null;
      canvas.hidden = false;
      byId("attention-status").textContent = about(result);
      draw();
    } catch (error) {
      byId("attention-status").textContent =
        error instanceof TypeError ? "The server is gone." : error.message;
    }
  });
}

function about({ layer, head }) {
  const which = (value, noun) => (value === null || value === undefined ? `the mean of all ${noun}s` : `${noun} ${value}`);
  return `Shown: ${which(layer, "layer")}, ${which(head, "head")}. Point at a cell, or use the arrow keys.`;
}

function words({ tokens, weights }, { row, column }) {
  const name = (index) => `“${tokens[index]}” (${index})`;
  if (column > row) return `${name(row)} cannot look ahead at ${name(column)}`;
  return `${name(row)} looks at ${name(column)} with ${(100 * weights[row][column]).toFixed(1)} %`;
}

const shorten = (token) => {
  const shown = token.replaceAll("\n", "⏎").replaceAll(" ", "\u00a0");
  return shown.length > LONGEST_LABEL ? `${shown.slice(0, LONGEST_LABEL - 1)}…` : shown;
};

function drawMap(canvas, { tokens, weights }, inspected) {
  const names = tokens.map(shorten);
  const measure = canvas.getContext("2d");
  measure.font = "12px system-ui, sans-serif";
  const label = Math.ceil(Math.max(...names.map((name) => measure.measureText(name).width))) + 8;
  const cell = Math.max(2, Math.min(LARGEST_CELL, Math.floor((canvas.clientWidth - label) / names.length)));
  const grid = { cell, left: label, top: label + 6 };
  const { context } = surface(canvas, label + 6 + cell * names.length + 2);
  const gap = cell >= 8 ? 1 : 0;
  const fill = (x, y, colour, alpha) => {
    context.globalAlpha = alpha;
    context.fillStyle = colour;
    context.fillRect(grid.left + x * cell, grid.top + y * cell, cell - gap, cell - gap);
  };
  const [empty, full] = [tint("cell"), tint("accent")];
  weights.forEach((row, y) => {
    const highest = Math.max(...row);
    for (let x = 0; x <= y; x += 1) {
      fill(x, y, empty, 1);
      fill(x, y, full, Math.sqrt(row[x] / highest));
    }
  });
  context.globalAlpha = 1;
  if (cell >= 11) drawLabels(context, names, grid);
  if (inspected) {
    context.strokeStyle = tint("text");
    context.lineWidth = 1.5;
    const { row, column } = inspected;
    context.strokeRect(grid.left + column * cell, grid.top + row * cell, cell - gap, cell - gap);
  }
  return grid;
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
