"""Engine: the loop at the heart of the server, one step at a time.

Whoever calls `step` owns the engine and every request handed to it; in the server that is the
engine thread (see async_engine). It knows nothing of HTTP and nothing of threads.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from typing import Protocol

import torch
from torch import Tensor

from model.attention_recorder import AttentionRecording
from server.engine.drafting.draft_budget import MAX_DRAFTS_PER_STEP
from server.engine.output_processor import OutputProcessor
from server.engine.planning.batch import Batch, CheckedDraft, ScheduledRequest
from server.engine.runner import ModelRunner
from server.engine.sampler import Sampler, SamplerOutput
from server.engine.sampling.token_masks import TokenMasks
from server.engine.scheduler import Scheduler
from server.engine.text_logits import text_logits
from server.request import (
    FinishReason,
    Logprob,
    Request,
    RequestOutput,
    RequestStatus,
    SamplingParams,
)

logger = logging.getLogger(__name__)


class RecordAttention(Protocol):
    """Begins an AttentionRecording, with a model and a cache's form given already."""

    def __call__(
        self, token_ids: Sequence[int], *, layer: int | None, head: int | None
    ) -> AttentionRecording:
        """Return a recording of which nothing is computed yet."""


class Engine:
    """Continues requests together, one token each per step.

    Args:
        scheduler: Decides what each step computes, and frees what has ended.
        runner: Computes it.
        sampler: Chooses tokens.
        output_processor: Makes text of them and sees when a request ends.
        record_attention: Begins a run of the readable model; see model.attention_recorder.
        token_masks: Finds what constrained requests may say.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        runner: ModelRunner,
        sampler: Sampler,
        *,
        output_processor: OutputProcessor,
        record_attention: RecordAttention,
        token_masks: TokenMasks,
    ) -> None:
        self.scheduler = scheduler
        self._runner = runner
        self._sampler = sampler
        self._output_processor = output_processor
        self._record_attention = record_attention
        self._token_masks = token_masks
        self._chosen_logits: Tensor | None = None
        self._has_halved = False
        self._scored: set[str] = set()  # who wants its prompt's log-probabilities, or nothing else

    @property
    def has_work(self) -> bool:
        """Whether a step would do anything."""
        return self.scheduler.has_work

    def add(self, request: Request) -> RequestOutput | None:
        """Take over a request; it starts when the scheduler finds room.

        Returns:
            Its end, if it cannot be continued behind its earlier tokens; else None.
        """
        failure = self._output_processor.add(request)
        if failure is not None:
            return failure
        self.scheduler.add(request)
        if request.params.prompt_logprobs is not None or request.params.max_tokens == 0:
            self._scored.add(request.request_id)
        return None

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
        try:
            output = self._runner.submit(batch).result()
        except torch.OutOfMemoryError:
            return self._make_do(batch)
        requests = batch.sampling_requests
        # As it is where it can be: the sampler stays bound to logits that it has seen.
        logits = output.logits[: len(requests)] if batch.drafts else output.logits
        sampled = self._sample(requests, logits)
        self.scheduler.commit(batch)
        outputs = self._score_prompts(batch, output.hidden) if self._scored else []
        outputs += self._emit(requests, sampled)
        return outputs + self._follow(batch.drafts, output.logits) if batch.drafts else outputs

    def generate(self, requests: Sequence[Request]) -> list[RequestOutput]:
        """Run these requests to their ends and return all outputs, for use without a server."""
        outputs = [failure for request in requests if (failure := self.add(request))]
        while self.has_work:
            outputs += self.step()
        return outputs

    def begin_recording(
        self, token_ids: Sequence[int], *, layer: int | None = None, head: int | None = None
    ) -> AttentionRecording:
        """Begin to record what each token of a short text attends to, touching no request.

        Args:
            token_ids: The text, at most model.attention_recorder.MAX_TOKENS tokens.
            layer: From 0; None is the mean of all layers.
            head: From 0; None is the mean of all heads.

        Returns:
            What is to be advanced piece by piece, each between two steps.

        Raises:
            ValueError: An argument is out of its bounds.
        """
        return self._record_attention(token_ids, layer=layer, head=head)

    def attention_weights(
        self, token_ids: Sequence[int], *, layer: int | None = None, head: int | None = None
    ) -> list[list[float]]:
        """Make a whole recording; see `begin_recording`.

        Returns:
            A square of rows that sum to 1, zero above the diagonal.

        Raises:
            ValueError: An argument is out of its bounds.
        """
        recording = self.begin_recording(token_ids, layer=layer, head=head)
        while recording.advance():
            pass
        rows: list[list[float]] = recording.weights.tolist()
        return rows

    def text_logits(self, token_ids: Sequence[int]) -> Iterator[tuple[range, Tensor]]:
        """Logits of every position of a text, some rows at a time; see text_logits.py."""
        return text_logits(self.scheduler, self._runner, token_ids)

    def warm_up(self) -> None:
        """Run the model before the first client waits for it, leaving no trace in the cache."""
        self._runner.warm_up()
        params = SamplingParams(max_tokens=2, temperature=0.0, ignore_eos=True)
        self.generate([Request(request_id="warm-up", token_ids=[0, 0], params=params)])
        self.scheduler.manager.reset_prefix_cache()

    def _make_do(self, batch: Batch) -> list[RequestOutput]:
        """After a step that the device had no memory for, go on with less.

        Nothing of the step is committed, so the next one computes the same. It is halved once; if
        that was not enough, the request that came last ends.
        """
        torch.cuda.empty_cache()
        if not self._has_halved:
            self._has_halved = True
            self.scheduler.halve_steps()
            logger.warning("the device is out of memory: steps have half as many tokens from now")
            return []
        newest = max((entry.request for entry in batch.scheduled), key=_arrival)
        logger.warning("the device is out of memory: request %s ends", newest.request_id)
        message = "The device ran out of memory while this request was computed."
        return [self._finish(newest, self._output_processor.fail(newest, message))]

    def _sample(self, requests: list[Request], logits: Tensor) -> SamplerOutput | None:
        """Choose a token for each of these requests; None if there is none.

        Args:
            requests: (B,) that have caught up.
            logits: (B, V) what the model foretells for them.
        """
        if not requests:
            return None
        allowed = self._token_masks.finish()
        sampled = self._sampler.sample(logits, requests, allowed=allowed.words)
        if allowed.failed:
            sampled.failed.update(allowed.failed)
        return sampled

    def _score_prompts(self, batch: Batch, hidden: Tensor) -> list[RequestOutput]:
        """Fill in the prompt log-probabilities of this batch; end requests that want only those."""
        finished: list[RequestOutput] = []
        for entry, first_row in zip(batch.scheduled, batch.first_rows, strict=True):
            request, params = entry.request, entry.request.params
            if request.request_id not in self._scored:
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

    def _follow(self, drafts: list[CheckedDraft], logits: Tensor) -> list[RequestOutput]:
        """Let requests whose drafts come true go on, each by one token at a time.

        A token is chosen just as if it were the only one of its step, from logits that are the same
        to the bit, so nothing that was done to a request ever has to be undone.
        """
        outputs: list[RequestOutput] = []
        true = [draft for draft in drafts if draft.came_true]
        while true:
            for draft in true:
                self.scheduler.accept(draft)
            requests = [draft.request for draft in true]
            self._token_masks.begin(requests)
            rows = [draft.first_row + draft.num_accepted - 1 for draft in true]
            outputs += self._emit(requests, self._sample(requests, self._rows_of(logits, rows)))
            true = [draft for draft in true if draft.came_true]
        for draft in drafts:
            self.scheduler.settle(draft)
        return outputs

    def _rows_of(self, logits: Tensor, rows: list[int]) -> Tensor:
        """Some rows (R, V) of logits, in memory that is used again."""
        if len(rows) == 1:
            return logits[rows[0] : rows[0] + 1]
        if self._chosen_logits is None:
            self._chosen_logits = logits.new_empty(MAX_DRAFTS_PER_STEP, logits.shape[1])
        index = torch.tensor(rows, device=logits.device)
        return torch.index_select(logits, 0, index, out=self._chosen_logits[: len(rows)])

    def _emit(self, requests: list[Request], sampled: SamplerOutput | None) -> list[RequestOutput]:
        """Hand each chosen token to its request; end those that are done."""
        outputs: list[RequestOutput] = []
        if sampled is None:
            return outputs
        for row, request in enumerate(requests):
            if request.status is RequestStatus.RUNNING:  # scoring may have ended it
                output = self._output(request, sampled, row)
                if output.finish_reason is not None:
                    self._finish(request, output)
                outputs.append(output)
        return outputs

    def _output(self, request: Request, sampled: SamplerOutput, row: int) -> RequestOutput:
        if row in sampled.failed:
            asks_too_much = request.grammar is not None and request.grammar.is_broken
            refused = sampled.is_contradiction(row) or asks_too_much
            reason = FinishReason.REFUSED if refused else FinishReason.ERROR
            return self._output_processor.fail(request, sampled.failed[row], reason=reason)
        logprob: Logprob | None = sampled.logprobs[row]
        return self._output_processor.process(request, sampled.token_ids[row], logprob)

    def _finish(self, request: Request, output: RequestOutput) -> RequestOutput:
        if output.finish_reason is not None:
            self.scheduler.finish(request, output.finish_reason)
            self._forget(request.request_id)
        return output

    def _forget(self, request_id: str) -> None:
        self._output_processor.forget(request_id)
        self._sampler.forget(request_id)
        self._scored.discard(request_id)


def _arrival(request: Request) -> tuple[bool, float]:
    """Prompts after those who decode, and each in the order of arrival."""
    return request.num_uncomputed_tokens > 1, request.arrival_time
