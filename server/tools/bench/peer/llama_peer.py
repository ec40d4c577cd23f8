"""A llama.cpp to compare with: measures tasks that come as lines of JSON, one answer a line.

Run by bench_peer with the interpreter of an environment that has llama-cpp-python; needs nothing
of this project. Like llama.cpp's own batched benchmark it chooses no tokens: what is timed is
llama_decode with the logits of every sequence, and nothing around it.
"""

from __future__ import annotations

import json
import random
import sys
import time
from typing import Any

import llama_cpp  # type: ignore[import-not-found]  # lives in an environment of its own

PROMPT_BATCH = 2048
"""Tokens handed over at once; llama.cpp computes them in parts of 512."""


class Peer:
    """A loaded model.

    Args:
        path: A GGUF file.
        threads: For prompts and decoding alike.
    """

    def __init__(self, path: str, *, threads: int) -> None:
        self._threads = threads
        llama_cpp.llama_backend_init()
        params = llama_cpp.llama_model_default_params()
        self._model = llama_cpp.llama_model_load_from_file(path.encode(), params)
        if not self._model:
            raise ValueError(f"llama.cpp cannot load {path}")
        vocab = llama_cpp.llama_model_get_vocab(self._model)
        self._vocab_size = llama_cpp.llama_vocab_n_tokens(vocab)

    def measure(self, task: dict[str, Any]) -> float:
        """Tokens per second of a task as `bench.Task` describes it, with its number of steps."""
        batch, context, steps = task["batch"], task["context"], task["steps"]
        params = llama_cpp.llama_context_default_params()
        # Each sequence has its own part of the cache, in whole pages of 256 tokens.
        params.n_ctx = batch * (-(-(context + steps + 1) // 256) * 256)
        params.n_seq_max = batch
        params.n_batch = max(PROMPT_BATCH, batch)
        params.n_ubatch = 512
        params.n_threads = params.n_threads_batch = self._threads
        running = llama_cpp.llama_init_from_model(self._model, params)
        if not running:
            raise ValueError(f"llama.cpp has no room for {batch} x {context} tokens")
        tokens = llama_cpp.llama_batch_init(params.n_batch, 0, 1)
        try:
            started = time.perf_counter()
            for sequence in range(batch):
                self._read(running, tokens, sequence=sequence, length=context)
            if task["kind"] == "prompt":
                return float(batch * context / (time.perf_counter() - started))
            self._step(running, tokens, sequences=batch, position=context)
            started = time.perf_counter()
            for step in range(1, steps + 1):
                self._step(running, tokens, sequences=batch, position=context + step)
            return float(batch * steps / (time.perf_counter() - started))
        finally:
            llama_cpp.llama_batch_free(tokens)
            llama_cpp.llama_free(running)

    def _read(self, running: Any, tokens: Any, *, sequence: int, length: int) -> None:  # noqa: ANN401 - no stubs
        """A prompt, with the logits of its last token."""
        for start in range(0, length, PROMPT_BATCH):
            stop = min(start + PROMPT_BATCH, length)
            for index, position in enumerate(range(start, stop)):
                self._put(tokens, index, sequence=sequence, position=position)
                tokens.logits[index] = position == length - 1
            self._decode(running, tokens, count=stop - start)

    def _step(self, running: Any, tokens: Any, *, sequences: int, position: int) -> None:  # noqa: ANN401 - no stubs
        """One token for each sequence."""
        for sequence in range(sequences):
            self._put(tokens, sequence, sequence=sequence, position=position)
            tokens.logits[sequence] = True
        self._decode(running, tokens, count=sequences)

    def _put(self, tokens: Any, index: int, *, sequence: int, position: int) -> None:  # noqa: ANN401 - no stubs
        tokens.token[index] = random.randrange(self._vocab_size)  # noqa: S311 - no secret
        tokens.pos[index] = position
        tokens.n_seq_id[index] = 1
        tokens.seq_id[index][0] = sequence

    def _decode(self, running: Any, tokens: Any, *, count: int) -> None:  # noqa: ANN401 - no stubs
        tokens.n_tokens = count
        if llama_cpp.llama_decode(running, tokens) != 0:
            raise ValueError("llama_decode failed")
        llama_cpp.llama_synchronize(running)


@llama_cpp.llama_log_callback  # type: ignore[untyped-decorator]  # no stubs
def _say_nothing(_level: int, _text: bytes, _data: object) -> None:
    """Keep llama.cpp's log out of the table."""


def main() -> None:
    """Answer tasks until the input ends."""
    llama_cpp.llama_log_set(_say_nothing, None)
    path, threads = sys.argv[1:]
    peer = Peer(path, threads=int(threads))
    print(json.dumps({"version": llama_cpp.__version__}), flush=True)
    for line in sys.stdin:
        print(json.dumps({"tokens_per_second": peer.measure(json.loads(line))}), flush=True)


if __name__ == "__main__":
    main()
