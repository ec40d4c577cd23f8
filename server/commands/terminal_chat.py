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
            raise _told(error, self._client) from error
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


def connect(url: str, *, api_key: str | None = None) -> httpx.Client:
    """A client of the server at this URL, with or without /v1 at its end.

    Raises:
        ChatError: It is no URL of HTTP.
    """
    base = url.rstrip("/").removesuffix("/v1")
    if not base.startswith(("http://", "https://")):
        raise ChatError(f"--url: expected one such as http://127.0.0.1:8000 (got {url})")
    headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
    return httpx.Client(base_url=base, timeout=_TIMEOUT, headers=headers)


def first_model(client: httpx.Client) -> tuple[str, Mapping[str, object] | None]:
    """The model that the server names first.

    Returns:
        Its id, and the sampling that its checkpoint recommends; None where the server is of
        another kind and does not say.

    Raises:
        ChatError: Nobody answers, or not as a server of models does.
    """
    try:
        response = client.get("/v1/models")
    except httpx.HTTPError as error:
        raise _told(error, client) from error
    if response.status_code != httpx.codes.OK:
        raise ChatError(f"{client.base_url}: {_error_message(response.text)}")
    try:
        card = response.json()["data"][0]
        recommended = card.get("default_sampling")
        return str(card["id"]), recommended if isinstance(recommended, dict) else None
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise ChatError(f"{client.base_url} names no models as OpenAI's API does") from error


def _told(error: Exception, client: httpx.Client) -> ChatError:
    """What went wrong, with the address where nobody answers."""
    if isinstance(error, httpx.TransportError):
        why = str(error) or type(error).__name__
        return ChatError(f"no answer from {client.base_url} ({why}): is the server running?")
    return ChatError(str(error) or type(error).__name__)


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
