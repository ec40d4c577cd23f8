"""OutputProcessor: what a chosen token means for its request: text, the end, and an output.

It owns the detokenizers of the open requests and lives on the engine thread. It never touches
the cache: a request that ends here is released by the scheduler.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from model.tokenizer import Tokenizer
from server.detokenizer import Detokenizer
from server.grammar import GrammarError
from server.request import FinishReason, Request, RequestOutput, TokenLogprob

logger = logging.getLogger(__name__)


class OutputProcessor:
    """Appends tokens to requests and turns them into RequestOutputs.

    Args:
        tokenizer: Gives each token's bytes.
        eos_token_ids: Tokens that end a text unless the request ignores them.
    """

    def __init__(self, tokenizer: Tokenizer, eos_token_ids: frozenset[int]) -> None:
        self._tokenizer = tokenizer
        self._eos_token_ids = eos_token_ids
        self._detokenizers: dict[str, Detokenizer] = {}

    def add(self, request: Request) -> None:
        """Open a request."""
        self._detokenizers[request.request_id] = Detokenizer(self._tokenizer, request.params)

    def forget(self, request_id: str) -> None:
        """Close a request whose output nobody waits for any more."""
        self._detokenizers.pop(request_id, None)

    def process(
        self, request: Request, token_id: int, logprob: TokenLogprob | None
    ) -> RequestOutput:
        """Append the token to the request and say what it brings.

        A fault in here is this request's own: it ends with an error, the others go on.
        """
        try:
            return self._advance(request, token_id, () if logprob is None else (logprob,))
        except GrammarError as error:
            return self.fail(request, str(error), reason=FinishReason.REFUSED)
        except Exception:
            logger.exception("request %s failed while its output was made", request.request_id)
            return self.fail(request, "The server failed to process this request's output.")

    def fail(
        self, request: Request, message: str, *, reason: FinishReason = FinishReason.ERROR
    ) -> RequestOutput:
        """End the request with an error for its client, of whose making it may be."""
        self.forget(request.request_id)
        return _output(request, finish_reason=reason, error=message)

    def finish_scoring(self, request: Request) -> RequestOutput:
        """End a request that asked for nothing but its prompt's log-probabilities."""
        self.forget(request.request_id)
        return _output(
            request,
            finish_reason=FinishReason.LENGTH,
            prompt_logprobs=tuple(request.prompt_logprobs),
        )

    def _advance(
        self, request: Request, token_id: int, logprobs: tuple[TokenLogprob, ...]
    ) -> RequestOutput:
        detokenizer = self._detokenizers[request.request_id]
        request.token_ids.append(token_id)
        reason: FinishReason | None
        stop_reason: str | int | None
        reason, stop_reason = self._stop_token(request, token_id)
        is_complete = _follow_grammar(request, token_id)
        hidden = reason is not None and not self._shows(request, token_id)
        detokenized = detokenizer.append(() if hidden else (token_id,))
        text = detokenized.text
        if detokenized.stop is not None:
            reason, stop_reason = FinishReason.STOP, detokenized.stop
        elif is_complete:
            reason = FinishReason.STOP
        elif reason is None and request.num_output_tokens >= request.params.max_tokens:
            reason = FinishReason.LENGTH
        if reason is not None:
            text += detokenizer.flush()
            self.forget(request.request_id)
        first = request.num_output_tokens == 1 and request.params.prompt_logprobs is not None
        return _output(
            request,
            text=text,
            token_ids=(token_id,),
            logprobs=logprobs,
            prompt_logprobs=tuple(request.prompt_logprobs) if first else None,
            finish_reason=reason,
            stop_reason=stop_reason,
        )

    def _stop_token(
        self, request: Request, token_id: int
    ) -> tuple[FinishReason | None, int | None]:
        """Whether this token ends the request, and its id if the client named it."""
        if request.num_output_tokens < request.params.min_tokens:
            return None, None
        if token_id in request.params.stop_token_ids:
            return FinishReason.STOP, token_id
        if token_id in self._eos_token_ids and not request.params.ignore_eos:
            return FinishReason.STOP, None
        return None, None

    def _shows(self, request: Request, token_id: int) -> bool:
        """Whether a token that ended the request is part of the text."""
        if self._tokenizer.is_special(token_id):
            return not request.params.skip_special_tokens
        return request.params.include_stop_str_in_output


def _follow_grammar(request: Request, token_id: int) -> bool:
    """Whether this token completes a constrained text, whatever the limits say."""
    if request.grammar is None:
        return False
    request.grammar.accept(token_id)
    return request.grammar.is_finished


def _output(
    request: Request,
    *,
    text: str = "",
    token_ids: tuple[int, ...] = (),
    logprobs: Sequence[TokenLogprob] = (),
    prompt_logprobs: tuple[TokenLogprob | None, ...] | None = None,
    finish_reason: FinishReason | None = None,
    stop_reason: str | int | None = None,
    error: str | None = None,
) -> RequestOutput:
    return RequestOutput(
        request_id=request.request_id,
        text=text,
        token_ids=token_ids,
        logprobs=tuple(logprobs),
        prompt_logprobs=prompt_logprobs,
        finish_reason=finish_reason,
        stop_reason=stop_reason,
        error=error,
        num_prompt_tokens=request.num_prompt_tokens,
        num_cached_tokens=request.num_cached_tokens,
        num_output_tokens=request.num_output_tokens,
    )
