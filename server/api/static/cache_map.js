// The map of the cache: a cell for each block, in the colours of those who hold it.

import { byId, plural, redrawWhenNeeded, surface, tint, zoom } from "./dom.js";

const SHARE_OF_WINDOW = 0.27; // so that composer, answer and map are seen together on a laptop
const SHORTEST = 110;
const TALLEST = 300;
const LARGEST_CELL = 18;
const SMALLEST_CELL = 3;
const FEWEST_SHOWN = 512;
const MOST_STRIPES = 4;

export class CacheMap {
  #canvas = byId("map");
  #colours;
  #frame = null;
  #blocks = new Map();
  #highest = 0;
  #grid = { cell: LARGEST_CELL, columns: 1, shown: 0, perCell: 1 };
  #inspected = null;
  #pointedOut = null;
  #isAway = false;

  constructor(colours) {
    this.#colours = colours;
    redrawWhenNeeded(this.#canvas, () => this.draw());
    window.addEventListener("resize", () => this.draw());
    this.#canvas.addEventListener("pointermove", (event) => this.#point(event));
    this.#canvas.addEventListener("pointerdown", (event) => this.#point(event));
    this.#canvas.addEventListener("pointerleave", () => this.#inspect(null));
    this.#canvas.addEventListener("keydown", (event) => this.#key(event));
    this.#canvas.addEventListener("blur", () => this.#inspect(null));
  }

  update(frame) {
    this.#isAway = false;
    this.#frame = frame;
    this.#blocks = new Map();
    for (const id of frame.reusable_block_ids) this.#blocks.set(id, { reusable: true });
    for (const region of frame.regions) this.#addRegion(region, frame.block_size);
    for (const id of this.#blocks.keys()) this.#highest = Math.max(this.#highest, id);
    byId("map-counts").textContent =
      `${frame.num_held_blocks.toLocaleString()} held · ` +
      `${frame.num_reusable_blocks.toLocaleString()} reusable · ` +
      `${frame.num_free_blocks.toLocaleString()} free · ${frame.block_size} tokens each`;
    this.draw();
    if (this.#inspected !== null) this.#tell();
  }

  /** What was last seen is drawn as what is no more. */
  gone() {
    this.#isAway = true;
    byId("map-counts").textContent = this.#frame ? "as it was last seen" : "";
    this.draw();
  }

  /** Shows where these blocks are among all others; null shows all alike again. */
  pointOut(blockIds) {
    this.#pointedOut = blockIds;
    this.draw();
  }

  #addRegion(region, blockSize) {
    region.block_ids.forEach((id, index) => {
      const written = Math.min(Math.max(region.num_used_tokens / blockSize - index, 0), 1);
      const block = this.#blocks.get(id) ?? { holders: [], written: 0 };
      block.holders.push(region.request_id);
      block.written = Math.max(block.written, written);
      this.#blocks.set(id, block);
    });
  }

  draw() {
    if (this.#frame === null || this.#canvas.clientWidth === 0) return;
    const grid = this.#layOut(this.#canvas.clientWidth / zoom());
    const { context } = surface(this.#canvas, grid.rows * grid.cell);
    const colours = {
      free: tint("cell"), reusable: tint("reusable"), edge: tint("shared-edge"),
      ring: tint("ring"), page: tint("card"),
    };
    if (this.#isAway) context.filter = "grayscale(1) opacity(0.45)";
    const places = Array.from({ length: grid.cells }, (_, index) => ({
      x: (index % grid.columns) * grid.cell,
      y: Math.floor(index / grid.columns) * grid.cell,
      size: grid.cell,
      id: index * grid.perCell + 1,
    }));
    for (const place of places) this.#drawCell(context, place, colours);
    for (const place of places) this.#drawRing(context, place, colours);
    const { num_held_blocks: held, num_blocks: all } = this.#frame;
    const shared = this.#frame.shared.reduce((sum, group) => sum + group.block_ids.length, 0);
    this.#canvas.setAttribute(
      "aria-label",
      `Map of the cache: ${held} of ${plural(all, "block")} held, ${shared} of them shared. ` +
        "Arrow keys inspect single blocks.",
    );
    if (this.#inspected === null) this.#tell();
  }

  /** The largest cells with which all blocks that were ever used fit; the free rest is counted. */
  #layOut(width) {
    const all = this.#frame.num_blocks;
    let shown = Math.min(all, Math.max(FEWEST_SHOWN, this.#highest));
    let cell = LARGEST_CELL;
    const share = (SHARE_OF_WINDOW * window.innerHeight) / zoom();
    const tallest = Math.min(Math.max(share, SHORTEST), TALLEST);
    const rows = (cells) => Math.ceil(cells / Math.floor(width / cell));
    while (cell > SMALLEST_CELL && rows(shown) * cell > tallest) cell -= 1;
    const columns = Math.floor(width / cell);
    const perCell = Math.max(1, Math.ceil(shown / (columns * Math.floor(tallest / cell))));
    shown = Math.min(all, Math.ceil(shown / (columns * perCell)) * columns * perCell);
    const cells = Math.ceil(shown / perCell);
    this.#grid = { cell, columns, shown, perCell, cells, rows: Math.ceil(cells / columns) };
    return this.#grid;
  }

  #drawCell(context, { x, y, size, id }, colours) {
    const gap = size >= 6 ? 2 : size >= 4 ? 1 : 0.5;
    const side = size - gap;
    const block = this.#first(id);
    const strength = this.#isPointedOut(id) === false ? 0.3 : 1;
    context.globalAlpha = 1;
    context.fillStyle = colours.free;
    context.fillRect(x, y, side, side);
    context.globalAlpha = strength;
    if (block?.reusable) {
      context.fillStyle = colours.reusable;
      context.fillRect(x, y, side, side);
    } else if (block) {
      const holders = block.holders.slice(0, MOST_STRIPES);
      const stripe = side / holders.length;
      const top = side * (1 - block.written);
      holders.forEach((holder, index) => {
        context.fillStyle = this.#colours.of(holder);
        context.globalAlpha = 0.28 * strength;
        context.fillRect(x + index * stripe, y, stripe, side);
        context.globalAlpha = strength;
        context.fillRect(x + index * stripe, y + top, stripe, side - top);
      });
      if (holders.length > 1 && size >= 6) {
        context.lineWidth = 1.5;
        context.strokeStyle = colours.edge;
        context.strokeRect(x + 0.75, y + 0.75, side - 1.5, side - 1.5);
      }
    }
    context.globalAlpha = 1;
  }

  /** A ring around the inspected block and those pointed out, set off from whatever it encloses. */
  #drawRing(context, { x, y, size, id }, colours) {
    const isInspected =
      this.#inspected !== null && this.#cellOf(this.#inspected) === this.#cellOf(id);
    if (!isInspected && !this.#isPointedOut(id)) return;
    const side = size - (size >= 6 ? 2 : 0);
    const ring = (inset, width, colour) => {
      context.lineWidth = width;
      context.strokeStyle = colour;
      context.strokeRect(x + inset, y + inset, side - 2 * inset, side - 2 * inset);
    };
    if (!isInspected) {
      ring(0, 1.5, colours.ring);
      return;
    }
    ring(2, 2, colours.page);
    ring(0, 2.5, colours.ring);
  }

  /** Whether a cell is among what is pointed out; undefined if nothing is. */
  #isPointedOut(id) {
    if (this.#pointedOut === null) return undefined;
    for (let other = id; other < id + this.#grid.perCell; other += 1) {
      if (this.#pointedOut.has(other)) return true;
    }
    return false;
  }

  /** What is drawn for the blocks of a cell: the first that is not free. */
  #first(id) {
    for (let other = id; other < id + this.#grid.perCell; other += 1) {
      const block = this.#blocks.get(other);
      if (block) return block;
    }
    return undefined;
  }

  #cellOf(id) {
    return Math.floor((id - 1) / this.#grid.perCell);
  }

  #point(event) {
    const { cell, columns, perCell, shown } = this.#grid;
    const column = Math.floor(event.offsetX / zoom() / cell);
    const id = (Math.floor(event.offsetY / zoom() / cell) * columns + column) * perCell + 1;
    this.#inspect(column < columns && id <= shown ? id : null);
  }

  #key(event) {
    const { columns, perCell, shown } = this.#grid;
    const steps = {
      ArrowRight: perCell, ArrowLeft: -perCell, ArrowDown: columns * perCell, ArrowUp: -columns * perCell,
    };
    if (event.key === "Escape") this.#inspect(null);
    if (!(event.key in steps)) return;
    event.preventDefault();
    const next = this.#inspected === null ? 1 : this.#inspected + steps[event.key];
    this.#inspect(Math.min(Math.max(next, 1), shown));
  }

  #inspect(id) {
    if (id === this.#inspected) return;
    this.#inspected = id;
    this.draw();
    this.#tell();
  }

  #tell() {
    byId("map-inspected").textContent = this.#frame === null ? "" : this.#words();
  }

  #words() {
    const { shown } = this.#grid;
    const rest = this.#frame.num_blocks - shown;
    if (this.#inspected === null) return rest > 0 ? `and ${rest.toLocaleString()} more free blocks` : "";
    const name = `Block ${this.#inspected}`;
    const block = this.#blocks.get(this.#inspected);
    if (!block) return `${name}: free`;
    if (block.reusable) return `${name}: reusable, nobody holds it`;
    const written = Math.round(block.written * this.#frame.block_size);
    const holders = block.holders.map((holder) => this.#colours.nameOf(holder)).join(", ");
    return block.holders.length > 1
      ? `${name}: shared by ${block.holders.length}: ${holders}`
      : `${name}: ${holders}, ${plural(written, "token")} written`;
  }
}
