"""server.api.fields.fields: the table and how a body is judged by it."""

from __future__ import annotations

import pytest
from anthropic.types import message_count_tokens_params, message_create_params
from anthropic.types.beta import message_create_params as beta_message_params
from openai.types import completion_create_params
from openai.types.chat import completion_create_params as chat_params
from openai.types.responses import input_token_count_params, response_create_params

from server.api.fields.fields import TABLE, Endpoint, judge
from server.api.schemas.message_schemas import MessageBody
from server.api.schemas.requests import (
    AttentionBody,
    ChatBody,
    CompareBody,
    CompletionBody,
    DetokenizeBody,
    TokenizeBody,
)
from server.api.schemas.response_schemas import ResponseBody
from server.errors import UnknownParameterError, UnsupportedParameterError, UnsupportedValueError

SCHEMAS = {
    Endpoint.CHAT: ChatBody,
    Endpoint.RESPONSES: ResponseBody,
    Endpoint.MESSAGES: MessageBody,
    Endpoint.COMPLETIONS: CompletionBody,
    Endpoint.TOKENIZE: TokenizeBody,
    Endpoint.DETOKENIZE: DetokenizeBody,
    Endpoint.COMPARE: CompareBody,
    Endpoint.ATTENTION: AttentionBody,
}


def works(endpoint):
    return SCHEMAS[endpoint].model_fields.keys()


def verdict(body, endpoint=Endpoint.CHAT, **options):
    return judge(body, endpoint, works=works(endpoint), max_model_len=512, **options)


@pytest.mark.parametrize(
    ("endpoint", "params"),
    [
        (Endpoint.CHAT, chat_params.CompletionCreateParamsStreaming),
        (Endpoint.COMPLETIONS, completion_create_params.CompletionCreateParamsStreaming),
        (Endpoint.RESPONSES, response_create_params.ResponseCreateParamsStreaming),
        (Endpoint.RESPONSES, input_token_count_params.InputTokenCountParams),
        (Endpoint.MESSAGES, message_create_params.MessageCreateParamsStreaming),
        (Endpoint.MESSAGES, beta_message_params.MessageCreateParamsStreaming),
        (Endpoint.MESSAGES, message_count_tokens_params.MessageCountTokensParams),
    ],
)
def test_every_field_of_the_official_packages_is_decided(endpoint, params):
    """A field that is added to one needs a decision before the tests pass again."""
    fields = {name for base in params.__mro__ for name in vars(base).get("__annotations__", {})}
    assert len(fields) > 8
    assert fields <= TABLE[endpoint].keys() | works(endpoint)


@pytest.mark.parametrize("endpoint", list(Endpoint))
def test_a_field_works_or_has_a_row(endpoint):
    """No field of a schema is refused or passed over by the table."""
    assert TABLE[endpoint].keys() & works(endpoint) == set()


@pytest.mark.parametrize("endpoint", list(Endpoint))
def test_null_is_absent_everywhere(endpoint):
    """A null asks for nothing, be the field supported or not, or even unknown."""
    body = dict.fromkeys([*TABLE[endpoint], *works(endpoint), "no_such_field"])
    judged = verdict(body, endpoint)
    assert judged.values == {}
    assert judged.ignored == ()


def test_unknown_fields_are_refused_together_with_the_nearest_names():
    """A typo is found, with a hint."""
    with pytest.raises(UnknownParameterError) as error:
        verdict({"tempreature": 1, "zzzz": 2, "user": "me"})
    assert "'tempreature', 'zzzz'" in error.value.message
    assert "'temperature'" in error.value.message


def test_unknown_fields_can_be_ignored_and_are_reported():
    """The switch changes unknown fields only."""
    assert verdict({"zzzz": 2}, reject_unknown=False).ignored == ("zzzz",)
    with pytest.raises(UnsupportedParameterError):
        verdict({"guided_json": {}}, reject_unknown=False)


@pytest.mark.parametrize(
    "body",
    [
        {"typical_p": 1.0, "tfs_z": 1, "mirostat": 0, "store": False, "best_of": 3, "n": 3},
        {"tools": [], "tool_choice": "auto", "functions": [], "modalities": ["text"]},
        {"response_format": {"type": "text"}, "num_ctx": 512, "early_stopping": False},
    ],
)
def test_neutral_values_are_accepted(body):
    """A value that asks for nothing is no reason to refuse."""
    assert verdict(body).ignored == ()


@pytest.mark.parametrize(
    ("field", "value", "kind"),
    [
        ("mirostat", 2, UnsupportedValueError),
        ("mirostat", False, UnsupportedValueError),
        ("typical_p", True, UnsupportedValueError),
        ("store", True, UnsupportedValueError),
        ("best_of", 2, UnsupportedValueError),
        ("functions", [{"name": "f"}], UnsupportedValueError),
        ("guided_json", {}, UnsupportedParameterError),
        ("grammar", 'root ::= "a"', UnsupportedParameterError),
        ("num_ctx", 513, UnsupportedParameterError),
        ("guided_regex", "a*", UnsupportedParameterError),
        ("web_search_options", {}, UnsupportedParameterError),
    ],
)
def test_other_values_are_refused_by_name(field, value, kind):
    """What would change the result is never dropped; 0 is not false and 1 is not true."""
    with pytest.raises(kind) as error:
        verdict({field: value})
    assert error.value.param == field
    assert f"'{field}'" in error.value.message
    assert "context length" not in error.value.message


def test_harmless_fields_and_inner_keys_are_reported():
    """Whatever was not looked at is named, once."""
    part = {"type": "text", "text": "a", "cache_control": {}}
    judged = verdict(
        {
            "user": "me",
            "stream_options": {"include_usage": True, "include_obfuscation": False},
            "messages": [
                {"role": "user", "content": [part, part], "sender": "x", "audio": None},
                {"role": "assistant", "tool_calls": [{"function": {"strict": True}, "x": 1}]},
            ],
        }
    )
    assert judged.ignored == (
        "user",
        "messages[].content[].cache_control",
        "messages[].sender",
        "messages[].tool_calls[].function.strict",
        "messages[].tool_calls[].x",
        "stream_options.include_obfuscation",
    )


def test_a_hostile_field_name_is_shown_on_one_line():
    """A client's name cannot break the message into lines or fill it."""
    with pytest.raises(UnknownParameterError) as error:
        verdict({"a\nb" + "x" * 500: 1})
    assert "\n" not in error.value.message
    assert len(error.value.message) < 600
