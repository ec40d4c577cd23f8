"""plan_memory: the largest pass and the cache beside it, from what the device has left.

On a CPU the cache takes a share of what is free. On a GPU the largest passes are run first on a
pool of next to nothing, and the cache gets what they leave.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from cache.pool import KVCachePool
from cache.window import AttentionWindow
from model.executors.choice import ExecutorFactory
from model.executors.executor import PassLimits
from model.formats.loader import LoadedModel
from server.config import EngineConfig
from server.engine.drafting.draft_budget import MAX_DRAFTS_PER_STEP
from server.engine.planning.cache_plan import AUTO_SHARE, CachePlan, format_bytes, plan_cache
from server.engine.planning.resources import available_memory
from server.engine.planning.window_plan import longest_text
from server.errors import ConfigurationError

GPU_SEATS = 256
"""Requests that run at once on a GPU, unless told otherwise."""
GPU_STEP_TOKENS = 8192
"""Tokens of one step on a GPU, unless told otherwise."""
GPU_SHARE = 0.92
"""The part of a GPU's free memory that is planned with; the rest is for what nobody can foresee."""


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """How memory is divided."""

    cache: CachePlan
    limits: PassLimits
    """The largest pass, with what a window adds to it."""
    max_num_seqs: int
    """Requests that run at once."""
    max_num_batched_tokens: int
    """Tokens of them in one step."""


def plan_memory(
    loaded: LoadedModel,
    factory: ExecutorFactory,
    config: EngineConfig,
    *,
    window: AttentionWindow | None = None,
    draft_bytes_per_token: int = 0,
) -> MemoryPlan:
    """Decide how large passes and the cache are.

    Args:
        loaded: The model.
        factory: Makes what runs it.
        config: What was asked for.
        window: With one, all who run may have to compute their sinks anew in one pass.
        draft_bytes_per_token: What a token takes beside it in the cache of a model that guesses.

    Raises:
        ConfigurationError: What was asked for does not fit.
    """
    model = loaded.config
    on_gpu = loaded.device.type == "cuda"
    limits = PassLimits(
        max_num_seqs=_unless_given(config, "max_num_seqs", GPU_SEATS, on_gpu=on_gpu),
        max_num_batched_tokens=_unless_given(
            config, "max_num_batched_tokens", GPU_STEP_TOKENS, on_gpu=on_gpu
        ),
        max_model_len=config.max_model_len or model.max_position_embeddings,
        num_blocks=2,
        block_size=config.block_size,
        max_drafts=0 if config.speculative == "off" else MAX_DRAFTS_PER_STEP,
    )
    available, share = available_memory(), AUTO_SHARE
    if on_gpu:
        available, share = _left_on_gpu(loaded, factory.measure_peak(limits), config), 1.0
    plan = plan_cache(
        weights_bytes=loaded.num_bytes,
        bytes_per_token=KVCachePool.bytes_per_token(
            model.num_layers, model.num_kv_heads, model.head_dim, factory.cache_dtype
        )
        + draft_bytes_per_token,
        memory=config.kv_cache_memory,
        available=available,
        share=share,
        block_size=config.block_size,
        context=longest_text(window, model),
        max_model_len=config.max_model_len,
        max_num_seqs=limits.max_num_seqs,
        max_held_tokens=window.capacity if window else None,
    )
    seats, tokens = limits.max_num_seqs, limits.max_num_batched_tokens
    moved = window.sinks if window and window.moves_sinks else 0
    limits = replace(
        limits,
        max_num_seqs=seats * (2 if moved else 1),
        max_num_batched_tokens=tokens + seats * moved,
        max_model_len=plan.max_held_tokens,
        num_blocks=plan.num_blocks + 1,  # and the padding block
    )
    return MemoryPlan(plan, limits, seats, tokens)


def _left_on_gpu(loaded: LoadedModel, peak: int, config: EngineConfig) -> int:
    """Bytes for the cache beside the weights and what the largest passes take."""
    torch.cuda.empty_cache()
    left = int(torch.cuda.mem_get_info(loaded.device)[0] * GPU_SHARE) - peak
    wanted = config.kv_cache_memory
    if wanted is not None and wanted > left:
        raise ConfigurationError(
            f"--kv-cache-memory is {format_bytes(wanted)}, but beside the weights and "
            f"{format_bytes(peak)} for the largest step {loaded.device} has "
            f"{format_bytes(max(0, left))} left: use less, or a smaller --max-num-batched-tokens"
        )
    return max(0, left)


def _unless_given(config: EngineConfig, name: str, on_a_gpu: int, *, on_gpu: bool) -> int:
    """An option's value, or what is better on a GPU than its default."""
    value: int = getattr(config, name)
    return on_a_gpu if on_gpu and name not in config.model_fields_set else value
