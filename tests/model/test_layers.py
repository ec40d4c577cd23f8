"""The layers against torch.nn and transformers, and what they keep in which dtype."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import (
    LlamaMLP,
    LlamaRMSNorm,
    LlamaRotaryEmbedding,
    apply_rotary_pos_emb,
)

from model.layers import (
    MLP,
    Embedding,
    GatedMLP,
    LayerNorm,
    Linear,
    RMSNorm,
    RotaryEmbedding,
)
from model.rotary import RotaryConfig

LLAMA = LlamaConfig(
    hidden_size=32, intermediate_size=40, num_attention_heads=2, mlp_bias=True, rope_theta=500.0
)


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def copy_weights(target: nn.Module, source: nn.Module) -> None:
    """Give both modules the same noise; their parameters have the same names."""
    with torch.no_grad():
        for i, parameter in enumerate(source.parameters()):
            parameter.copy_(random(*parameter.shape, seed=i))
    target.load_state_dict(source.state_dict(), strict=True)


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (Linear(8, 5, bias=True, dtype=torch.float32), nn.Linear(8, 5)),
        (Linear(8, 5, bias=False, dtype=torch.float32), nn.Linear(8, 5, bias=False)),
        (LayerNorm(8, eps=1e-3), nn.LayerNorm(8, eps=1e-3)),
        (RMSNorm(8, eps=1e-3), LlamaRMSNorm(8, eps=1e-3)),
        (
            GatedMLP(32, 40, activation="silu", bias=True, dtype=torch.float32),
            LlamaMLP(LLAMA),
        ),
    ],
    ids=["linear-bias", "linear", "layer-norm", "rms-norm", "gated-mlp"],
)
def test_layers_equal_the_known_ones(ours: nn.Module, theirs: nn.Module) -> None:
    """Parameters have the same names and the outputs are the same."""
    copy_weights(ours, theirs)
    x = random(6, next(theirs.parameters()).shape[-1], seed=9)
    torch.testing.assert_close(ours(x), theirs(x), rtol=1e-5, atol=1e-4)


def test_mlp_is_two_maps_around_an_activation() -> None:
    """The plain MLP is down(gelu(up(x))), with its biases."""
    mlp = MLP(6, 9, activation="gelu_tanh", bias=True, dtype=torch.float32)
    known = nn.Sequential(nn.Linear(6, 9), nn.GELU(approximate="tanh"), nn.Linear(9, 6))
    with torch.no_grad():
        for i, parameter in enumerate(known.parameters()):
            parameter.copy_(random(*parameter.shape, seed=i))
    mlp.up_proj.load_state_dict(known[0].state_dict())
    mlp.down_proj.load_state_dict(known[2].state_dict())
    torch.testing.assert_close(mlp(random(3, 6)), known(random(3, 6)))


def test_rotary_embedding_equals_transformers() -> None:
    """Queries turned by the tables are those of transformers at the same positions."""
    positions = torch.tensor([0, 5, 999, 17])
    heads = random(4, 2, 16)
    rotary = RotaryEmbedding(RotaryConfig(theta=500.0), head_dim=16, num_positions=1000)
    cos, sin = LlamaRotaryEmbedding(LLAMA)(heads, positions[None])
    wanted, _ = apply_rotary_pos_emb(heads[None], heads[None], cos, sin, unsqueeze_dim=2)
    torch.testing.assert_close(rotary(heads, positions), wanted[0], rtol=0, atol=1e-6)


def test_rotary_tables_are_no_part_of_a_checkpoint_and_real_on_meta() -> None:
    """The tables are not in the state, exist without memory for weights, and end in time."""
    with torch.device("meta"):
        rotary = RotaryEmbedding(RotaryConfig(theta=500.0), head_dim=16, num_positions=10)
    assert not rotary.state_dict()
    assert rotary.cos.device.type == "cpu"
    assert rotary.cos.shape == rotary.sin.shape == (10, 8)
    with pytest.raises(IndexError):
        rotary(random(1, 2, 16), torch.tensor([10]))


def test_matrices_are_narrow_and_the_rest_is_not() -> None:
    """Only matrices take the model's dtype; biases and norm weights stay float32."""
    mlp = GatedMLP(6, 8, activation="silu", bias=True, dtype=torch.bfloat16)
    for name, parameter in mlp.named_parameters():
        wanted = torch.bfloat16 if name.endswith("weight") else torch.float32
        assert parameter.dtype == wanted
    assert Embedding(4, 6, dtype=torch.bfloat16).weight.dtype == torch.bfloat16
    assert RMSNorm(6, eps=1e-6).weight.dtype == torch.float32
