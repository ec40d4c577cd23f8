"""Messages as chat templates expect them: text content, no nulls, developers as system."""

from __future__ import annotations

from collections.abc import Sequence

from server.api.schemas.requests import Message, RefusalPart
from server.errors import InvalidRequestError

REASONING = "messages[].reasoning_content"
"""How replayed thoughts are called where they are ignored."""


def chat_turns(messages: Sequence[Message]) -> list[dict[str, object]]:
    """The turns of a chat.

    Raises:
        InvalidRequestError: Only an assistant may say nothing.
    """
    return [_turn(message, index) for index, message in enumerate(messages)]


def _turn(message: Message, index: int) -> dict[str, object]:
    if message.content is None and message.role != "assistant":
        raise InvalidRequestError(
            f"'messages[{index}].content' is missing; only an assistant's may be null.",
            param=f"messages[{index}].content",
        )
    role = "system" if message.role == "developer" else message.role
    turn: dict[str, object] = {"role": role, "content": _content_text(message)}
    if message.name is not None:
        turn["name"] = message.name
    if message.tool_call_id is not None:
        turn["tool_call_id"] = message.tool_call_id
    thoughts = message.reasoning_content or message.reasoning
    if thoughts and message.role == "assistant":
        turn["reasoning_content"] = thoughts
    if message.tool_calls:
        turn["tool_calls"] = [call.model_dump(exclude_none=True) for call in message.tool_calls]
    return turn


def _content_text(message: Message) -> str:
    """The content as one text; parts stand on lines of their own."""
    if isinstance(message.content, str):
        return message.content
    return "\n".join(
        part.refusal if isinstance(part, RefusalPart) else part.text
        for part in message.content or ()
    )
