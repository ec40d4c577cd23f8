"""The one table of request fields: what works, what is harmless, and what is refused.

`judge` holds a body against it before anything else looks at the values. Whether a value that
works is also well-formed is the schemas' business. The table is the whole policy: to support a
field, change its row. Knows no engine and no HTTP.
"""

from __future__ import annotations

import difflib
import enum
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from server.errors import (
    InvalidRequestError,
    UnknownParameterError,
    UnsupportedParameterError,
    UnsupportedValueError,
)


class Endpoint(enum.Enum):
    """The forms of request that the table tells apart."""

    COMPLETIONS = "completions"
    CHAT = "chat"
    TOKENIZE = "tokenize"
    DETOKENIZE = "detokenize"


class Support(enum.Enum):
    """What becomes of a field."""

    WORKS = "works"
    HARMLESS = "harmless"
    """Accepted and reported: the tokens do not depend on it."""
    REFUSED = "refused"
    """Accepted at a value that asks for nothing, refused at any other."""


@dataclass(frozen=True, slots=True)
class Judgement:
    """What `judge` found.

    `values` are the fields that work, without nulls; `ignored` names what was not looked at.
    """

    values: dict[str, object]
    ignored: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Facts:
    """What a neutral value may depend on."""

    body: Mapping[str, object]
    max_model_len: int


Neutral = Callable[[object, Facts], bool]


@dataclass(frozen=True, slots=True)
class FieldRule:
    """One row of the table."""

    support: Support
    neutral: Neutral
    hint: str = ""
    """A sentence that says what to use instead."""
    only: str = ""
    """The neutral values in words; with them a refusal speaks of the value, not of the field."""


def _same(a: object, b: object) -> bool:
    """Equality in JSON's sense: 1 equals 1.0, but true is not 1."""
    return isinstance(a, bool) == isinstance(b, bool) and a == b


def _works() -> FieldRule:
    return FieldRule(Support.WORKS, lambda _value, _facts: True)


def _harmless() -> FieldRule:
    return FieldRule(Support.HARMLESS, lambda _value, _facts: True)


def _only(values: Sequence[object], *, hint: str = "") -> FieldRule:
    """A field that is accepted at these values, which ask for nothing."""

    def neutral(value: object, _facts: Facts) -> bool:
        return any(_same(value, allowed) for allowed in values)

    words = " or ".join(json.dumps(value) for value in values)
    return FieldRule(Support.REFUSED, neutral, hint, only=words)


def _refused(hint: str = "") -> FieldRule:
    """A field that asks for something at every value but null."""
    return FieldRule(Support.REFUSED, lambda _value, _facts: False, hint)


def _only_if(neutral: Neutral, only: str) -> FieldRule:
    return FieldRule(Support.REFUSED, neutral, only=only)


def _fits_num_ctx(value: object, facts: Facts) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value <= facts.max_model_len


def _is_n(value: object, facts: Facts) -> bool:
    n = facts.body.get("n")
    return _same(value, 1 if n is None else n)


