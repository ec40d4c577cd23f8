"""The embedding against transformers' sinusoids."""

from __future__ import annotations

import pytest
import torch
from transformers.models.fsmt.modeling_fsmt import SinusoidalPositionalEmbedding

from model.attention_forms.token_embedding import TokenEmbedding, sinusoids


def test_positions_are_the_sinusoids_of_the_paper():
    """The first pair turns once in 2 pi tokens, the last once in nearly 20,000 pi."""
    table = sinusoids(50, 8)
    position = torch.arange(50)
    torch.testing.assert_close(table[:, 0], position.float().sin())
    torch.testing.assert_close(table[:, 7], (position * 10_000 ** (-6 / 8)).cos())


def test_transformers_has_the_same_sines_in_another_order():
    """FSMT's table, which spaces frequencies from 1 to 1/10000 inclusive, has the same column 0."""
    theirs = SinusoidalPositionalEmbedding.get_embedding(50, 8, padding_idx=None)
    torch.testing.assert_close(sinusoids(50, 8)[:, 0], theirs[:, 0].float())


def test_dropout_happens_in_training_only():
    """In training about half the sums are zero and the others doubled; in evaluation none is."""
    embedding = TokenEmbedding(11, 64, dropout=0.5)
    ids = torch.arange(11)[None]
    whole = embedding.eval()(ids)
    assert torch.equal(embedding(ids), whole)
    trained = embedding.train()(ids)
    dropped = trained == 0
    assert 0.4 < dropped.float().mean().item() < 0.6
    torch.testing.assert_close(trained[~dropped], 2 * whole[~dropped])


def test_odd_sizes_are_refused():
    """Sines and cosines come in pairs."""
    with pytest.raises(ValueError, match="hidden_size is 7; expected an even number"):
        TokenEmbedding(11, 7)
