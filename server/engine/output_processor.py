"""OutputProcessor: what a chosen token means for its request: text, the end, and an output.

It owns the detokenizers of the open requests and lives on the engine thread. It never touches
the cache: a request that ends here is released by the scheduler.
"""

from __future__ import annotations

import logging

from model.tokenizer import Tokenizer
from server.engine.detokenizer import Detokenizer, RememberedSpeller
from server.engine.grammars.grammar import GrammarError
from server.request import (
    FinishReason,
    Logprob,
    Request,
    RequestOutput,
    TokenConstraint,
)

logger = logging.getLogger(__name__)


class OutputProcessor:
    """Appends tokens to requests and turns them into RequestOutputs.

    Args:
        tokenizer: Gives each token's bytes.
        eos_token_ids: Tokens that end a text unless the request ignores them.
    """

    def __init__(self, tokenizer: Tokenizer, eos_token_ids: frozenset[int]) -> None:
        self._speller = RememberedSpeller(tokenizer)
        self._eos_token_ids = eos_token_ids
        self._detokenizers: dict[str, Detokenizer] = {}

    def add(self, request: Request) -> RequestOutput | None:
        """Open a request, behind the tokens that another engine brought for it.

        They pass through detokenizer and grammar as if they had been chosen here, so that what
        follows them is what would have followed there; what they bring was brought already.

        Returns:
            The end of the request if they do not fit it, or end it; else None.
        """
        self._detokenizers[request.request_id] = Detokenizer(self._speller, request.params)
        for token_id in request.earlier_token_ids:
            output = self.process(request, token_id, None)
            if output.error is not None:
                return output
            if output.finish_reason is not None:
                return self.fail(request, "The answer ended before it could be continued.")
        return None

    def forget(self, request_id: str) -> None:
        """Close a request whose output nobody waits for any more."""
        self._detokenizers.pop(request_id, None)

    def process(self, request: Request, token_id: int, logprob: Logprob | None) -> RequestOutput:
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
        return _last_output(request, reason, error=message)

    def finish_scoring(self, request: Request) -> RequestOutput:
        """End a request that asked for nothing but its prompt's log-probabilities."""
        self.forget(request.request_id)
        return _last_output(
            request, FinishReason.LENGTH, prompt_logprobs=tuple(request.prompt_logprobs)
        )

    def _advance(
        self, request: Request, token_id: int, logprobs: tuple[Logprob, ...]
    ) -> RequestOutput:
        detokenizer = self._detokenizers[request.request_id]
        request.token_ids.append(token_id)
        num_output_tokens = request.num_output_tokens
        reason: FinishReason | None
        stop_reason: str | int | None
        reason, stop_reason = self._stop_token(request, token_id)
        is_complete = request.grammar is not None and _follow_grammar(request.grammar, token_id)
        hidden = reason is not None and not self._shows(request, token_id)
        text, stop = ("", None) if hidden else detokenizer.append(token_id)
        if stop is not None:
            reason, stop_reason = FinishReason.STOP, stop
        elif is_complete:
            reason = FinishReason.STOP
        elif reason is None and num_output_tokens >= request.params.max_tokens:
            reason = FinishReason.LENGTH
        if reason is not None:
            text += detokenizer.flush()
            self.forget(request.request_id)
        output = RequestOutput(
            request.request_id, text, (token_id,), logprobs,
            request.num_prompt_tokens, request.num_cached_tokens, num_output_tokens,
        )  # fmt: skip
        if num_output_tokens == 1 and request.params.prompt_logprobs is not None:
            output = output._replace(prompt_logprobs=tuple(request.prompt_logprobs))
        if reason is not None:
            output = output._replace(
                finish_reason=reason,
                stop_reason=stop_reason,
                num_drafted_tokens=request.num_drafted_tokens,
                num_accepted_tokens=request.num_accepted_tokens,
            )
        return output

    def _stop_token(
        self, request: Request, token_id: int
    ) -> tuple[FinishReason | None, int | None]:
        """Whether this token ends the request, and its id if the client named it."""
        params = request.params
        is_end = token_id in self._eos_token_ids and not params.ignore_eos
        is_stop = token_id in params.stop_token_ids
        if not (is_end or is_stop) or request.num_output_tokens < params.min_tokens:
            return None, None
        return FinishReason.STOP, token_id if is_stop else None

    def _shows(self, request: Request, token_id: int) -> bool:
        """Whether a token that ended the request is part of the text."""
        if self._speller.spell(token_id).is_special:
            return not request.params.skip_special_tokens
        return request.params.include_stop_str_in_output


def _follow_grammar(grammar: TokenConstraint, token_id: int) -> bool:
    """Whether this token completes a constrained text, whatever the limits say."""
    grammar.accept(token_id)
    return grammar.is_finished


def _last_output(
    request: Request,
    reason: FinishReason,
    *,
    prompt_logprobs: tuple[Logprob | None, ...] | None = None,
    error: str | None = None,
) -> RequestOutput:
    """The end of a request that brings no token."""
    return RequestOutput(
        request_id=request.request_id,
        prompt_logprobs=prompt_logprobs,
        finish_reason=reason,
        error=error,
        num_prompt_tokens=request.num_prompt_tokens,
        num_cached_tokens=request.num_cached_tokens,
        num_output_tokens=request.num_output_tokens,
    )