_GENERATION_WORKS = (
    "model", "temperature", "top_p", "top_k", "min_p", "seed", "n", "max_tokens", "min_tokens",
    "stop", "stop_token_ids", "include_stop_str_in_output", "ignore_eos", "presence_penalty",
    "frequency_penalty", "repetition_penalty", "logit_bias", "logprobs", "skip_special_tokens",
    "return_token_ids", "truncate_prompt_tokens", "priority", "stream", "stream_options",
    "prefix_cache", "use_cache", "cache_salt", "response_format", "structured_outputs",
)  # fmt: skip
_HARMLESS = (
    "user", "safety_identifier", "metadata", "prompt_cache_key", "prompt_cache_retention",
    "prompt_cache_options", "cache_control", "cache_prompt", "keep_alive", "service_tier",
    "prediction", "verbosity", "num_batch", "num_gpu", "num_thread", "num_keep", "use_mmap",
    "use_mlock",
)  # fmt: skip
_SHARED: dict[str, FieldRule] = {
    **dict.fromkeys(_GENERATION_WORKS, _works()),
    **dict.fromkeys(_HARMLESS, _harmless()),
    "store": _only([False]),
    # samplers of other servers
    **dict.fromkeys(("typical_p", "typical", "tfs", "tfs_z", "length_penalty"), _only([1])),
    "repeat_penalty": _only([1], hint="Use 'repetition_penalty' instead."),
    **dict.fromkeys(
        ("top_a", "mirostat", "mirostat_mode", "dry_multiplier", "xtc_probability",
         "dynatemp_range", "smoothing_factor"), _only([0]),
    ),
    **dict.fromkeys(("early_stopping", "use_beam_search"), _only([False])),
    "best_of": _only_if(_is_n, "the value of 'n'"),
    "num_ctx": FieldRule(
        Support.REFUSED, _fits_num_ctx, "'num_ctx' is larger than this server was started with."
    ),
    "num_predict": _refused("Use 'max_tokens' instead."),
    "n_predict": _refused("Use 'max_tokens' instead."),
    "spaces_between_special_tokens": _only([True]),
    "bad_words": _only([[]]),
    "allowed_token_ids": _refused("Use 'logit_bias' instead."),
    "prompt_logprobs": _refused("Use /v1/completions with 'echo' and 'logprobs' instead."),
    # structured output, as other servers spell it
    **dict.fromkeys(
        ("guided_json", "json_schema"),
        _refused("Use 'response_format' with type 'json_schema' instead."),
    ),
    "guided_regex": _refused("Use 'structured_outputs' with 'regex' instead."),
    "guided_choice": _refused("Use 'structured_outputs' with 'choice' instead."),
    **dict.fromkeys(
        ("guided_grammar", "grammar"),
        _refused("Use 'structured_outputs' with 'grammar' instead."),
    ),
    "guided_whitespace_pattern": _refused(),
    "guided_decoding_backend": _refused(),
}  # fmt: skip
_CHAT_ONLY: dict[str, FieldRule] = {
    **dict.fromkeys(
        ("messages", "max_completion_tokens", "top_logprobs", "add_generation_prompt",
         "continue_final_message", "chat_template_kwargs", "reasoning_effort", "tools",
         "tool_choice", "parallel_tool_calls"), _works(),
    ),
    "echo": _only([False]),
    "functions": _only([[]], hint="Use 'tools' instead."),
    "function_call": _only(["none", "auto"], hint="Use 'tool_choice' instead."),
    # other modalities and services
    "modalities": _only([["text"]]),
    **dict.fromkeys(
        ("audio", "moderation", "web_search_options", "provider", "route"), _refused(),
    ),
    **dict.fromkeys(("plugins", "transforms"), _only([[]])),
    # the template
    "chat_template": _refused("The template is the checkpoint's; see 'chat_template_kwargs'."),
    "documents": _only([[]]),
    "enable_thinking": _refused("Put it into 'chat_template_kwargs'."),
    "thinking": _refused("Put it into 'chat_template_kwargs'."),
    "reasoning": _refused("Use 'reasoning_effort' instead."),
}  # fmt: skip
_COMPLETIONS_ONLY: dict[str, FieldRule] = {
    "prompt": _works(),
    "echo": _works(),
    "max_completion_tokens": _works(),
    "suffix": _only([""]),
    "top_logprobs": _refused("Use 'logprobs' with a number instead."),
}
_RENDERING = (
    "model", "messages", "add_generation_prompt", "continue_final_message", "chat_template_kwargs",
)  # fmt: skip

TABLE: Mapping[Endpoint, Mapping[str, FieldRule]] = {
    Endpoint.COMPLETIONS: _SHARED | _COMPLETIONS_ONLY,
    Endpoint.CHAT: _SHARED | _CHAT_ONLY,
    Endpoint.TOKENIZE: {
        **dict.fromkeys((*_RENDERING, "prompt", "add_special_tokens"), _works()),
        "return_token_strs": _works(),
        "tools": _only([[]]),
    },
    Endpoint.DETOKENIZE: {
        **dict.fromkeys(("model", "tokens", "skip_special_tokens"), _works()),
    },
}
"""Endpoint -> field -> rule. Null is absent whatever the rule."""

_MESSAGE_KEYS = frozenset({"role", "content", "name", "tool_calls", "tool_call_id"})
_PART_KEYS = frozenset({"type", "text", "refusal"})
_TOOL_CALL_KEYS = frozenset({"id", "type", "function", "index"})
_FUNCTION_KEYS = frozenset({"name", "arguments"})
_STREAM_OPTION_KEYS = frozenset({"include_usage", "continuous_usage_stats"})
_RESPONSE_FORMAT_KEYS = frozenset({"type", "json_schema"})
_JSON_SCHEMA_KEYS = frozenset({"name", "description", "schema", "strict"})


