"""A chat in the terminal, over HTTP with any server that speaks the OpenAI API.

Keeps the history of one conversation; Ctrl-C stops an answer, and what was said until then stays
in the history.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Generator, Mapping
from contextlib import closing

import httpx

from server.errors import KvserveError

_DATA = "data: "
_TIMEOUT = httpx.Timeout(10.0, read=None)


class ChatError(KvserveError):
    """The server could not be reached, or did not answer as a chat server does."""


class TerminalChat:
    """One conversation.

    Args:
        client: Its base URL is the server's.
        system: The system message, if any.
        options: Further fields of each request, such as temperature.
    """

    def __init__(
        self, client: httpx.Client, *, system: str | None, options: Mapping[str, object]
    ) -> None:
        self._client = client
        self._options = options
        self.messages: list[dict[str, str]] = []
        if system:
            self.messages.append({"role": "system", "content": system})

    def ask(self, text: str, show: Callable[[str], None]) -> None:
        """Ask, and show the answer as it comes; Ctrl-C ends it early.

        Args:
            text: What the user says.
            show: Called with each piece of the answer.

        Raises:
            ChatError: There is no answer; the question is not kept.
        """
        self.messages.append({"role": "user", "content": text})
        answer = ""
        try:
            with closing(self._pieces()) as pieces:
                for piece in pieces:
                    answer += piece
                    show(piece)
        except KeyboardInterrupt:
            show(" [stopped]")
        except (ChatError, httpx.HTTPError) as error:
            self.messages.pop()
            raise ChatError(str(error) or type(error).__name__) from error
        self.messages.append({"role": "assistant", "content": answer})

    def _pieces(self) -> Generator[str, None, None]:
        body = {**self._options, "messages": self.messages, "stream": True}
        with self._client.stream("POST", "/v1/chat/completions", json=body) as response:
            if response.status_code != httpx.codes.OK:
                response.read()
                raise ChatError(_error_message(response.text))
            for line in response.iter_lines():
                if line.startswith(_DATA) and line != f"{_DATA}[DONE]":
                    yield _content(line.removeprefix(_DATA))


def connect(url: str) -> httpx.Client:
    """A client of the server at this URL, with or without /v1 at its end."""
    return httpx.Client(base_url=url.rstrip("/").removesuffix("/v1"), timeout=_TIMEOUT)


def _content(data: str) -> str:
    """The text an event adds.

    Raises:
        ChatError: The event is an error.
    """
    chunk = json.loads(data)
    if "error" in chunk:
        raise ChatError(_error_message(data))
    return "".join(choice["delta"].get("content") or "" for choice in chunk["choices"])


def _error_message(text: str) -> str:
    """The sentence of an error body, or the body itself if it is not one of ours."""
    try:
        return str(json.loads(text)["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return text[:200] or "the server answered with an error and no text"
