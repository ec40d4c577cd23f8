"""Engine: the loop at the heart of the server, one step at a time, and how it is put together.

Whoever calls `step` owns the engine and every request handed to it; in the server that is the
engine thread (see async_engine). It knows nothing of HTTP and nothing of threads.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Protocol

import torch
from torch import Tensor

from cache.manager import KVCacheManager
from cache.pool import KVCachePool
from model.attention_recorder import record_attention
from model.chat_template import ChatTemplate
from model.cost import ForwardCost
from model.loader import LoadedModel, Progress, load_model, resolve_model
from model.native_library import NativeStatus, load_kernels
from model.ops import attention_backend
from model.tokenizer import Tokenizer
from server.batch import Batch, ScheduledRequest
from server.cache_plan import CachePlan, plan_cache
from server.config import EngineConfig
from server.engine_info import EngineInfo
from server.grammar import GrammarCompiler
from server.observed_scheduler import ObservedScheduler
from server.output_processor import OutputProcessor
from server.pace import Pace
from server.request import (
    FinishReason,
    Request,
    RequestOutput,
    RequestStatus,
    SamplingParams,
    TokenLogprob,
)
from server.resources import available_memory, cpu_count
from server.runner import ModelRunner
from server.sampler import Sampler, SamplerOutput
from server.scheduler import Scheduler
from server.text_logits import text_logits
from server.timeline import Timeline
from server.token_masks import TokenMasks

logger = logging.getLogger(__name__)


class AttentionRecording(Protocol):
    """`record_attention` with a model and a cache's form given already."""

    def __call__(
        self, token_ids: Sequence[int], *, layer: int | None, head: int | None
    ) -> tuple[Tensor, Tensor]:
        """Return the weights (S, S) and the hidden states (S, C)."""


