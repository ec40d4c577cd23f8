"""Parts of a chat answer in the wire's types: whole messages and deltas of a stream."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from server.api.schemas import wire_types
from server.api.structured_output.answer_parser import Part
from server.api.structured_output.reasoning import Reasoning
from server.api.structured_output.tool_calls import CallPiece


def to_message(parts: Sequence[Part]) -> wire_types.AssistantMessage:
    """The whole message; its content is null if there is nothing but calls or thoughts."""
    content = "".join(part for part in parts if isinstance(part, str))
    reasoning = "".join(part.text for part in parts if isinstance(part, Reasoning))
    calls = _calls([part for part in parts if isinstance(part, CallPiece)])
    more: dict[str, Any] = {"reasoning_content": reasoning} if reasoning else {}
    more |= {"tool_calls": calls} if calls else {}
    return wire_types.AssistantMessage(
        role="assistant", content=content or (None if more else ""), refusal=None, **more
    )


def to_deltas(parts: Sequence[Part]) -> Iterator[wire_types.Delta]:
    """One delta for each part; neighbours of a kind are one."""
    for part in _joined(parts):
        if isinstance(part, Reasoning):
            yield wire_types.Delta(reasoning_content=part.text)
        elif isinstance(part, CallPiece):
            yield wire_types.Delta(tool_calls=[_call_delta(part)])
        else:
            yield wire_types.Delta(content=part)


def _joined(parts: Sequence[Part]) -> Iterator[Part]:
    """The parts with text and thoughts that follow each other put together."""
    last: Part | None = None
    for part in parts:
        both = None if last is None else _both(last, part)
        if both is None and last is not None:
            yield last
        last = part if both is None else both
    if last is not None:
        yield last


def _both(one: Part, other: Part) -> Part | None:
    """Two parts as one, if they can be."""
    if isinstance(one, str) and isinstance(other, str):
        return one + other
    if isinstance(one, Reasoning) and isinstance(other, Reasoning):
        return Reasoning(one.text + other.text)
    if not (isinstance(one, CallPiece) and isinstance(other, CallPiece)):
        return None
    if one.id is not None or other.id is not None:
        return None  # the first of a call stands alone
    return CallPiece(index=one.index, arguments=one.arguments + other.arguments)


def _call_delta(part: CallPiece) -> wire_types.ToolCallDelta:
    if part.id is None or part.name is None:
        function = wire_types.FunctionDelta(arguments=part.arguments)
        return wire_types.ToolCallDelta(index=part.index, function=function)
    function = wire_types.FunctionDelta(name=part.name, arguments=part.arguments)
    return wire_types.ToolCallDelta(
        index=part.index, id=part.id, type="function", function=function
    )


def _calls(parts: Sequence[CallPiece]) -> list[wire_types.ToolCall]:
    return [
        wire_types.ToolCall(
            id=first.id or "",
            type="function",
            function=wire_types.CalledFunction(
                name=first.name or "",
                arguments="".join(p.arguments for p in parts if p.index == first.index),
            ),
        )
        for first in parts
        if first.id is not None
    ]
