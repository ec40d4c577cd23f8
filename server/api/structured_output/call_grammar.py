"""Grammars of tool calls: what makes sure that a call names a function and fits its schema.

For an answer that must be calls, and for one that is free until its model begins a call. Lark rules
only; compiles nothing.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping

from server.api.structured_output.tool_calls import ToolFormat

MAX_PARALLEL_CALLS = 16
"""Calls that a constrained answer may hold; a model that repeats itself must end."""


def calls_grammar(
    tool_format: ToolFormat,
    tools: Mapping[str, Mapping[str, object]],
    *,
    parallel: bool,
    mark_ids: Mapping[str, int],
) -> str:
    """Lark rules for one call or several; the rule is `calls`.

    Args:
        tool_format: How they are written.
        tools: Name -> prepared schema of the arguments.
        parallel: Whether there may be several.
        mark_ids: Marks that are control tokens, with their ids.
    """
    marks = _marks(tool_format, mark_ids)
    return (
        f"{_call_rules(tool_format, tools)}\n{_calls_rule(tool_format, marks, parallel=parallel)}"
    )


def text_or_calls_grammar(
    tool_format: ToolFormat,
    tools: Mapping[str, Mapping[str, object]],
    *,
    parallel: bool,
    mark_ids: Mapping[str, int],
    text_ids: Collection[int],
) -> str:
    """Lark rules for an answer that is free until its model begins a call; the rule is `answer`.

    Args:
        tool_format: How they are written; with a mark before calls.
        tools: Name -> prepared schema of the arguments.
        parallel: Whether there may be several.
        mark_ids: Marks that are control tokens, with their ids.
        text_ids: Control tokens that may stand in the free text.
    """
    begin = tool_format.begin
    assert begin, "where nothing begins a call, none can be told from text"
    pattern = re.escape(begin).replace("/", "\\/")
    controls = " | ".join(f"<[{token_id}]>" for token_id in sorted(text_ids))
    pieces = f"(TEXT? ({controls}))* " if controls else ""
    rules = [_call_rules(tool_format, tools), f"free: {pieces}TEXT?"]
    if begin in mark_ids:
        rules += [f"begun: free <[{mark_ids[begin]}]>", "TEXT: /(.|\\n)+/"]
    else:
        rules += [
            f"begun: {pieces}opened",
            f"opened[lazy]: /(.|\\n)*{pattern}/",
            f"TEXT: /(.|\\n)+/ & ~/(.|\\n)*{pattern}(.|\\n)*/",
        ]
    marks = {**_marks(tool_format, mark_ids), begin: "begun"}
    if tool_format.end:
        most = MAX_PARALLEL_CALLS if parallel else 1
        rules.append(f"answer: ({_marked_call(tool_format, marks)}){{0,{most}}} free")
    else:
        rules.append(_calls_rule(tool_format, marks, parallel=parallel))
        rules.append("answer: free | calls")
    return "\n".join(rules)


def _call_rules(tool_format: ToolFormat, tools: Mapping[str, Mapping[str, object]]) -> str:
    """The rule for one call of any of these functions, without marks; it is `call`."""
    rules = [
        f'call_{index}: {_literal(_head(tool_format, name))} %json {json.dumps(schema)} "}}"'
        for index, (name, schema) in enumerate(tools.items())
    ]
    rules.append(f"call: {' | '.join(f'call_{index}' for index in range(len(tools)))}")
    return "\n".join(rules)


def _marks(tool_format: ToolFormat, mark_ids: Mapping[str, int]) -> dict[str, str]:
    """Each mark as a rule has it: its control token, or its text."""
    return {
        mark: f"<[{mark_ids[mark]}]>" if mark in mark_ids else _literal(mark)
        for mark in tool_format.marks
    }


def _marked_call(tool_format: ToolFormat, marks: Mapping[str, str]) -> str:
    """One call between marks of its own."""
    newline = _literal("\n")
    begin, end = marks[tool_format.begin], marks[tool_format.end]
    return f"{begin} {newline} call {newline} {end}"


def _head(tool_format: ToolFormat, name: str) -> str:
    return f'{{"name": {json.dumps(name)}, "{tool_format.arguments}": '


def _calls_rule(tool_format: ToolFormat, marks: Mapping[str, str], *, parallel: bool) -> str:
    """The rule for a sequence of calls, bounded."""

    def several(one: str, separator: str) -> str:
        more = f" ({_literal(separator)} {one}){{0,{MAX_PARALLEL_CALLS - 1}}}"
        return one + (more if parallel else "")

    if tool_format.end:
        one = _marked_call(tool_format, marks)
        return f"marked: {one}\ncalls: {several('marked', chr(10))}"
    if "[" not in tool_format.separators:
        return f"calls: {several('call', '; ')}"
    listed = f'"[" {several("call", ", ")} "]"'
    if tool_format.begin:
        return f'calls: {marks[tool_format.begin]} (" ")? {listed}'
    return f"calls: call | {listed}" if parallel else "calls: call"


def _literal(text: str) -> str:
    """A Lark string."""
    return json.dumps(text, ensure_ascii=False)