class Engine:
    """Continues requests together, one token each per step.

    Args:
        scheduler: Decides what each step computes, and frees what has ended.
        runner: Computes it.
        sampler: Chooses tokens.
        output_processor: Makes text of them and sees when a request ends.
        record_attention: Runs the readable model over a text; see model.attention_recorder.
        token_masks: Finds what constrained requests may say.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        runner: ModelRunner,
        sampler: Sampler,
        *,
        output_processor: OutputProcessor,
        record_attention: AttentionRecording,
        token_masks: TokenMasks,
    ) -> None:
        self.scheduler = scheduler
        self._runner = runner
        self._sampler = sampler
        self._output_processor = output_processor
        self._record_attention = record_attention
        self._token_masks = token_masks

    @property
    def has_work(self) -> bool:
        """Whether a step would do anything."""
        return self.scheduler.has_work

    def add(self, request: Request) -> None:
        """Take over a request; it starts when the scheduler finds room."""
        self._output_processor.add(request)
        self.scheduler.add(request)

    def abort(self, request_id: str) -> None:
        """End a request whose client went away; unknown and finished ones are ignored."""
        self.scheduler.abort(request_id)
        self._forget(request_id)

    def step(self) -> list[RequestOutput]:
        """Schedule, run, sample, commit, emit."""
        batch = self.scheduler.schedule()
        if batch is None:
            return []
        self._token_masks.begin(batch.sampling_requests)
        hidden = self._runner.forward(batch)
        sampled = self._sample(batch, hidden)
        self.scheduler.commit(batch)
        return self._score_prompts(batch, hidden) + self._emit(batch, sampled)

    def generate(self, requests: Sequence[Request]) -> list[RequestOutput]:
        """Run these requests to their ends and return all outputs, for use without a server."""
        for request in requests:
            self.add(request)
        outputs = []
        while self.has_work:
            outputs += self.step()
        return outputs

    def attention_weights(
        self, token_ids: Sequence[int], *, layer: int | None = None, head: int | None = None
    ) -> list[list[float]]:
        """Compute what each token of a short text attends to, without touching any request.

        Args:
            token_ids: The text, at most model.attention_recorder.MAX_TOKENS tokens.
            layer: From 0; None is the mean of all layers.
            head: From 0; None is the mean of all heads.

        Returns:
            A square of rows that sum to 1, zero above the diagonal.

        Raises:
            ValueError: An argument is out of its bounds.
        """
        weights, _ = self._record_attention(token_ids, layer=layer, head=head)
        rows: list[list[float]] = weights.tolist()
        return rows

    def text_logits(self, token_ids: Sequence[int]) -> Iterator[tuple[range, Tensor]]:
        """Logits of every position of a text, some rows at a time; see server.text_logits."""
        return text_logits(self.scheduler, self._runner, token_ids)

    def warm_up(self) -> None:
        """Run the model before the first client waits for it, leaving no trace in the cache."""
        params = SamplingParams(max_tokens=2, temperature=0.0, ignore_eos=True)
        self.generate([Request(request_id="warm-up", token_ids=[0, 0], params=params)])
        self.scheduler.manager.reset_prefix_cache()

    def _sample(self, batch: Batch, hidden: Tensor) -> SamplerOutput | None:
        """Choose a token for each request that has caught up; None if there is none."""
        rows = batch.sample_rows
        if not rows:
            return None
        logits = self._runner.logits(hidden, rows)
        allowed = self._token_masks.finish()
        sampled = self._sampler.sample(logits, batch.sampling_requests, allowed=allowed.words)
        sampled.failed.update(allowed.failed)
        return sampled

    def _score_prompts(self, batch: Batch, hidden: Tensor) -> list[RequestOutput]:
        """Fill in the prompt log-probabilities of this batch; end requests that want only those."""
        finished = []
        for entry, first_row in zip(batch.scheduled, batch.first_rows, strict=True):
            request, params = entry.request, entry.request.params
            if params.prompt_logprobs is None and params.max_tokens > 0:
                continue
            try:
                if params.prompt_logprobs is not None:
                    self._score_prompt(entry, first_row, hidden)
            except ValueError as error:  # its logits are not finite; the others go on
                output = self._output_processor.fail(request, str(error))
                finished.append(self._finish(request, output))
                continue
            prompt_done = request.num_computed_tokens >= request.num_prompt_tokens
            if params.max_tokens == 0 and prompt_done:
                output = self._output_processor.finish_scoring(request)
                finished.append(self._finish(request, output))
        return finished

    def _score_prompt(self, entry: ScheduledRequest, first_row: int, hidden: Tensor) -> None:
        """Score the prompt tokens that follow this chunk's; what was scored before stays."""
        request = entry.request
        if not request.prompt_logprobs:
            request.prompt_logprobs.append(None)
        first = max(entry.start, len(request.prompt_logprobs) - 1)
        stop = min(entry.start + entry.num_new_tokens, request.num_prompt_tokens - 1)
        shift = first_row - entry.start
        for rows, logits in self._runner.logit_slices(hidden, range(first + shift, stop + shift)):
            targets = request.token_ids[rows.start - shift + 1 : rows.stop - shift + 1]
            request.prompt_logprobs += self._sampler.prompt_logprobs(
                logits, targets, num_top=request.params.prompt_logprobs or 0
            )

    def _emit(self, batch: Batch, sampled: SamplerOutput | None) -> list[RequestOutput]:
        """Hand each chosen token to its request; end those that are done."""
        if sampled is None:
            return []
        return [
            self._finish(request, self._output(request, sampled, row))
            for row, request in enumerate(batch.sampling_requests)
            if request.status is RequestStatus.RUNNING  # scoring may have ended it
        ]

    def _output(self, request: Request, sampled: SamplerOutput, row: int) -> RequestOutput:
        if row in sampled.failed:
            asks_too_much = request.grammar is not None and request.grammar.is_broken
            refused = sampled.is_contradiction(row) or asks_too_much
            reason = FinishReason.REFUSED if refused else FinishReason.ERROR
            return self._output_processor.fail(request, sampled.failed[row], reason=reason)
        logprob: TokenLogprob | None = sampled.logprobs[row]
        return self._output_processor.process(request, sampled.token_ids[row], logprob)

    def _finish(self, request: Request, output: RequestOutput) -> RequestOutput:
        if output.finish_reason is not None:
            self.scheduler.finish(request, output.finish_reason)
            self._forget(request.request_id)
        return output

    def _forget(self, request_id: str) -> None:
        self._output_processor.forget(request_id)
        self._sampler.forget(request_id)


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
    # Beside the kernels torch does little, and its waiting threads would take their processors.
    torch.set_num_threads(1 if kernels else num_threads)
    logger.info("kernels: %s (%s), %d threads", status.path, status.reason, num_threads)
    loaded = load_model(
        resolve_model(config.model),
        dtype=config.dtype,
        device=config.device,
        kernels=kernels,
        quantize=config.quantize,
        progress=progress,
    )
    pool, plan = _allocate_cache(loaded, config)
    logger.info(plan.describe())
    manager = KVCacheManager(
        num_blocks=pool.num_blocks,
        block_size=pool.block_size,
        prefix_caching=config.prefix_caching,
    )
    limits = {
        "max_num_seqs": config.max_num_seqs,
        "max_num_batched_tokens": config.max_num_batched_tokens,
        "max_model_len": plan.max_model_len,
    }
    timeline = Timeline()
    cost = ForwardCost.of(
        loaded.config,
        weights_bytes=loaded.num_bytes,
        cache_bytes_per_token=plan.bytes_per_token,
    )
    engine = Engine(
        ObservedScheduler(manager, timeline=timeline, pace=_pace(loaded, cost), **limits),
        ModelRunner(loaded.native or loaded.model, pool, attention_backend(), **limits),
        Sampler(
            loaded.config.vocab_size,
            loaded.device,
            eos_token_ids=loaded.eos_token_ids,
            kernels=kernels if loaded.native else None,
        ),
        output_processor=OutputProcessor(loaded.tokenizer, loaded.eos_token_ids),
        record_attention=partial(record_attention, loaded.model, like=pool.storage),
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
        grammars=GrammarCompiler(
            loaded.tokenizer,
            vocab_size=loaded.config.vocab_size,
            eos_token_ids=loaded.eos_token_ids,
        ),
    )


def _allocate_cache(loaded: LoadedModel, config: EngineConfig) -> tuple[KVCachePool, CachePlan]:
    """Decide how large the cache is, and allocate it beside the weights."""
    model = loaded.config
    on_gpu = loaded.device.type == "cuda"
    plan = plan_cache(
        weights_bytes=loaded.num_bytes,
        bytes_per_token=KVCachePool.bytes_per_token(
            model.num_layers, model.num_kv_heads, model.head_dim, loaded.dtype
        ),
        memory=config.kv_cache_memory,
        available=torch.cuda.mem_get_info()[0] if on_gpu else available_memory(),
        block_size=config.block_size,
        context=model.max_position_embeddings,
        max_model_len=config.max_model_len,
        max_num_seqs=config.max_num_seqs,
    )
    pool = KVCachePool(
        num_layers=model.num_layers,
        num_kv_heads=model.num_kv_heads,
        head_dim=model.head_dim,
        dtype=loaded.dtype,
        num_blocks=plan.num_blocks + 1,  # and the padding block
        block_size=plan.block_size,
        device=loaded.device,
    )
    return pool, plan


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
