// The chart of a comparison: step times and their sums, with the cache and without it.

import { milliseconds, surface, tint, zoom } from "./dom.js";

const HEIGHT = 220;
const EDGE = { left: 58, right: 12, top: 22, bottom: 30 };

/** Step times and their sums, side by side where there is room. */
export function drawComparison(canvas, steps) {
  if (!steps.cached.length.length || canvas.clientWidth === 0) return;
  const narrow = canvas.clientWidth / zoom() < 560;
  const { context, width } = surface(canvas, narrow ? 2 * HEIGHT : HEIGHT);
  const size = narrow ? width : width / 2;
  const sums = Object.fromEntries(
    Object.entries(steps).map(([name, { length, ms }]) => {
      let sum = 0;
      return [name, { length, ms: ms.map((time) => (sum += time)) }];
    }),
  );
  drawChart(context, steps, { x: 0, y: 0, width: size, title: "each step" });
  drawChart(context, sums, narrow
    ? { x: 0, y: HEIGHT, width: size, title: "all steps so far" }
    : { x: size, y: 0, width: size, title: "all steps so far" });
}

function drawChart(context, lines, box) {
  const all = [lines.cached, lines.uncached];
  const lengths = all.flatMap((line) => line.length);
  const [first, last] = [Math.min(...lengths), Math.max(...lengths)];
  // The first step reads the prompt: it is drawn, but what the others take sets the scale.
  const highest = Math.max(...all.flatMap((line) => line.ms.slice(1)), 1e-3);
  const x = (length) =>
    box.x + EDGE.left + ((box.width - EDGE.left - EDGE.right) * (length - first)) / Math.max(last - first, 1);
  const y = (ms) => box.y + HEIGHT - EDGE.bottom - ((HEIGHT - EDGE.top - EDGE.bottom) * ms) / highest;
  context.fillStyle = tint("text");
  context.textAlign = "left";
  context.fillText(box.title, x(first), box.y + 13);
  for (const part of [0, 0.5, 1]) {
    context.strokeStyle = tint("line");
    context.beginPath();
    context.moveTo(x(first), y(part * highest));
    context.lineTo(x(last), y(part * highest));
    context.stroke();
    context.fillStyle = tint("faint");
    context.textAlign = "right";
    const words = part ? milliseconds((part * highest) / 1000) : "0";
    context.fillText(words, x(first) - 6, y(part * highest) + 4);
  }
  context.textAlign = "left";
  context.fillText(`${first} tokens`, x(first), box.y + HEIGHT - 10);
  context.textAlign = "right";
  context.fillText(`${last}`, x(last), box.y + HEIGHT - 10);
  context.save();
  context.beginPath();
  context.rect(x(first), y(highest) - 2, x(last) - x(first) + 2, y(0) - y(highest) + 4);
  context.clip();
  for (const [line, colour] of [[lines.uncached, "without"], [lines.cached, "with"]]) {
    context.beginPath();
    line.length.forEach((length, index) => context.lineTo(x(length), y(line.ms[index])));
    context.lineWidth = 2;
    context.strokeStyle = tint(colour);
    context.stroke();
  }
  context.restore();
}
