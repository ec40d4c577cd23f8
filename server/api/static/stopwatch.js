// Stopwatch: the times of the pieces of an answer, as they arrive here.

export class Stopwatch {
  #start = performance.now();
  #first = null;
  #last = null;
  #numPieces = 0;

  lap() {
    this.#numPieces += 1;
    this.#last = performance.now();
    this.#first ??= this.#last;
  }

  /** Seconds until the first piece, and between tokens after it: of one that was stopped, pieces. */
  times(numTokens = this.#numPieces) {
    if (this.#first === null) return { first: null, between: null };
    return {
      first: (this.#first - this.#start) / 1000,
      between: numTokens > 1 ? (this.#last - this.#first) / 1000 / (numTokens - 1) : null,
    };
  }
}
