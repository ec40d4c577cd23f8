"""server.commands.terminal_chat: a conversation over HTTP."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from fakes import FakeEngine
from serving import serving, wait_until

from server.commands.terminal_chat import ChatError, TerminalChat, connect


@pytest.fixture
def engine() -> FakeEngine:
    return FakeEngine("fine, é")


@pytest.fixture
def chat(engine: FakeEngine) -> Iterator[TerminalChat]:
    with serving(engine) as url, connect(f"{url}/v1/") as client:
        yield TerminalChat(client, system="be kind", options={"max_tokens": 50})


def test_an_answer_is_shown_and_remembered(chat, engine):
    """The next question carries the whole history."""
    shown = []
    chat.ask("how are you?", shown.append)
    assert "".join(shown) == "fine, é"
    chat.ask("sure?", shown.append)
    roles = [message["role"] for message in chat.messages]
    assert roles == ["system", "user", "assistant", "user", "assistant"]
    prompt = bytes(engine.requests[-1].token_ids).decode()
    assert prompt == "system:be kind;user:how are you?;assistant:fine, é;user:sure?;assistant:"


def test_ctrl_c_stops_the_answer_and_keeps_what_was_said(chat, engine):
    """The server ends the request as well."""
    shown = []

    def show(piece: str) -> None:
        shown.append(piece)
        if "".join(shown) == "fin":
            raise KeyboardInterrupt

    engine.step_seconds = 0.01
    chat.ask("how are you?", show)
    assert chat.messages[-1] == {"role": "assistant", "content": "fin"}
    assert wait_until(lambda: engine.aborted)


def test_an_error_is_raised_and_the_question_forgotten(chat, engine):
    """Refused before or broken off in the middle, the sentence is the server's."""
    chat.messages[0]["content"] = "refuse"
    with pytest.raises(ChatError, match="chat template refuses"):
        chat.ask("x", lambda _: None)
    chat.messages.clear()
    engine.fail_after = 2
    with pytest.raises(ChatError, match="injected failure"):
        chat.ask("x", lambda _: None)
    assert chat.messages == []


def test_no_server_is_one_sentence():
    """Nobody listens there."""
    with connect("http://127.0.0.1:9") as client, pytest.raises(ChatError, match="refused"):
        TerminalChat(client, system=None, options={}).ask("x", lambda _: None)
