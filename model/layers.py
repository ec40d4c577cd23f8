"""The parts of a Transformer layer that are not attention: linear maps, norms, rotary, MLPs.

Each is a module with the parameter names of the checkpoint and one call into ops.py.
Matrices have the model's dtype; norm weights and all biases stay float32.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from model import ops
from model.rotary import RotaryConfig


def _randomise(weight: Tensor, *, std: float) -> None:
    """Give a new weight noise; on the meta device that would import torch's compiler: seconds."""
    if not weight.is_meta:
        nn.init.normal_(weight, std=std)


class Linear(nn.Module):
    """y = x W^T + b, with weight (out, in)."""

    weight: ops.Matrix

    def __init__(
        self, in_features: int, out_features: int, *, bias: bool, dtype: torch.dtype
    ) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(out_features, in_features, dtype=dtype))
        self.bias = nn.Parameter(torch.zeros(out_features)) if bias else None
        _randomise(self.weight, std=in_features**-0.5)

    def forward(self, x: Tensor) -> Tensor:
        """Map x (..., in) to (..., out)."""
        return ops.linear(x, self.weight, self.bias)


class Embedding(nn.Module):
    """A vector of size C for each of a number of ids."""

    weight: ops.Matrix

    def __init__(self, num_embeddings: int, hidden_size: int, *, dtype: torch.dtype) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(num_embeddings, hidden_size, dtype=dtype))
        _randomise(self.weight, std=0.02)

    def forward(self, ids: Tensor) -> Tensor:
        """Look up ids (N,): (N, C) activations."""
        return ops.embedding(ids, self.weight)


class RMSNorm(nn.Module):
    """Root-mean-square norm; the weight multiplies as it is stored."""

    def __init__(self, size: int, *, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        """Normalise the last axis of x (..., size)."""
        return ops.rms_norm(x, self.weight, eps=self.eps)


class LayerNorm(nn.Module):
    """Norm to mean 0 and variance 1, with weight and bias."""

    def __init__(self, size: int, *, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.bias = nn.Parameter(torch.zeros(size))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        """Normalise the last axis of x (..., size)."""
        return ops.layer_norm(x, self.weight, self.bias, eps=self.eps)


class RotaryEmbedding(nn.Module):
    """Turns queries and keys by their positions, from tables of cosines and sines.

    The tables are made from the configuration, never stored in a checkpoint. They are real
    tensors on the CPU even when the module is built on the meta device; `.to(device)` moves them
    like any buffer, and after `.to_empty(device)` they are made anew by `reset_tables`.
    """

    cos: Tensor
    sin: Tensor

    def __init__(self, config: RotaryConfig, *, head_dim: int, num_positions: int) -> None:
        super().__init__()
        self.config = config
        self.head_dim = head_dim
        self.num_positions = num_positions
        self.reset_tables(torch.device("cpu"))

    def reset_tables(self, device: torch.device) -> None:
        """Make the tables, each (num_positions, D/2) float32, on a device."""
        frequencies = self.config.inverse_frequencies(self.head_dim)
        positions = torch.arange(self.num_positions, dtype=torch.float32, device="cpu")
        angles = torch.outer(positions, frequencies)
        magnitude = self.config.attention_factor
        self.register_buffer("cos", (angles.cos() * magnitude).to(device), persistent=False)
        self.register_buffer("sin", (angles.sin() * magnitude).to(device), persistent=False)

    def forward(self, x: Tensor, positions: Tensor) -> Tensor:
        """Turn x (N, H, D), whose rows stand at positions (N,)."""
        return ops.rotary(x, positions, cos=self.cos, sin=self.sin)


class GatedMLP(nn.Module):
    """down(act(gate(x)) * up(x)): the MLP of llama and its kin."""

    def __init__(
        self,
        hidden_size: int,
        intermediate_size: int,
        *,
        activation: str,
        bias: bool,
        dtype: torch.dtype,
    ) -> None:
        super().__init__()
        self.gate_proj = Linear(hidden_size, intermediate_size, bias=bias, dtype=dtype)
        self.up_proj = Linear(hidden_size, intermediate_size, bias=bias, dtype=dtype)
        self.down_proj = Linear(intermediate_size, hidden_size, bias=bias, dtype=dtype)
        self.activation = activation

    def forward(self, x: Tensor) -> Tensor:
        """Map x (N, C) to (N, C)."""
        gate, up = self.gate_proj(x), self.up_proj(x)
        hidden: Tensor = self.down_proj(ops.gated_activation(gate, up, kind=self.activation))
        return hidden


class MLP(nn.Module):
    """down(act(up(x))): the MLP of gpt2."""

    def __init__(
        self,
        hidden_size: int,
        intermediate_size: int,
        *,
        activation: str,
        bias: bool,
        dtype: torch.dtype,
    ) -> None:
        super().__init__()
        self.up_proj = Linear(hidden_size, intermediate_size, bias=bias, dtype=dtype)
        self.down_proj = Linear(intermediate_size, hidden_size, bias=bias, dtype=dtype)
        self.activation = activation

    def forward(self, x: Tensor) -> Tensor:
        """Map x (N, C) to (N, C)."""
        hidden: Tensor = self.down_proj(ops.activate(self.up_proj(x), kind=self.activation))
        return hidden
