"""SparseMLP: a mixture of experts, each token through the few that its router chooses.

Router scores are computed in float32, so that rounding does not change who is chosen. What the
experts of a row add is summed in ascending order of the experts, whoever else is in the batch.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from model.config import ExpertsConfig
from model.layers import GatedMLP, Linear


class SparseMLP(nn.Module):
    """sum over the chosen experts of weight x expert(x), plus a shared expert in some families.

    Args:
        hidden_size: C.
        experts: How many there are, and how they are chosen.
        activation: Of each expert.
        dtype: Of the experts' matrices; the router's is float32.
    """

    def __init__(
        self, hidden_size: int, experts: ExpertsConfig, *, activation: str, dtype: torch.dtype
    ) -> None:
        super().__init__()
        self.config = experts

        def mlp(intermediate_size: int) -> GatedMLP:
            return GatedMLP(
                hidden_size,
                intermediate_size,
                activation=activation,
                bias=experts.bias,
                dtype=dtype,
            )

        self.gate = Linear(
            hidden_size, experts.count, bias=experts.router_bias, dtype=torch.float32
        )
        self.experts = nn.ModuleList(mlp(experts.intermediate_size) for _ in range(experts.count))
        shared = experts.shared_intermediate_size
        self.shared_expert = None if shared is None else mlp(shared)
        self.shared_expert_gate = (
            None if shared is None else Linear(hidden_size, 1, bias=False, dtype=torch.float32)
        )

    def forward(self, x: Tensor) -> Tensor:
        """Map x (N, C) to (N, C)."""
        chosen, weights = self.route(x)
        out = torch.zeros_like(x)
        for expert in torch.unique(chosen).tolist():
            rows, slots = torch.where(chosen == expert)
            added = self.experts[expert](x[rows]) * weights[rows, slots, None]
            out = out.index_add(0, rows, added.to(x.dtype))
        if self.shared_expert is not None and self.shared_expert_gate is not None:
            share = torch.sigmoid(self.shared_expert_gate(x.float())).to(x.dtype)
            out = out + share * self.shared_expert(x)
        return out

    def route(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Choose experts for x (N, C): their indices (N, K) and float32 weights (N, K)."""
        scores: Tensor = self.gate(x.float())
        # Stable: among equal scores the lower index is chosen.
        order = scores.sort(dim=-1, descending=True, stable=True)
        best, chosen = (part[:, : self.config.per_token] for part in order)
        if self.config.renormalize:
            return chosen, best.softmax(dim=-1)
        return chosen, scores.softmax(dim=-1).gather(-1, chosen)
