// One colour for each running request, the same in the map and in the list.

const PALETTE = [
  "#4c78d8", "#e0803c", "#2f9e96", "#c4559a", "#7a9f35", "#8468cf",
  "#cf9a1f", "#d25555", "#3f97cc", "#97745a", "#4fa870", "#a96fc0",
];

export class Colours {
  #given = new Map();

  /** Keeps the colours of those who still run and gives new ones the least used. */
  update(requestIds) {
    const running = new Set(requestIds);
    for (const id of this.#given.keys()) {
      if (!running.has(id)) this.#given.delete(id);
    }
    const uses = PALETTE.map(() => 0);
    for (const index of this.#given.values()) uses[index] += 1;
    for (const id of requestIds) {
      if (this.#given.has(id)) continue;
      const index = uses.indexOf(Math.min(...uses));
      uses[index] += 1;
      this.#given.set(id, index);
    }
  }

  of(requestId) {
    return PALETTE[this.#given.get(requestId) ?? 0];
  }
}
