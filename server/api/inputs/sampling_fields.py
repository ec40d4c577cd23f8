"""From a body's fields to SamplingParams: defaults filled in, token ids checked.

Bounds that do not depend on the model were checked by the schemas.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence

from server.api.generation_call import AnswerOptions
from server.api.protocols import TokenizerLike
from server.api.schemas.requests import GenerationBody
from server.engine.engine_info import EngineInfo
from server.errors import InvalidRequestError
from server.request import NO_BIAS, SamplingParams


def sampling_params(
    body: GenerationBody,
    info: EngineInfo,
    *,
    options: AnswerOptions,
    seed: int,
    max_tokens: int,
    bad_words: tuple[tuple[int, ...], ...] = (),
) -> SamplingParams:
    """What the engine is told, the checkpoint's own defaults filled in.

    Args:
        body: What the client asked for.
        info: The vocabulary and the checkpoint's defaults.
        options: Which log-probabilities the answer shows.
        seed: The client's, or the one that was drawn.
        max_tokens: How many tokens may be generated.
        bad_words: The token ids of the body's.

    Raises:
        InvalidRequestError: A token id or `min_tokens` is out of bounds.
    """
    if body.min_tokens > max_tokens:
        raise InvalidRequestError(
            f"'min_tokens' must be at most the {max_tokens} tokens that may be generated "
            f"(got {body.min_tokens}).",
            param="min_tokens",
        )
    check_token_ids(body.stop_token_ids, info, "stop_token_ids")
    check_token_ids(body.allowed_token_ids or (), info, "allowed_token_ids")
    top_p = _default(body.top_p, info, name="top_p", neutral=1.0)
    top_k = int(_default(body.top_k, info, name="top_k", neutral=0))
    return SamplingParams(
        max_tokens=max_tokens,
        min_tokens=body.min_tokens,
        temperature=_as_float32(_default(body.temperature, info, name="temperature", neutral=1.0)),
        top_k=1 if top_p == 0 else _top_k(top_k, info.vocab_size),
        top_p=top_p or 1.0,
        min_p=_default(body.min_p, info, name="min_p", neutral=0.0),
        seed=seed,
        presence_penalty=body.presence_penalty,
        frequency_penalty=body.frequency_penalty,
        repetition_penalty=_default(
            body.repetition_penalty, info, name="repetition_penalty", neutral=1.0
        ),
        logit_bias=_logit_bias(body, info),
        allowed_token_ids=tuple(sorted(set(body.allowed_token_ids or ()))),
        bad_words=bad_words,
        stop=(body.stop,) if isinstance(body.stop, str) else tuple(body.stop or ()),
        stop_token_ids=frozenset(body.stop_token_ids),
        include_stop_str_in_output=body.include_stop_str_in_output,
        ignore_eos=body.ignore_eos,
        skip_special_tokens=body.skip_special_tokens,
        shown_token_ids=options.shown_token_ids,
        logprobs=options.logprobs,
        prompt_logprobs=_prompt_logprobs(options),
    )


def bad_word_ids(words: Sequence[str], tokenizer: TokenizerLike) -> tuple[tuple[int, ...], ...]:
    """The sequences of tokens that spell these words, as vLLM bans them.

    Each word as it begins a text, and as it follows a space if that is another first token and as
    many tokens; other spellings stay possible.
    """
    found: list[tuple[int, ...]] = []
    for word in words:
        bare = word.lstrip()
        first, spaced = (
            tuple(tokenizer.encode(text, add_special_tokens=False)) for text in (bare, f" {bare}")
        )
        found += [first] if first else []
        if spaced and (not first or (spaced[0] != first[0] and len(spaced) == len(first))):
            found.append(spaced)
    return tuple(found)


def _prompt_logprobs(options: AnswerOptions) -> int | None:
    """How many alternatives are computed beside each token of the prompt, for whoever asked."""
    wanted = [options.logprobs if options.echo else None, options.prompt_logprobs]
    return max((each for each in wanted if each is not None), default=None)


def _default(value: float | None, info: EngineInfo, *, name: str, neutral: float) -> float:
    """The client's value, else the checkpoint's, else the neutral one."""
    if value is not None:
        return value
    return float(info.default_params.get(name, neutral))


def _logit_bias(body: GenerationBody, info: EngineInfo) -> Mapping[int, float]:
    if not body.logit_bias:
        return NO_BIAS
    bias = {}
    for key, value in body.logit_bias.items():
        is_id = (
            key.isascii() and key.isdecimal() and (key == "0" or key[0] != "0") and len(key) < 20
        )
        if not is_id:
            raise InvalidRequestError(
                f"'logit_bias' must have token ids as keys (got '{key[:80]}').",
                param="logit_bias",
            )
        bias[int(key)] = value
    check_token_ids(tuple(bias), info, "logit_bias")
    return bias


def check_token_ids(token_ids: Sequence[int], info: EngineInfo, param: str) -> None:
    """Refuse ids outside the vocabulary.

    Raises:
        InvalidRequestError: Names the first such id.
    """
    for token_id in token_ids:
        if not 0 <= token_id < info.vocab_size:
            raise InvalidRequestError(
                f"'{param}' must hold token ids from 0 to {info.vocab_size - 1} "
                f"(got {str(token_id)[:80]}).",
                param=param,
            )


def max_tokens(body: GenerationBody) -> int | None:
    """What either spelling says.

    Raises:
        InvalidRequestError: They differ.
    """
    one, other = body.max_tokens, body.max_completion_tokens
    if one is not None and other is not None and one != other:
        raise InvalidRequestError(
            f"'max_tokens' and 'max_completion_tokens' mean the same and differ "
            f"(got {one} and {other}). Send one of them.",
            param="max_tokens",
        )
    return other if one is None else one


def _as_float32(value: float) -> float:
    """The value as the sampler's arithmetic sees it: what equals 0 there is 0."""
    return float(struct.unpack("f", struct.pack("f", value))[0])


def _top_k(top_k: int, vocab_size: int) -> int:
    """0 for off, which -1 and the whole vocabulary are too."""
    return 0 if top_k <= 0 or top_k >= vocab_size else top_k