def judge(
    body: Mapping[str, object],
    endpoint: Endpoint,
    *,
    max_model_len: int,
    reject_unknown: bool = True,
) -> Judgement:
    """Hold a request body against the table.

    Args:
        body: The parsed JSON object.
        endpoint: Whose fields count.
        max_model_len: The longest sequence served, for `num_ctx`.
        reject_unknown: Whether a field in no row is refused; if not it is ignored and reported.

    Raises:
        UnknownParameterError: Names every unknown field, with the nearest known name.
        UnsupportedParameterError: A known field that is not served.
        UnsupportedValueError: A known field at a value that is not served.
    """
    table = TABLE[endpoint]
    present = {name: value for name, value in body.items() if value is not None}
    unknown = [name for name in present if name not in table]
    if unknown and reject_unknown:
        raise UnknownParameterError([_shown(name) for name in unknown], _guesses(unknown, table))
    facts = Facts(body, max_model_len)
    for name, value in present.items():
        if name in table and not table[name].neutral(value, facts):
            raise _refusal(name, value, table[name])
    values = {
        name: value
        for name, value in present.items()
        if name in table and table[name].support is Support.WORKS
    }
    harmless = [
        name for name in present if name in table and table[name].support is Support.HARMLESS
    ]
    return Judgement(values, (*unknown, *harmless, *sorted(set(_ignored_inside(values)))))


def _shown(name: str) -> str:
    """A client's field name, short and on one line."""
    return name[:100].encode("unicode_escape").decode("ascii")


def _guesses(unknown: list[str], table: Mapping[str, FieldRule]) -> dict[str, str]:
    """The nearest known name of each unknown one that has any."""
    known = [name for name, rule in table.items() if rule.support is not Support.REFUSED]
    nearest = {
        name: difflib.get_close_matches(name[:100].lower(), known, n=1) for name in unknown[:20]
    }
    return {_shown(name): found[0] for name, found in nearest.items() if found}


def _refusal(name: str, value: object, rule: FieldRule) -> InvalidRequestError:
    hint = f" {rule.hint}" if rule.hint else ""
    if rule.only:
        return UnsupportedValueError(
            f"Unsupported value: '{name}' does not support {shorten(value)} on this server. "
            f"Only {rule.only} is supported.{hint}",
            param=name,
        )
    return UnsupportedParameterError(
        f"Unsupported parameter: '{name}' is not supported by this server and would change the "
        f"result (got {shorten(value)}).{hint}",
        param=name,
    )


def shorten(value: object, limit: int = 80) -> str:
    """A client's value as JSON, cut so that an error stays readable."""
    text = json.dumps(value, default=str)
    return text if len(text) <= limit else f"{text[:limit]}..."


def _ignored_inside(values: Mapping[str, object]) -> Iterator[str]:
    """Paths of the unknown keys inside messages, their parts and calls, and stream_options.

    Null keys are absent. Malformed values are passed over: the schemas refuse them.
    """
    yield from _unknown_keys(values.get("stream_options"), _STREAM_OPTION_KEYS, "stream_options")
    form = values.get("response_format")
    yield from _unknown_keys(form, _RESPONSE_FORMAT_KEYS, "response_format")
    if isinstance(form, Mapping):
        path = "response_format.json_schema"
        yield from _unknown_keys(form.get("json_schema"), _JSON_SCHEMA_KEYS, path)
    for message in _objects(values.get("messages")):
        yield from _unknown_keys(message, _MESSAGE_KEYS, "messages[]")
        for part in _objects(message.get("content")):
            yield from _unknown_keys(part, _PART_KEYS, "messages[].content[]")
        for call in _objects(message.get("tool_calls")):
            path = "messages[].tool_calls[]"
            yield from _unknown_keys(call, _TOOL_CALL_KEYS, path)
            yield from _unknown_keys(call.get("function"), _FUNCTION_KEYS, f"{path}.function")


def _objects(value: object) -> Iterator[Mapping[str, object]]:
    if isinstance(value, list):
        yield from (item for item in value if isinstance(item, dict))


def _unknown_keys(value: object, known: frozenset[str], path: str) -> Iterator[str]:
    if isinstance(value, Mapping):
        for key, inner in value.items():
            if key not in known and inner is not None:
                yield f"{path}.{key}"
