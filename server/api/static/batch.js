// The list of running requests: what the map shows, in words and numbers.

import { byId, element, milliseconds, plural } from "./dom.js";

const MOST_SHOWN = 40;

/** Draws the list; `hover` is told the block ids of the request that is pointed at, or null. */
export function showBatch(frame, colours, hover) {
  const { num_running: running, num_waiting: waiting } = frame;
  byId("batch-counts").textContent =
    `${running} running · ${waiting} waiting` +
    (frame.num_preemptions ? ` · ${plural(frame.num_preemptions, "preemption")}` : "");
  const companions = sharing(frame.shared);
  const rows = frame.regions
    .slice(0, MOST_SHOWN)
    .map((region) => describe(region, colours, { companions, hover }));
  if (frame.regions.length > MOST_SHOWN) {
    rows.push(element("li", { className: "hint" }, `and ${frame.regions.length - MOST_SHOWN} more`));
  }
  if (!rows.length) rows.push(element("li", { className: "hint" }, "Nobody is running."));
  byId("batch").replaceChildren(...rows);
}

/** What was last seen is no more. */
export function showNoBatch() {
  byId("batch-counts").textContent = "";
  byId("batch").replaceChildren(element("li", { className: "hint" }, "Not known: the server does not answer."));
}

/** For each request the others it shares blocks with. */
function sharing(groups) {
  const companions = new Map();
  for (const { request_ids: ids } of groups) {
    for (const id of ids) {
      const known = companions.get(id) ?? new Set();
      ids.forEach((other) => other !== id && known.add(other));
      companions.set(id, known);
    }
  }
  return companions;
}

function describe(region, colours, { companions, hover }) {
  const colour = colours.of(region.request_id);
  const swatch = element("span", { className: "swatch" });
  swatch.style.background = colour;
  const bar = element("span", { className: "fill" });
  bar.style.background = colour;
  bar.style.width = `${(100 * region.num_used_tokens) / Math.max(region.num_reserved_tokens, 1)}%`;
  const others = [...(companions.get(region.request_id) ?? [])];
  const shared = region.num_shared_blocks
    ? ` · ${plural(region.num_shared_blocks, "block")} shared with ${
        others.length > 1 ? `${others.length} others` : colours.nameOf(others[0])}`
    : "";
  const row = element(
    "li",
    { title: region.request_id, "data-request": region.request_id },
    swatch,
    element("span", { className: "who" }, colours.nameOf(region.request_id)),
    element("span", { className: "track", "aria-hidden": "true" }, bar),
    element(
      "span",
      { className: "numbers" },
      `${region.num_used_tokens} of ${plural(region.num_reserved_tokens, "token")} · ` +
        `${region.num_cached_tokens} found cached${shared} · ${milliseconds(region.age_seconds)}`,
    ),
  );
  row.addEventListener("pointerenter", () => hover(new Set(region.block_ids)));
  row.addEventListener("pointerleave", () => hover(null));
  return row;
}
