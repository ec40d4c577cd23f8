"""Recorded attention is what the model does: its rows are distributions, its output the same."""

from __future__ import annotations

import checkpoints
import pytest
import torch
from paged import PagedCache
from torch import Tensor

from model.attention_recorder import MAX_TOKENS, record_attention
from model.formats.loader import load_model

LIKE = torch.zeros(1)
TOKENS = [(17 * i + i * i) % 256 for i in range(40)]


def record(model, token_ids, *, layer=None, head=None) -> tuple[Tensor, Tensor]:
    return record_attention(model, token_ids, layer=layer, head=head, like=LIKE)


@pytest.mark.parametrize("name", sorted(checkpoints.RANDOM_CONFIGS))
def test_weights_equal_transformers(checkpoint, name):
    """Every layer and head has the weights that transformers computes eagerly."""
    path = checkpoint(name)
    model = load_model(path).model
    reference = checkpoints.reference(path)
    reference.set_attn_implementation("eager")
    expected = reference(torch.tensor([TOKENS]), output_attentions=True).attentions
    for layer in range(model.config.num_layers):
        for head in range(model.config.num_heads):
            weights, _ = record(model, TOKENS, layer=layer, head=head)
            torch.testing.assert_close(weights, expected[layer][0, head], atol=2e-5, rtol=0)


@pytest.mark.parametrize("name", sorted(checkpoints.RANDOM_CONFIGS))
def test_output_equals_the_fast_path(checkpoint, name):
    """Logits of the recording pass equal those of the serving backend over its paged cache."""
    model = load_model(checkpoint(name)).model
    served = PagedCache.for_model(model).step(model, {"text": TOKENS})["text"]
    recorded = model.logits(record(model, TOKENS)[1]).log_softmax(-1)
    torch.testing.assert_close(recorded, served, atol=1e-4, rtol=0)


@pytest.mark.parametrize("layer", [None, 0, 5])
@pytest.mark.parametrize("head", [None, 3])
def test_rows_are_distributions(checkpoint, layer, head):
    """Each row sums to 1 and is zero above the diagonal, averaged or not."""
    weights, _ = record(load_model(checkpoint("rand-gemma3")).model, TOKENS, layer=layer, head=head)
    torch.testing.assert_close(weights.sum(dim=-1), torch.ones(len(TOKENS)))
    assert not weights.triu(diagonal=1).any()


def test_windows_are_bands(checkpoint):
    """A local layer sees nothing beyond its window, a global one all the way back."""
    model = load_model(checkpoint("rand-gemma3")).model
    windows = model.config.windows
    local, whole = windows.index(16), windows.index(None)
    assert not record(model, TOKENS, layer=local)[0].tril(diagonal=-16).any()
    assert record(model, TOKENS, layer=whole)[0].tril(diagonal=-16).any()


def test_averages_are_those_of_the_single_maps(checkpoint):
    """No layer or no head means the mean of all of them."""
    model = load_model(checkpoint("rand-llama-tied")).model
    layers, heads = range(model.config.num_layers), range(model.config.num_heads)
    single = {(i, j): record(model, TOKENS, layer=i, head=j)[0] for i in layers for j in heads}
    for layer, head in ((None, None), (1, None), (None, 2)):
        chosen = [w for (i, j), w in single.items() if layer in (None, i) and head in (None, j)]
        weights, _ = record(model, TOKENS, layer=layer, head=head)
        torch.testing.assert_close(weights, torch.stack(chosen).mean(dim=0))


def test_one_token_sees_itself(checkpoint):
    """The shortest text is a square of one."""
    weights, _ = record(load_model(checkpoint("rand-gpt2")).model, [7])
    assert weights.tolist() == [[1.0]]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"token_ids": []}, "the number of tokens is 0; expected 1 to 256"),
        ({"token_ids": [1] * (MAX_TOKENS + 1)}, "is 257; expected 1 to 256"),
        ({"layer": 3}, "layer is 3; expected 0 to 2"),
        ({"head": -1}, "head is -1; expected 0 to 3"),
    ],
)
def test_bounds_are_named(checkpoint, arguments, words):
    """What is out of bounds is refused with the bound and the value."""
    model = load_model(checkpoint("rand-llama-tied")).model
    defaults = {"token_ids": TOKENS, "layer": None, "head": None}
    with pytest.raises(ValueError, match=words):
        record_attention(model, **(defaults | arguments), like=LIKE)
