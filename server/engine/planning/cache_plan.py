"""CachePlan: how the memory of the KV cache is divided, decided once before it is allocated.

Pure arithmetic on what the model needs and what the machine has; it allocates nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

from server.errors import ConfigurationError
from server.plural import counted

AUTO_SHARE = 0.6
"""The part of the available memory that the cache takes when it is not told how much."""
_UNITS = ("bytes", "KiB", "MiB", "GiB", "TiB")


@dataclass(frozen=True, kw_only=True, slots=True)
class CachePlan:
    """Size of the cache, and the figures it follows from."""

    weights_bytes: int
    bytes_per_token: int
    block_size: int
    num_blocks: int
    """Blocks that can hold tokens; the pool has one more, for padding."""
    max_model_len: int
    max_held_tokens: int
    """Of one request, the most that are in the cache at once."""
    max_num_seqs: int

    @property
    def num_tokens(self) -> int:
        """Tokens that fit in the cache."""
        return self.num_blocks * self.block_size

    @property
    def cache_bytes(self) -> int:
        """Bytes of the blocks that can hold tokens."""
        return self.num_tokens * self.bytes_per_token

    @property
    def num_full_requests(self) -> int:
        """Requests of the greatest length that fit at the same time."""
        return self.num_blocks // blocks_for(self.max_held_tokens, self.block_size)

    def describe(self) -> str:
        """The plan in one line, for the log."""
        return (
            f"memory plan: weights {format_bytes(self.weights_bytes)}, "
            f"cache {format_bytes(self.cache_bytes)} = {counted(self.num_tokens, 'token')} "
            f"of {format_bytes(self.bytes_per_token)} in blocks of {self.block_size}, "
            f"room for {counted(self.num_full_requests, 'request')} "
            f"of {counted(self.max_model_len, 'token')} "
            f"({self._held()}at most {self.max_num_seqs} run at once)"
        )

    def _held(self) -> str:
        """What is kept of them, if not all."""
        if self.max_held_tokens == self.max_model_len:
            return ""
        return f"of which {self.max_held_tokens:,} are kept; "


def plan_cache(  # noqa: PLR0913 - each is a fact of its own
    *,
    weights_bytes: int,
    bytes_per_token: int,
    memory: int | None,
    available: int,
    share: float = AUTO_SHARE,
    block_size: int,
    context: int,
    max_model_len: int | None,
    max_num_seqs: int,
    max_held_tokens: int | None = None,
) -> CachePlan:
    """Divide the memory of the cache.

    Args:
        weights_bytes: Bytes of the loaded weights, for the description only.
        bytes_per_token: Bytes of one token's keys and values in all layers.
        memory: Bytes the cache may take; None takes a share of `available`, but never more than
            `max_num_seqs` requests of full length could use.
        available: Bytes the process can still take, the weights loaded.
        share: The part of them that the cache takes when it is not told how much.
        block_size: Tokens in a block.
        context: The longest sequence the model was made for.
        max_model_len: The longest sequence to serve; None is the context, or less if no more fits.
        max_num_seqs: Requests that may run at once.
        max_held_tokens: Tokens of a request that are kept at most; None is all.

    Raises:
        ConfigurationError: A request of `max_model_len` tokens does not fit, or is longer than
            the model's context; the message says what to change.
    """
    if max_model_len is not None and max_model_len > context:
        raise ConfigurationError(
            f"--max-model-len is {max_model_len}, but the model's context is {context} tokens: "
            f"use at most {context}"
        )
    block_bytes = block_size * bytes_per_token
    longest = max_model_len or context
    length = longest if max_held_tokens is None else min(longest, max_held_tokens)
    if memory is None:
        wanted = max_num_seqs * blocks_for(length, block_size)
        num_blocks = min(int(available * share) // block_bytes, wanted)
    else:
        num_blocks = memory // block_bytes
    if num_blocks * block_size < length:
        if max_model_len is not None or max_held_tokens is not None or num_blocks < 1:
            raise _does_not_fit(
                blocks_for(length, block_size) * block_bytes,
                available if memory is None else memory,
                least=block_bytes,
                shorter=num_blocks * block_size,
                length=length,
            )
        longest = length = num_blocks * block_size
    return CachePlan(
        weights_bytes=weights_bytes,
        bytes_per_token=bytes_per_token,
        block_size=block_size,
        num_blocks=num_blocks,
        max_model_len=longest,
        max_held_tokens=length,
        max_num_seqs=max_num_seqs,
    )


def blocks_for(num_tokens: int, block_size: int) -> int:
    """Blocks that hold this many tokens."""
    return -(-num_tokens // block_size)


def format_bytes(size: int) -> str:
    """The size in the largest unit that keeps it above one."""
    exponent = min(max(size.bit_length() - 1, 0) // 10, len(_UNITS) - 1)
    return f"{size / 1024**exponent:.4g} {_UNITS[exponent]}"


def _does_not_fit(
    needed: int, given: int, *, least: int, shorter: int, length: int
) -> ConfigurationError:
    """What a request of full length needs, what there is, and the ways out."""
    if shorter:
        advice = f"to at least {needed}, or --max-model-len to {shorter}"
    else:
        advice = f"to at least {least}, for a shorter context, or to {needed}"
    return ConfigurationError(
        f"one request of {length} tokens needs {format_bytes(needed)} of cache, but there are "
        f"{format_bytes(given)}: set --kv-cache-memory {advice}"
    )
