"""server.api.inputs.prompt_encoder: texts and turns as the model reads them."""

from __future__ import annotations

import pytest
from fakes import MAX_MODEL_LEN, FakeChatTemplate, FakeEngine
from pydantic import TypeAdapter

from server.api.inputs.prompt_encoder import MAX_NORMALISATION, PromptEncoder
from server.api.schemas.requests import Messages
from server.api.structured_output.output_form import OutputForms
from server.errors import ContextLengthError, InvalidRequestError

USER = {"role": "user", "content": "hi"}
BEGUN = {"role": "assistant", "content": "bl"}


def encoder(template: FakeChatTemplate | None) -> PromptEncoder:
    engine = FakeEngine()
    forms = OutputForms(engine.tokenizer, template)
    return PromptEncoder(engine.info, engine.tokenizer, template, forms=forms)


def chat(*messages: dict, **options: object) -> str:
    """What the model reads of a chat."""
    return chat_with(FakeChatTemplate(), *messages, **options)


def chat_with(template: FakeChatTemplate | None, *messages: dict, **options: object) -> str:
    defaults = {
        "add_generation_prompt": True, "continue_final_message": False, "kwargs": {},
        "truncates": False,
    }  # fmt: skip
    turns = TypeAdapter(Messages).validate_python([*messages])
    return bytes(encoder(template).chat(turns, **(defaults | options))).decode()


def test_a_chat_ends_with_the_header_of_an_answer_or_stays_open():
    """No header follows a turn that is continued, and the turn is not closed."""
    assert chat(USER) == "user:hi;assistant:"
    assert chat(USER, add_generation_prompt=False) == "user:hi;"
    options = {"add_generation_prompt": False, "continue_final_message": True}
    assert chat(USER, BEGUN, **options) == "user:hi;assistant:bl"
    with pytest.raises(InvalidRequestError, match="'add_generation_prompt' to be false"):
        chat(USER, BEGUN, continue_final_message=True)


@pytest.mark.parametrize("name", ["self", "tokenizer", "messages", "tools", "control_tokens"])
def test_a_client_sets_no_argument_that_is_not_its_own(name):
    """What has a field of its own, or none at all, is refused by name."""
    with pytest.raises(InvalidRequestError, match=f"must not set '{name}'"):
        chat(USER, kwargs={name: 1})


def test_a_template_refuses_in_its_own_words():
    """The client reads why."""
    with pytest.raises(InvalidRequestError, match="roles must alternate") as error:
        chat({"role": "user", "content": "refuse"})
    assert error.value.param == "messages"


def test_a_model_without_template_says_so():
    """With the way out."""
    with pytest.raises(InvalidRequestError, match="no chat template") as error:
        chat_with(None, USER)
    assert error.value.code == "no_chat_template"
    assert not encoder(None).template_reads("enable_thinking")


def test_bytes_prove_that_a_text_cannot_fit(monkeypatch):
    """No token has more bytes than the longest, of a text that normalising made shorter."""
    one = encoder(None)
    longest = len("<bos>")
    fits = "x" * (MAX_MODEL_LEN * longest * MAX_NORMALISATION)
    monkeypatch.setattr(one, "_check_beginnings", lambda text, param: None)
    one.check_length([fits], "prompt")
    with pytest.raises(ContextLengthError, match="at least"):
        one.check_length([fits, "x" * longest * MAX_NORMALISATION], "prompt")
    with pytest.raises(ContextLengthError):
        chat({"role": "user", "content": fits * 2})
    assert len(chat({"role": "user", "content": fits * 2}, truncates=True)) > len(fits)


def test_a_text_that_cannot_fit_is_not_tokenised_whole(monkeypatch):
    """Its beginning has too many tokens already, however long the longest token may be."""
    one = encoder(None)
    monkeypatch.setattr(type(one), "_longest_token", 1_000_000)
    lengths = []
    encode = one._tokenizer.encode

    def watched(text: str, **options: bool) -> list[int]:
        lengths.append(len(text))
        return encode(text, **options)

    monkeypatch.setattr(one._tokenizer, "encode", watched)
    with pytest.raises(ContextLengthError, match="at least"):
        one.check_length(["x" * 1_000_000], "prompt")
    assert sum(lengths) < 10 * MAX_MODEL_LEN
    one.check_length(["x" * MAX_MODEL_LEN], "prompt")


def test_a_short_text_costs_no_look_at_the_vocabulary(monkeypatch):
    """A server's first request would wait for it."""
    one = encoder(None)
    monkeypatch.setattr(one._tokenizer, "token_bytes", lambda _token_id: 1 / 0)
    one.check_length(["x" * MAX_MODEL_LEN * MAX_NORMALISATION], "prompt")
    with pytest.raises(ZeroDivisionError):
        one.check_length(["x" * (MAX_MODEL_LEN + 1) * MAX_NORMALISATION], "prompt")
