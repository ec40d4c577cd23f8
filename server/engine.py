"""Engine: the loop at the heart of the server, one step at a time, and how it is put together.

Whoever calls `step` owns the engine and every request handed to it; in the server that is the
engine thread (see async_engine). It knows nothing of HTTP and nothing of threads.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from cache.manager import KVCacheManager
from cache.pool import KVCachePool
from model.loader import LoadedModel, ProgressCallback, load_model, resolve_model
from model.ops import attention_backend
from server.cache_plan import CachePlan, plan_cache
from server.engine_info import EngineInfo
from server.output_processor import OutputProcessor
from server.request import Request, RequestOutput, SamplingParams, TokenLogprob
from server.resources import available_memory, cpu_count
from server.runner import ModelRunner
from server.sampler import Sampler, SamplerOutput
from server.scheduler import Batch, ScheduledRequest, Scheduler

if TYPE_CHECKING:
    from server.config import EngineConfig

logger = logging.getLogger(__name__)


class Engine:
    """Continues requests together, one token each per step.

    Args:
        scheduler: Decides what each step computes, and frees what has ended.
        runner: Computes it.
        sampler: Chooses tokens.
        output_processor: Makes text of them and sees when a request ends.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        runner: ModelRunner,
        sampler: Sampler,
        *,
        output_processor: OutputProcessor,
    ) -> None:
        self.scheduler = scheduler
        self._runner = runner
        self._sampler = sampler
        self._output_processor = output_processor

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
        return self._sampler.sample(logits, [entry.request for entry in batch.sampling])

    def _score_prompts(self, batch: Batch, hidden: Tensor) -> list[RequestOutput]:
        """Fill in the prompt log-probabilities of this batch; end requests that want only those."""
        finished = []
        for entry, first_row in zip(batch.scheduled, batch.first_rows, strict=True):
            request = entry.request
            if request.params.prompt_logprobs is None:
                continue
            self._score_prompt(entry, first_row, hidden)
            prompt_done = request.num_computed_tokens >= request.num_prompt_tokens
            if request.params.max_tokens == 0 and prompt_done:
                finished.append(self._finish(request, self._output_processor.finish_scoring(request)))
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
        outputs = []
        for row, entry in enumerate(batch.sampling):
            outputs.append(self._finish(entry.request, self._output(entry.request, sampled, row)))
        return outputs

    def _output(self, request: Request, sampled: SamplerOutput, row: int) -> RequestOutput:
        if row in sampled.failed:
            return self._output_processor.fail(request, sampled.failed[row])
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
