"""OtherForms: the handlers of /v1/responses and /v1/messages, chats in other words.

What is asked becomes a chat, which runs as any other does; only its answer is written differently.
"""

from __future__ import annotations

import asyncio
from functools import partial

from starlette.requests import Request
from starlette.responses import Response

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
        (body, chat), ignored = await self._dispatcher.read_in(RESPONSES, request)
        return await self._dispatcher.generate(
            request,
            lambda: RESPONSES.speak(lambda: self._dispatcher.inputs.chat(chat)),
            partial(ResponseWriter, body=body),
            num_sequences=1,
            ignored=ignored,
        )

    async def response_tokens(self, request: Request) -> Response:
        """Count the tokens of a response's input."""
        (_, chat), ignored = await self._dispatcher.read_in(RESPONSES, request)
        count = await asyncio.to_thread(
            RESPONSES.speak, lambda: self._dispatcher.inputs.count_tokens(chat)
        )
        answer = InputTokens(object="response.input_tokens", input_tokens=count)
        return json_answer(answer, ignored)

    async def messages(self, request: Request) -> Response:
        """Create a message."""
        (_, chat), ignored = await self._dispatcher.read_in(MESSAGES, request)
        return await self._dispatcher.generate(
            request,
            lambda: MESSAGES.speak(lambda: self._dispatcher.inputs.chat(chat)),
            MessageWriter,
            num_sequences=1,
            ignored=ignored,
        )

    async def message_tokens(self, request: Request) -> Response:
        """Count the tokens of a message's prompt."""
        (_, chat), ignored = await self._dispatcher.read_in(MESSAGE_COUNTS, request)
        count = await asyncio.to_thread(
            MESSAGE_COUNTS.speak, lambda: self._dispatcher.inputs.count_tokens(chat)
        )
        return json_answer(MessageTokens(input_tokens=count), ignored)
