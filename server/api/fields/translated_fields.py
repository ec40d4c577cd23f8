"""The rows of /v1/responses and /v1/messages in the table of request fields.

Both are translated to chat requests; what a chat request cannot say is refused here by its own
name. Knows no engine and no HTTP.
"""

from __future__ import annotations

from collections.abc import Mapping

from server.api.fields.field_rules import (
    Facts,
    FieldRule,
    Shape,
    Support,
    harmless,
    only,
    refused,
)

_STATELESS = "This server keeps no state: send the whole conversation as 'input'."
_BOTH: Mapping[str, FieldRule] = {
    **dict.fromkeys(("service_tier", "cache_control"), harmless()),
    "n": only([1]),
}


def _names_no_logprobs(value: object, _facts: Facts) -> bool:
    return not (isinstance(value, list) and "message.output_text.logprobs" in value)


RESPONSE_FIELDS: Mapping[str, FieldRule] = {
    **_BOTH,
    **dict.fromkeys(
        ("user", "safety_identifier", "prompt_cache_key", "prompt_cache_retention",
         "prompt_cache_options", "client_metadata", "access_programs", "max_tool_calls",
         "stream_options"), harmless(),
    ),
    "include": FieldRule(
        Support.HARMLESS,
        _names_no_logprobs,
        only='what does not name "message.output_text.logprobs"',
        hint="Use /v1/chat/completions with 'logprobs' instead.",
    ),
    "store": only([False], hint=_STATELESS),
    "previous_response_id": refused(_STATELESS),
    "conversation": refused(_STATELESS),
    "background": only([False]),
    "truncation": only(["disabled"]),
    "context_management": only([[]]),
    "top_logprobs": only([0], hint="Use /v1/chat/completions with 'top_logprobs' instead."),
    **dict.fromkeys(
        ("prompt", "moderation", "personality", "image", "background_options"), refused()
    ),
    # the names of the other endpoints
    "messages": refused("Use 'input' instead."),
    "max_tokens": refused("Use 'max_output_tokens' instead."),
    "max_completion_tokens": refused("Use 'max_output_tokens' instead."),
    "response_format": refused("Use 'text' with 'format' instead."),
    "reasoning_effort": refused("Use 'reasoning' with 'effort' instead."),
    "stop": only([[]], hint="Use /v1/chat/completions with 'stop' instead."),
}  # fmt: skip
"""Field -> rule, for /v1/responses and its input_tokens."""

_PARTS: Shape = dict.fromkeys(("type", "text", "refusal"))
RESPONSE_SHAPES: Mapping[str, Shape] = {
    "input": {
        **dict.fromkeys(
            ("type", "role", "call_id", "name", "namespace", "arguments", "input", "summary")
        ),
        "content": _PARTS,
        "output": _PARTS,
    },
    "text": {"format": None},
    "reasoning": {"effort": None},
    "tools": {
        **dict.fromkeys(("type", "name", "description", "parameters", "strict")),
        "tools": dict.fromkeys(("type", "name", "description", "parameters", "strict")),
    },
    "tool_choice": dict.fromkeys(("type", "name")),
}
"""Field -> the keys that are looked at inside."""

MESSAGE_FIELDS: Mapping[str, FieldRule] = {
    **_BOTH,
    **dict.fromkeys(
        ("metadata", "diagnostics", "inference_geo", "speed", "user_profile_id", "workspace_id",
         "billing_policy", "fallbacks", "fallback_credit_token", "betas"), harmless(),
    ),
    # It asks to drop old thoughts and results from a long prompt; all that was sent is kept.
    "context_management": harmless(),
    "mcp_servers": only([[]]),
    "output_format": refused("Use 'output_config' with 'format' instead."),
    **dict.fromkeys(("container", "compaction", "thread"), refused()),
    # the names of the other endpoints
    "stop": refused("Use 'stop_sequences' instead."),
    "max_completion_tokens": refused("Use 'max_tokens' instead."),
    "response_format": refused("Use 'output_config' with 'format' instead."),
    "parallel_tool_calls": refused("Use 'tool_choice' with 'disable_parallel_tool_use' instead."),
}  # fmt: skip
"""Field -> rule, for /v1/messages and its count_tokens."""

_TEXT: Shape = dict.fromkeys(("type", "text", "tool_name"))
MESSAGE_SHAPES: Mapping[str, Shape] = {
    "system": _TEXT,
    "messages": {
        "role": None,
        "content": {
            **dict.fromkeys(("type", "text", "thinking", "id", "name", "input", "tool_use_id")),
            "content": _TEXT,
        },
    },
    "tools": dict.fromkeys(("type", "name", "description", "input_schema", "strict")),
    "tool_choice": dict.fromkeys(("type", "name", "disable_parallel_tool_use")),
    "thinking": {"type": None},
    "output_config": {"effort": None, "format": None},
}
"""Field -> the keys that are looked at inside."""
