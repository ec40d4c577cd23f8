"""Answers taken apart into their text and their calls."""

from __future__ import annotations

from server.api.structured_output.tool_calls import CallPiece, ToolCallParser

NAMES = ("f", "g")


def read(tool_format, pieces, names=NAMES):
    """Text and calls of an answer; checks the shape of the deltas on the way."""
    parser = ToolCallParser(tool_format, names)
    found = [part for piece in pieces for part in parser.feed(piece)] + parser.finish()
    text = "".join(part for part in found if isinstance(part, str))
    calls: list[list[str]] = []
    for part in found:
        if isinstance(part, CallPiece):
            if part.id is not None:
                assert part.index == len(calls)
                assert part.arguments == ""
                calls.append([part.name, ""])
            assert part.index == len(calls) - 1
            calls[-1][1] += part.arguments
    assert parser.num_calls == len(calls)
    return text, [tuple(call) for call in calls]
