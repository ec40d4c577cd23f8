"""LoadedEngine: an engine with what belongs to its model, and how it is all put together.

Everything is built here, in one place, and passed in; what was built does not know this file.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch

from cache.manager import KVCacheManager
from cache.pool import KVCachePool
from model.attention_recorder import AttentionRecording
from model.chat_template import ChatTemplate
from model.cost import ForwardCost
from model.executors.choice import ExecutorFactory
from model.executors.executor import PassLimits
from model.formats.loader import LoadedModel, Progress, load_model, resolve_model
from model.native_library import NativeKernels, NativeStatus, load_kernels
from model.tokenizer import Tokenizer
from server.config import EngineConfig
from server.engine.drafting.draft_budget import DraftBudget
from server.engine.drafting.draft_model import DraftModel, load_draft_model
from server.engine.drafting.drafter import Drafter, NgramDrafter
from server.engine.engine import Engine
from server.engine.engine_info import EngineInfo
from server.engine.grammars.grammar import GrammarCompiler
from server.engine.output_processor import OutputProcessor
from server.engine.planning.cache_plan import CachePlan
from server.engine.planning.memory_plan import plan_memory
from server.engine.planning.pace import Pace
from server.engine.planning.resources import cpu_count
from server.engine.planning.window_plan import longest_text, plan_window
from server.engine.runner import ModelRunner
from server.engine.sampler import Chooser, Sampler
from server.engine.sampling.token_masks import TokenMasks
from server.engine.scheduler import Scheduler
from server.engine.scheduler_observer import TimelineObserver
from server.engine.timeline import Timeline
from server.errors import ConfigurationError
from server.plural import counted

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class LoadedEngine:
    """An engine with what the event loop needs of its model."""

    engine: Engine
    info: EngineInfo
    tokenizer: Tokenizer
    chat_template: ChatTemplate | None
    timeline: Timeline
    """What its requests waited for and did."""
    grammars: GrammarCompiler
    pool: KVCachePool
    """What the cache holds."""
    on_stop: Callable[[], None] = lambda: None
    """Called by the engine thread when it has ended."""


def build_engine(config: EngineConfig, *, progress: Progress | None = None) -> LoadedEngine:
    """Load the model, plan and allocate its cache, and warm up.

    Args:
        config: What to load and how to run it.
        progress: Told how much of the weights is loaded.

    Raises:
        ConfigurationError: The options do not fit together, the model or this machine.
        ModelError: The checkpoint cannot be found, read or served.
    """
    num_threads = config.threads or cpu_count()
    kernels, status = load_kernels(config.kernels, threads=num_threads)
    torch.set_num_threads(num_threads)
    loaded = _load(config, kernels, progress)
    if loaded.device.type == "cpu":
        threads = counted(num_threads, "thread")
        logger.info("kernels: %s (%s), %s", status.path, status.reason, threads)
    if loaded.native:  # torch does little then, and its waiting threads would take processors
        torch.set_num_threads(1)
    draft = load_draft_model(config, served=loaded, kernels=kernels)
    window = plan_window(config, loaded.config, device=loaded.device.type)
    if window is not None and loaded.native is None:  # the kernels need no tables
        loaded.model.extend_tables(config.max_model_len or longest_text(window, loaded.config))
    factory = ExecutorFactory(loaded, cache_dtype=_cache_dtype(loaded, config))
    memory = plan_memory(
        loaded,
        factory,
        config,
        window=window,
        draft_bytes_per_token=draft.bytes_per_token if draft else 0,
    )
    plan, limits = memory.cache, memory.limits
    logger.info(plan.describe())
    executor = factory.make(limits)
    manager = KVCacheManager(
        num_blocks=limits.num_blocks,
        block_size=limits.block_size,
        prefix_caching=config.prefix_caching,
    )
    timeline = Timeline()
    cost = ForwardCost.of(
        loaded.config,
        weights_bytes=loaded.num_bytes,
        cache_bytes_per_token=plan.bytes_per_token,
    )
    pace = _pace(loaded, cost)
    engine = Engine(
        Scheduler(
            manager,
            observer=TimelineObserver(timeline, prefix_caching=manager.prefix_caching),
            pace=pace,
            window=window,
            drafter=_drafter(config, pace, draft=draft, served=loaded, limits=limits),
            max_num_seqs=memory.max_num_seqs,
            max_num_batched_tokens=memory.max_num_batched_tokens,
            max_model_len=plan.max_model_len,
        ),
        ModelRunner(executor),
        _sampler(loaded, kernels, uses_triton=factory.uses_triton),
        output_processor=OutputProcessor(loaded.tokenizer, loaded.eos_token_ids),
        record_attention=partial(
            AttentionRecording,
            loaded.model,
            like=torch.empty(0, dtype=loaded.dtype, device=loaded.device),
        ),
        token_masks=TokenMasks(loaded.config.vocab_size),
    )
    engine.warm_up()
    timeline.clear()
    return LoadedEngine(
        engine=engine,
        info=_describe(loaded, plan, cost, config=config, status=status),
        tokenizer=loaded.tokenizer,
        chat_template=loaded.chat_template,
        timeline=timeline,
        pool=executor.pool,
        grammars=_grammars(loaded),
    )


def _load(
    config: EngineConfig, kernels: NativeKernels | None, progress: Progress | None
) -> LoadedModel:
    """Load the model that is served, and say what of it will not be."""
    loaded = load_model(
        resolve_model(config.model),
        dtype=config.dtype,
        device=config.device,
        kernels=kernels,
        quantize=config.quantize,
        context=config.max_model_len,
        progress=progress,
    )
    if loaded.chat_template is not None and not loaded.chat_template.shows_users:
        logger.warning("the chat template does not show what users say: chats are refused")
    return loaded


def _grammars(loaded: LoadedModel) -> GrammarCompiler:
    return GrammarCompiler(
        loaded.tokenizer,
        vocab_size=loaded.config.vocab_size,
        eos_token_ids=loaded.eos_token_ids,
    )


def _sampler(loaded: LoadedModel, kernels: NativeKernels | None, *, uses_triton: bool) -> Sampler:
    """What chooses tokens, computed by what runs the model."""
    return Sampler(
        loaded.config.vocab_size,
        loaded.device,
        eos_token_ids=loaded.eos_token_ids,
        kernels=kernels if loaded.native else None,
        chooser=_device_chooser(loaded) if uses_triton else None,
    )


def _cache_dtype(loaded: LoadedModel, config: EngineConfig) -> torch.dtype:
    """The type of keys and values that was asked for, if what runs the model can keep it."""
    if config.kv_cache_dtype == "auto":
        return loaded.dtype
    dtype: torch.dtype = getattr(torch, config.kv_cache_dtype)
    if loaded.native is None and dtype != loaded.dtype:
        raise ConfigurationError(
            f"--kv-cache-dtype {config.kv_cache_dtype} needs the native kernels; on the torch path "
            f"the cache has the model's own type, {str(loaded.dtype).removeprefix('torch.')}"
        )
    return dtype


def _device_chooser(loaded: LoadedModel) -> Chooser:
    """What chooses tokens on a GPU."""
    from server.engine.sampling.device_chooser import DeviceChooser  # noqa: PLC0415 - Triton is an optional extra

    return DeviceChooser(loaded.device, loaded.config.vocab_size)


def _drafter(
    config: EngineConfig,
    pace: Pace,
    *,
    draft: DraftModel | None,
    served: LoadedModel,
    limits: PassLimits,
) -> Drafter | None:
    """What guesses tokens, if anything does."""
    if config.speculative == "off":
        return None
    if draft is None:
        return NgramDrafter(DraftBudget(pace.step_tokens))
    share = draft.loaded.num_bytes / served.num_bytes
    return draft.drafter(limits, DraftBudget(pace.step_tokens, guess_share=share))


def _pace(loaded: LoadedModel, cost: ForwardCost) -> Pace:
    """How far prompts may stretch a step, by what computes it."""
    path = "torch" if loaded.native is None else "native"
    return Pace.of(cost, path="cuda" if loaded.device.type == "cuda" else path)


def _describe(
    loaded: LoadedModel,
    plan: CachePlan,
    cost: ForwardCost,
    *,
    config: EngineConfig,
    status: NativeStatus,
) -> EngineInfo:
    return EngineInfo(
        model_name=config.served_model_name or loaded.name,
        root=str(loaded.path),
        architecture=loaded.config.architecture,
        dtype=str(loaded.dtype).removeprefix("torch."),
        device=loaded.device.type,
        num_parameters=loaded.num_parameters,
        vocab_size=loaded.config.vocab_size,
        max_model_len=plan.max_model_len,
        num_cache_tokens=plan.num_tokens,
        block_size=plan.block_size,
        num_threads=status.threads,
        kernels="torch" if loaded.native is None else status.path,
        eos_token_ids=loaded.eos_token_ids,
        default_params=loaded.default_params,
        num_layers=loaded.config.num_layers,
        num_heads=loaded.config.num_heads,
        cost=cost,
    )
