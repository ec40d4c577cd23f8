"""A /v1/messages request in the words of a chat.

The chat that comes of it runs as any other does; `MESSAGES` and `MESSAGE_COUNTS` turn what is said
about it back into the words of the client.
"""

from __future__ import annotations

import json
from typing import Any

from server.api.dialects.dialect import Dialect
from server.api.fields.fields import Endpoint
from server.api.schemas.message_schemas import (
    MessageBody,
    MessageCountBody,
    MessageTool,
    TextBlock,
    TextContent,
    ThinkingBlock,
    ToolResultBlock,
    ToolUseBlock,
    Turn,
)
from server.api.schemas.requests import ChatBody, SamplingBody, parse
from server.errors import InvalidRequestError

_MODES = {"auto": "auto", "any": "required", "none": "none"}


def message_to_chat(body: MessageCountBody) -> ChatBody:
    """The chat that a message is the answer to.

    Raises:
        InvalidRequestError: A chat cannot say it.
    """
    values: dict[str, Any] = body.model_dump(
        include={*SamplingBody.model_fields}, exclude_unset=True
    )
    values["messages"] = _messages(body)
    if values["messages"][-1]["role"] == "assistant":
        values |= _prefill(values["messages"][-1])
    values |= _tools(body)
    values["stop"] = body.stop_sequences
    if body.max_tokens is not None:
        values["max_tokens"] = body.max_tokens
    form = body.output_config.format
    if form is not None:
        values["response_format"] = {"type": "json_schema", "json_schema": {"schema": form.schema_}}
    if body.output_config.effort is not None:
        values["reasoning_effort"] = body.output_config.effort
    thinking = (
        {} if body.thinking is None else {"enable_thinking": body.thinking.type != "disabled"}
    )
    values["chat_template_kwargs"] = thinking | body.chat_template_kwargs
    return parse(ChatBody, values)


def _messages(body: MessageCountBody) -> list[dict[str, Any]]:
    messages: list[dict[str, Any]] = []
    if body.system:
        messages.append({"role": "system", "content": _text_parts(body.system)})
    for turn in body.messages:
        _add_turn(messages, turn)
    return messages


def _add_turn(messages: list[dict[str, Any]], turn: Turn) -> None:
    """Each result of a call is a message of its own; all else joins the turn before."""
    if isinstance(turn.content, str):
        _message_of(messages, turn.role)["content"] += _text_parts(turn.content)
        return
    if all(isinstance(block, ThinkingBlock) for block in turn.content):
        _message_of(messages, turn.role)  # it says nothing, but it is a turn
    for block in turn.content:
        if isinstance(block, TextBlock):
            _message_of(messages, turn.role)["content"] += _text_parts([block])
        elif isinstance(block, ToolUseBlock):
            calls = _message_of(messages, turn.role).setdefault("tool_calls", [])
            calls.append(_call(block))
        elif isinstance(block, ToolResultBlock):
            content = _text_parts(block.content or "")
            messages.append({"role": "tool", "tool_call_id": block.tool_use_id, "content": content})


def _message_of(messages: list[dict[str, Any]], role: str) -> dict[str, Any]:
    """The last message if this role said it, else a new one."""
    if not messages or messages[-1]["role"] != role:
        messages.append({"role": role, "content": []})
    return messages[-1]


def _text_parts(content: TextContent) -> list[dict[str, Any]]:
    if isinstance(content, str):
        return [{"type": "text", "text": content}]
    return [{"type": "text", "text": block.text} for block in content]


def _call(block: ToolUseBlock) -> dict[str, Any]:
    arguments = json.dumps(block.input, ensure_ascii=False)
    function = {"name": block.name, "arguments": arguments}
    return {"id": block.id, "type": "function", "function": function}


def _prefill(last: dict[str, Any]) -> dict[str, Any]:
    """How to continue an answer that was begun.

    Raises:
        InvalidRequestError: It ends with a call.
    """
    if "tool_calls" in last:
        raise InvalidRequestError(
            "'messages' ends with a tool_use block, but its tool_result is missing.",
            param="messages",
        )
    return {"add_generation_prompt": False, "continue_final_message": True}


def _tools(body: MessageCountBody) -> dict[str, Any]:
    """The tools and what is to be made of them.

    Raises:
        InvalidRequestError: A tool must be called, but it is not said which.
    """
    choice = body.tool_choice
    if choice.type == "tool" and choice.name is None:
        raise InvalidRequestError(
            "Missing required parameter: 'tool_choice.name'.",
            param="tool_choice.name",
            code="missing_required_parameter",
        )
    named = {"type": "function", "function": {"name": choice.name}}
    return {
        "tools": [_tool(tool) for tool in body.tools],
        "tool_choice": _MODES.get(choice.type, named),
        "parallel_tool_calls": not choice.disable_parallel_tool_use,
    }


def _tool(tool: MessageTool) -> dict[str, Any]:
    function: dict[str, Any] = {"name": tool.name, "parameters": tool.input_schema}
    if tool.description is not None:
        function["description"] = tool.description
    if tool.strict is not None:
        function["strict"] = tool.strict
    return {"type": "function", "function": function}


_NAMES = {
    "stop": "stop_sequences",
    "response_format": "output_config.format",
    "reasoning_effort": "output_config.effort",
    "chat_template_kwargs.enable_thinking": "thinking",
    "tools[].function.strict": "tools[].strict",
}
MESSAGES = Dialect(
    schema=MessageBody, endpoint=Endpoint.MESSAGES, to_chat=message_to_chat, names=_NAMES
)
"""How to read a message's body and speak of it."""
MESSAGE_COUNTS = Dialect(
    schema=MessageCountBody, endpoint=Endpoint.MESSAGES, to_chat=message_to_chat, names=_NAMES
)
"""The same where only tokens are counted."""
