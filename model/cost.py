"""ForwardCost: the arithmetic and the memory traffic that a forward pass needs, by its shape.

Counted from the configuration, not measured: what any implementation must at least do. Plain
integers without torch; a model's own cost is taken once, when it is loaded.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from model.config import ModelConfig


@dataclass(frozen=True, kw_only=True, slots=True)
class ForwardCost:
    """FLOPs and bytes of one forward pass over one sequence."""

    layer_parameters: int
    """Numbers in the matrices of all layers, each multiplied once for every new token."""
    output_parameters: int
    """Numbers in the output matrix, multiplied once for every token chosen."""
    weights_bytes: int
    """Bytes of all weights, read once in a pass."""
    cache_bytes_per_token: int
    """Bytes of one token's keys and values in all layers."""
    attention_width: int
    """Query heads x head size."""
    windows: tuple[int | None, ...]
    """For each layer how many tokens a query sees; None is all."""

    @staticmethod
    def of(config: ModelConfig, *, weights_bytes: int, cache_bytes_per_token: int) -> ForwardCost:
        """Count a model's matrices.

        Args:
            config: Its shape.
            weights_bytes: Bytes its weights take in memory.
            cache_bytes_per_token: Bytes a token takes in the cache.
        """
        query = config.num_heads * config.head_dim
        key_value = config.num_kv_heads * config.head_dim
        attention = config.hidden_size * (2 * query + 2 * key_value)
        mlp = config.hidden_size * config.intermediate_size * (3 if config.gated_mlp else 2)
        return ForwardCost(
            layer_parameters=config.num_layers * (attention + mlp),
            output_parameters=config.hidden_size * config.vocab_size,
            weights_bytes=weights_bytes,
            cache_bytes_per_token=cache_bytes_per_token,
            attention_width=query,
            windows=config.windows,
        )

    def flops(self, *, start: int, stop: int) -> int:
        """Floating-point operations to compute the tokens [start, stop) and choose the next.

        A multiplication and an addition count as two; norms, rotary, activations and softmax,
        some per cent of the whole, are left out.

        Args:
            start: Tokens whose keys and values are in the cache already.
            stop: Length of the sequence so far.
        """
        products = self.layer_parameters * (stop - start) + self.output_parameters
        seen = sum(_visible_pairs(start, stop, window) for window in self.windows)
        return 2 * products + 4 * self.attention_width * seen  # q k^T and weights v

    def bytes_moved(self, *, start: int, stop: int) -> int:
        """Bytes such a pass must at least read and write: weights, and keys and values.

        Each weight is read once; the new tokens' keys and values are written, and those that the
        first new token can see are read, once.
        """
        share = self.cache_bytes_per_token / len(self.windows)
        read = sum(
            stop if window is None else min(stop, stop - start + window - 1)
            for window in self.windows
        )
        written = (stop - start) * self.cache_bytes_per_token
        return self.weights_bytes + written + round(read * share)


def _visible_pairs(start: int, stop: int, window: int | None) -> int:
    """How many keys the queries at [start, stop) see together."""
    if window is None or window >= stop:
        return (stop * (stop + 1) - start * (start + 1)) // 2
    split = max(start, window)
    return _visible_pairs(start, min(split, stop), None) + (stop - split) * window
