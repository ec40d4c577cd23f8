"""The one table of request fields beside those that work: what is harmless, and what is refused.

A field works if the schema of its endpoint has it. `judge` holds a body against schema and table
before anything else looks at the values; whether a value is well-formed is the schema's business.
To support a field, move it from its row to the schema. Knows no engine and no HTTP.
"""

from __future__ import annotations

import difflib
import enum
import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from server.api.fields.field_rules import (
    Facts,
    FieldRule,
    Shape,
    Support,
    harmless,
    only,
    only_if,
    refused,
    same,
    unknown_keys,
)
from server.api.fields.translated_fields import (
    MESSAGE_FIELDS,
    MESSAGE_SHAPES,
    RESPONSE_FIELDS,
    RESPONSE_SHAPES,
)
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
    RESPONSES = "responses"
    MESSAGES = "messages"
    TOKENIZE = "tokenize"
    DETOKENIZE = "detokenize"
    COMPARE = "compare"
    ATTENTION = "attention"


@dataclass(frozen=True, slots=True)
class Judgement:
    """What `judge` found.

    `values` are the fields that work, without nulls; `ignored` names what was not looked at.
    """

    values: dict[str, object]
    ignored: tuple[str, ...]


def _fits_num_ctx(value: object, facts: Facts) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value <= facts.max_model_len


def _is_n(value: object, facts: Facts) -> bool:
    n = facts.body.get("n")
    return same(value, 1 if n is None else n)


_HARMLESS = (
    "user", "safety_identifier", "metadata", "prompt_cache_key", "prompt_cache_retention",
    "prompt_cache_options", "cache_control", "cache_prompt", "keep_alive", "service_tier",
    "prediction", "verbosity", "request_id", "num_batch", "num_gpu", "num_thread", "num_keep",
    "use_mmap", "use_mlock", "promptCacheKey", "reasoningSummary",
)  # fmt: skip
_SHARED: dict[str, FieldRule] = {
    **dict.fromkeys(_HARMLESS, harmless()),
    "store": only([False]),
    # samplers of other servers
    **dict.fromkeys(("typical_p", "typical", "tfs", "tfs_z", "length_penalty"), only([1])),
    "repeat_penalty": only([1], hint="Use 'repetition_penalty' instead."),
    **dict.fromkeys(
        ("top_a", "mirostat", "mirostat_mode", "dry_multiplier", "xtc_probability",
         "dynatemp_range", "smoothing_factor"), only([0]),
    ),
    **dict.fromkeys(("early_stopping", "use_beam_search"), only([False])),
    "best_of": only_if(_is_n, "the value of 'n'"),
    "num_ctx": FieldRule(
        Support.REFUSED, _fits_num_ctx, "'num_ctx' is larger than this server was started with."
    ),
    "num_predict": refused("Use 'max_tokens' instead."),
    "n_predict": refused("Use 'max_tokens' instead."),
    **dict.fromkeys(("spaces_between_special_tokens", "detokenize"), only([True])),
    # what sglang-router writes into every request
    "no_stop_trim": only([False], hint="Use 'include_stop_str_in_output' instead."),
    "return_hidden_states": only([False]),
    "return_tokens_as_token_ids": only([False], hint="Use 'return_token_ids' instead."),
    # structured output, as other servers spell it
    **dict.fromkeys(
        ("guided_json", "json_schema"),
        refused("Use 'response_format' with type 'json_schema' instead."),
    ),
    "guided_regex": refused("Use 'structured_outputs' with 'regex' instead."),
    "guided_choice": refused("Use 'structured_outputs' with 'choice' instead."),
    **dict.fromkeys(
        ("guided_grammar", "grammar"),
        refused("Use 'structured_outputs' with 'grammar' instead."),
    ),
    **{
        name: refused(f"Use 'structured_outputs' with '{name}' instead.")
        for name in ("regex", "choice", "json")
    },
    "guided_whitespace_pattern": refused(),
    "guided_decoding_backend": refused(),
}  # fmt: skip
_CHAT_ONLY: dict[str, FieldRule] = {
    "echo": only([False]),
    "add_special_tokens": only([False], hint="The template writes them."),
    **dict.fromkeys(("include_reasoning", "separate_reasoning", "stream_reasoning"), only([True])),
    **dict.fromkeys(("prompt", "input"), refused("Use 'messages' instead.")),
    "functions": only([[]], hint="Use 'tools' instead."),
    "function_call": only(["none", "auto"], hint="Use 'tool_choice' instead."),
    # other modalities and services
    "modalities": only([["text"]]),
    **dict.fromkeys(
        ("audio", "moderation", "web_search_options", "provider", "route"), refused(),
    ),
    **dict.fromkeys(("plugins", "transforms"), only([[]])),
    # the template
    "chat_template": refused("The template is the checkpoint's; see 'chat_template_kwargs'."),
    "documents": only([[]]),
    "enable_thinking": refused("Put it into 'chat_template_kwargs'."),
    "thinking": refused("Put it into 'chat_template_kwargs'."),
    "reasoning": refused("Use 'reasoning_effort' instead."),
}  # fmt: skip
_COMPLETIONS_ONLY: dict[str, FieldRule] = {
    "suffix": only([""]),
    "add_special_tokens": only([True]),
    **dict.fromkeys(("messages", "input"), refused("Use 'prompt' instead.")),
    "top_logprobs": refused("Use 'logprobs' with a number instead."),
}
TABLE: Mapping[Endpoint, Mapping[str, FieldRule]] = {
    Endpoint.COMPLETIONS: _SHARED | _COMPLETIONS_ONLY,
    Endpoint.CHAT: _SHARED | _CHAT_ONLY,
    Endpoint.RESPONSES: RESPONSE_FIELDS,
    Endpoint.MESSAGES: MESSAGE_FIELDS,
    Endpoint.TOKENIZE: {},
    Endpoint.DETOKENIZE: {},
    Endpoint.COMPARE: {},
    Endpoint.ATTENTION: {},
}
"""Endpoint -> field that its schema has not -> rule. Null is absent whatever the rule."""

