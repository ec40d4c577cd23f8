"""EngineInfo: what the HTTP side may know about the loaded model; plain data, frozen."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from model.cost import ForwardCost


@dataclass(frozen=True, kw_only=True, slots=True)
class EngineCounts:
    """How busy the engine is, and how often it had to take a request's memory away."""

    num_running: int = 0
    num_waiting: int = 0
    cache_usage: float = 0.0
    """The held part of the KV cache, from 0 to 1."""
    num_preemptions: int = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class EngineInfo:
    """Facts that do not change while the engine lives."""

    model_name: str
    """The id under which clients ask for the model."""
    root: str
    """Where it was loaded from."""
    architecture: str
    dtype: str
    device: str
    num_parameters: int
    vocab_size: int
    max_model_len: int
    """The longest sequence, prompt and answer together."""
    num_cache_tokens: int
    """Tokens that fit in the KV cache."""
    block_size: int
    num_threads: int
    num_layers: int
    num_heads: int
    """Query heads of a layer."""
    cost: ForwardCost
    """FLOPs and bytes of a forward pass."""
    kernels: str = "torch"
    """Compute backend: the native kernels' instruction set, or torch."""
    eos_token_ids: frozenset[int] = frozenset()
    default_params: Mapping[str, float | int] = field(default_factory=dict)
    """Sampling defaults that the checkpoint recommends, such as temperature and top_p."""
