"""server.api.transport.wire: strict JSON and events."""

from __future__ import annotations

import json

import pytest

from server.api.schemas import wire_types
from server.api.transport.wire import encode, encode_patiently, event


def test_events_are_ascii():
    """Clients that split lines at every Unicode line end see one line."""
    part = event({"text": "\u2028🦉\x85"})
    assert part.isascii()
    assert part.count(b"\n") == 2
    assert json.loads(part[6:])["text"] == "\u2028🦉\x85"


@pytest.mark.parametrize("write", [encode, encode_patiently])
def test_what_json_cannot_say_is_never_written(write):
    """A number that is none is a fault of ours, not a broken body."""
    with pytest.raises(ValueError, match="JSON"):
        write({"x": float("nan")})


def test_patience_writes_the_same():
    """Fields that were not set are left out on every level, in the same order."""
    usage = wire_types.Usage(
        prompt_tokens=1,
        completion_tokens=2,
        total_tokens=3,
        prompt_tokens_details=wire_types.PromptTokensDetails(cached_tokens=0),
    )
    choice = wire_types.CompletionChoice(
        index=0, text="é", logprobs=None, finish_reason="stop", token_ids=[1, 2]
    )
    scores = [None, {"5": wire_types.PromptLogprob(logprob=-1.5, rank=None, decoded_token="x")}]
    answer = wire_types.Completion(
        id="a", object="text_completion", created=1, model="m", seed=2, usage=usage,
        choices=[choice, choice.model_copy(update={"prompt_logprobs": scores})],
    )  # fmt: skip
    assert encode_patiently(answer) == encode(answer)
    assert b"stop_reason" not in encode(answer)
