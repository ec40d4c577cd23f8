"""OtherForms: the handlers of /v1/responses and /v1/messages, chats in other words.

What is asked becomes a chat, which runs as any other does; only its answer is written differently.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from server.api.dialects.dialect import Dialect
from server.api.dialects.message_answers import MessageTokens
from server.api.dialects.message_writer import MessageWriter
from server.api.dialects.messages import MESSAGE_COUNTS, MESSAGES
from server.api.dialects.response_answers import InputTokens
from server.api.dialects.response_writer import ResponseWriter
from server.api.dialects.responses import RESPONSES
from server.api.handlers.dispatcher import Dispatcher, json_answer


class OtherForms:
    """The handlers of chats in other words.

    Args:
        dispatcher: Reads, checks and runs.
    """

    def __init__(self, dispatcher: Dispatcher) -> None:
        self._dispatcher = dispatcher

    async def responses(self, request: Request) -> Response:
        """Create a response; nothing of it is kept."""
        asked = await self._dispatcher.read_in(RESPONSES, request)
        body, chat = asked.body
        return await self._dispatcher.generate(
            request,
            asked,
            lambda: self._dispatcher.inputs.chat(chat),
            kind=partial(ResponseWriter, body=body),
            num_sequences=1,
        )

    async def response_tokens(self, request: Request) -> Response:
        """Count the tokens of a response's input."""
        count, ignored = await self._count(RESPONSES, request)
        answer = InputTokens(object="response.input_tokens", input_tokens=count)
        return json_answer(answer, ignored)

    async def messages(self, request: Request) -> Response:
        """Create a message."""
        asked = await self._dispatcher.read_in(MESSAGES, request)
        _, chat = asked.body
        return await self._dispatcher.generate(
            request,
            asked,
            lambda: self._dispatcher.inputs.chat(chat),
            kind=MessageWriter,
            num_sequences=1,
        )

    async def message_tokens(self, request: Request) -> Response:
        """Count the tokens of a message's prompt."""
        count, ignored = await self._count(MESSAGE_COUNTS, request)
        return json_answer(MessageTokens(input_tokens=count), ignored)

    async def _count(self, dialect: Dialect[Any], request: Request) -> tuple[int, tuple[str, ...]]:
        """How many tokens a prompt has, and what of the body was ignored."""
        asked = await self._dispatcher.read_in(dialect, request)
        _, chat = asked.body
        count = await self._dispatcher.prepare(
            request, asked, lambda: self._dispatcher.inputs.count_tokens(chat)
        )
        return count, asked.ignored