REASONING_KEYS = ("reasoning_content", "reasoning")
"""Where an assistant's turn has the thoughts that led to it."""
_STREAM_OPTIONS = dict.fromkeys(("include_usage", "continuous_usage_stats"))
_CALL = {"id": None, "type": None, "index": None, "function": dict.fromkeys(("name", "arguments"))}
_MESSAGE: Shape = {
    **dict.fromkeys(("role", "name", "tool_call_id", *REASONING_KEYS)),
    "content": dict.fromkeys(("type", "text", "refusal")),
    "tool_calls": _CALL,
}
_GENERATION_SHAPES: Mapping[str, Shape] = {
    "stream_options": _STREAM_OPTIONS, "messages": _MESSAGE,
}  # fmt: skip
SHAPES: Mapping[Endpoint, Mapping[str, Shape]] = {
    Endpoint.COMPLETIONS: _GENERATION_SHAPES,
    Endpoint.CHAT: _GENERATION_SHAPES,
    Endpoint.RESPONSES: RESPONSE_SHAPES,
    Endpoint.MESSAGES: MESSAGE_SHAPES,
    Endpoint.TOKENIZE: {"messages": _MESSAGE},
    Endpoint.DETOKENIZE: {},
    Endpoint.COMPARE: {},
    Endpoint.ATTENTION: {},
}
"""Endpoint -> field -> the keys that are looked at inside; others are ignored and reported."""


def judge(
    body: Mapping[str, object],
    endpoint: Endpoint,
    *,
    works: Collection[str],
    max_model_len: int,
    reject_unknown: bool = True,
) -> Judgement:
    """Hold a request body against the schema's fields and the table.

    Args:
        body: The parsed JSON object.
        endpoint: Whose rows count.
        works: The fields that the endpoint's schema has.
        max_model_len: The longest sequence served, for `num_ctx`.
        reject_unknown: Whether a field that nobody knows is refused; if not it is ignored and
            reported.

    Raises:
        UnknownParameterError: Names every unknown field, with the nearest known name.
        UnsupportedParameterError: A known field that is not served.
        UnsupportedValueError: A known field at a value that is not served.
    """
    table = TABLE[endpoint]
    present = {name: value for name, value in body.items() if value is not None}
    unknown = [name for name in present if name not in works and name not in table]
    if unknown and reject_unknown:
        raise UnknownParameterError(
            [_shown(name) for name in unknown], _guesses(unknown, table, works)
        )
    facts = Facts(body, max_model_len)
    listed = {name: table[name] for name in present if name in table}
    for name, rule in listed.items():
        if not rule.neutral(present[name], facts):
            raise _refusal(name, present[name], rule)
    values = {name: value for name, value in present.items() if name in works}
    unseen = [name for name, rule in listed.items() if rule.support is Support.HARMLESS]
    inside = {
        path
        for name, shape in SHAPES[endpoint].items()
        for path in unknown_keys(values.get(name), shape, name)
    }
    return Judgement(values, (*unknown, *unseen, *sorted(inside)))


def _shown(name: str) -> str:
    """A client's field name, short and on one line."""
    return name[:100].encode("unicode_escape").decode("ascii")


def _guesses(
    unknown: list[str], table: Mapping[str, FieldRule], works: Collection[str]
) -> dict[str, str]:
    """The nearest known name of each unknown one that has any."""
    harmless_names = (name for name, rule in table.items() if rule.support is Support.HARMLESS)
    known = [*works, *harmless_names]
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
