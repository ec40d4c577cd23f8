"""Patterns against the masks and the sparse layers of transformers, and against loops."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from torch import Tensor, nn
from torch.nn.attention.flex_attention import create_mask
from transformers.masking_utils import and_masks, causal_mask_function, or_masks
from transformers.masking_utils import sliding_window_overlay as transformers_window
from transformers.models.big_bird.modeling_big_bird import BigBirdBlockSparseAttention, BigBirdModel
from transformers.models.longformer.modeling_longformer import LongformerSelfAttention

from model.attention import scaled_dot_product_attention
from model.attention_forms import patterns

HIDDEN, HEADS = 16, 2


def evaluated(mask_function, num_tokens: int) -> Tensor:
    """What a mask function of (batch, head, query, key) shows, as torch evaluates it."""
    return create_mask(mask_function, 1, 1, num_tokens, num_tokens, device="cpu")[0, 0]


def looped(num_tokens: int, sees) -> Tensor:
    """One pair at a time."""
    rows = [[sees(i, j) for j in range(num_tokens)] for i in range(num_tokens)]
    return torch.tensor(rows)


def heads_of(layer: nn.Module, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Queries, keys and values (H, T, D) of a layer of transformers."""
    return tuple(
        each(x[0]).view(len(x[0]), HEADS, -1).transpose(0, 1)
        for each in (layer.query, layer.key, layer.value)
    )


def attended(layer: nn.Module, x: Tensor, mask: Tensor) -> Tensor:
    """What our reference makes of that layer's heads under a mask: (T, C)."""
    out, _ = scaled_dot_product_attention(*heads_of(layer, x), mask=mask)
    return out.transpose(0, 1).flatten(1)


@pytest.mark.parametrize("window", [1, 4, 30])
def test_a_causal_window_is_transformers(window: int):
    """The mask function of Mistral in transformers shows the same keys."""
    wanted = evaluated(and_masks(transformers_window(window), causal_mask_function), 20)
    assert torch.equal(patterns.causal_window(20, window=window), wanted)


@pytest.mark.parametrize("sinks", [0, 3])
def test_sinks_join_a_causal_window(sinks: int):
    """Transformers' window, or the first tokens, and nothing later."""

    def is_sink(_batch, _head, _query, key):
        return key < sinks

    wanted = evaluated(
        and_masks(causal_mask_function, or_masks(transformers_window(5), is_sink)), 20
    )
    assert torch.equal(patterns.attention_sinks(20, window=5, sinks=sinks), wanted)


@pytest.mark.parametrize("positions", [(), (0, 9)])
def test_window_and_global_tokens_are_longformers(positions: tuple[int, ...]):
    """A Longformer layer whose global projections are its others attends as our mask says."""
    config = SimpleNamespace(
        hidden_size=HIDDEN,
        num_attention_heads=HEADS,
        attention_probs_dropout_prob=0.0,
        attention_window=[8],
    )
    layer = LongformerSelfAttention(config, 0).eval()
    for name in ("query", "key", "value"):
        getattr(layer, f"{name}_global").load_state_dict(getattr(layer, name).state_dict())
    x = torch.randn(1, 32, HIDDEN)
    kinds = torch.zeros(1, 32)  # below 0 is hidden, 0 local, above 0 global
    kinds[0, list(positions)] = 10_000.0
    (wanted, *_) = layer(
        x,
        attention_mask=kinds,
        is_index_masked=kinds < 0,
        is_index_global_attn=kinds > 0,
        is_global_attn=bool(positions),
    )
    mask = patterns.centred_window(32, reach=4) | patterns.global_tokens(32, positions=positions)
    torch.testing.assert_close(attended(layer, x, mask), wanted[0], atol=1e-5, rtol=1e-5)


def test_blocks_at_random_are_big_birds(monkeypatch: pytest.MonkeyPatch):
    """A BigBird layer attends as our mask of the blocks that it drew, in every head its own."""
    block, num_tokens = 4, 48
    config = SimpleNamespace(
        max_position_embeddings=num_tokens,
        hidden_size=HIDDEN,
        num_attention_heads=HEADS,
        num_random_blocks=1,
        block_size=block,
        use_bias=True,
    )
    layer = BigBirdBlockSparseAttention(config, seed=3).train()  # it draws in training only
    drawn = []
    draw = layer._bigbird_block_rand_mask_with_head

    def record(*args, **kwargs):
        drawn.append(draw(*args, **kwargs))
        return drawn[-1]

    monkeypatch.setattr(layer, "_bigbird_block_rand_mask_with_head", record)
    x = torch.randn(1, num_tokens, HIDDEN)
    blocked, band, rows, columns = BigBirdModel.create_masks_for_block_sparse_attn(
        torch.ones(1, num_tokens), block
    )
    wanted, _ = layer(x, band, rows, columns, blocked, blocked)
    (of_heads,) = drawn
    mask = torch.stack(
        [patterns.big_bird(num_tokens, block=block, random_blocks=each) for each in of_heads]
    )
    assert not torch.equal(mask[0], mask[1])
    torch.testing.assert_close(attended(layer, x, mask), wanted[0], atol=1e-5, rtol=1e-5)


def test_a_stride_is_what_the_paper_says():
    """The last `stride` keys and those whose distance is a multiple of it; two steps reach all."""
    mask = patterns.strided(30, stride=5)
    assert torch.equal(mask, looped(30, lambda i, j: j <= i and (i - j < 5 or (i - j) % 5 == 0)))
    two_steps = (mask.float() @ mask.float()) > 0
    assert torch.equal(two_steps, torch.ones(30, 30).tril().bool())


def test_local_blocks_see_themselves_and_the_one_before():
    """A token sees between block + 1 and 2 x block keys once there are two blocks."""
    mask = patterns.block_local(12, block=4)
    assert torch.equal(mask, looped(12, lambda i, j: j <= i and i // 4 - j // 4 <= 1))
    assert mask[8:].sum(dim=-1).tolist() == [5, 6, 7, 8]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: patterns.causal_window(4, window=0), "window is 0; expected at least 1"),
        (lambda: patterns.strided(4, stride=0), "stride is 0; expected at least 1"),
        (lambda: patterns.block_local(4, block=-1), "block is -1; expected at least 1"),
        (lambda: patterns.big_bird(9, block=2, random_blocks=[]), "num_tokens is 9"),
    ],
)
def test_sizes_that_cannot_be_are_refused(make, message: str):
    """The message names the size and the value."""
    with pytest.raises(ValueError, match=message):
        make()
