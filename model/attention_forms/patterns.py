"""Sparsity patterns: which keys each query may see, as boolean masks (T, S), True where it may.

A pattern and `scaled_dot_product_attention` together are a form of attention. A mask says what is
seen, not how to be quick about it: what a pattern saves, form_cost.py says.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def causal_window(num_tokens: int, *, window: int) -> Tensor:
    """Let each token see itself and the `window - 1` before it (Mistral, arXiv:2310.06825)."""
    _check_positive(window=window)
    distance = _distance(num_tokens)
    return (distance >= 0) & (distance < window)


def centred_window(num_tokens: int, *, reach: int) -> Tensor:
    """Let each token see `reach` tokens to either side (Longformer, arXiv:2004.05150, 3.1)."""
    return _distance(num_tokens).abs() <= reach


def strided(num_tokens: int, *, stride: int) -> Tensor:
    """Let each token see the last `stride` tokens and every stride-th one before (2 hops to all).

    Child et al., "Generating Long Sequences with Sparse Transformers" (arXiv:1904.10509), the
    strided pattern of section 4.3: with a stride near sqrt(n) a token sees 2 sqrt(n) keys.
    """
    _check_positive(stride=stride)
    distance = _distance(num_tokens)
    return (distance >= 0) & ((distance < stride) | (distance % stride == 0))


def block_local(num_tokens: int, *, block: int) -> Tensor:
    """Let each token see the tokens before it in its own block and in the one before that."""
    _check_positive(block=block)
    blocks = torch.arange(num_tokens) // block
    near = blocks[:, None] - blocks <= 1
    return near & (_distance(num_tokens) >= 0)


def global_tokens(num_tokens: int, *, positions: Sequence[int]) -> Tensor:
    """Let some tokens see all and be seen by all (Longformer, arXiv:2004.05150, section 3.1)."""
    is_global = torch.zeros(num_tokens, dtype=torch.bool)
    is_global[list(positions)] = True
    return is_global[:, None] | is_global


def attention_sinks(num_tokens: int, *, window: int, sinks: int) -> Tensor:
    """Let each token see the first `sinks` of the text and the last `window`, itself included.

    Xiao et al., "Efficient Streaming Language Models with Attention Sinks" (arXiv:2309.17453).
    A softmax must put its weight somewhere, and models learn to put what they do not need on the
    first tokens. Take those away, and all other weights change: so they are kept.
    """
    first = torch.arange(num_tokens) < sinks
    causal = _distance(num_tokens) >= 0
    return causal & (first | causal_window(num_tokens, window=window))


def big_bird(num_tokens: int, *, block: int, random_blocks: Sequence[Sequence[int]]) -> Tensor:
    """Let blocks see the first and the last block, their neighbours, and a few at random.

    Zaheer et al., "Big Bird: Transformers for Longer Sequences" (arXiv:2007.14062), the block form
    of appendix D: the first and the last block see everything too.

    Args:
        num_tokens: A multiple of `block`.
        block: Tokens in a block.
        random_blocks: For each block but the first and the last, the blocks it sees besides.

    Raises:
        ValueError: The sizes do not fit together.
    """
    _check_positive(block=block)
    num_blocks, rest = divmod(num_tokens, block)
    if rest or len(random_blocks) != num_blocks - 2:
        raise ValueError(
            f"num_tokens is {num_tokens} and random_blocks has {len(random_blocks)} entries; "
            f"expected a multiple of block ({block}), and an entry for each block but two"
        )
    sees = centred_window(num_blocks, reach=1)
    sees |= global_tokens(num_blocks, positions=(0, num_blocks - 1))
    for row, columns in enumerate(random_blocks, start=1):
        sees[row, list(columns)] = True
    return sees.repeat_interleave(block, 0).repeat_interleave(block, 1)


def _distance(num_tokens: int) -> Tensor:
    """How far before each query (row) each key (column) stands; negative behind it."""
    position = torch.arange(num_tokens)
    return position[:, None] - position


def _check_positive(**sizes: int) -> None:
    for name, size in sizes.items():
        if size < 1:
            raise ValueError(f"{name} is {size}; expected at least 1")
