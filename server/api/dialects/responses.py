"""A /v1/responses request in the words of a chat.

The chat that comes of it runs as any other does; `RESPONSES` turns what is said about it
back into the words of the client.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from server.api.dialects.dialect import Dialect
from server.api.fields.fields import Endpoint
from server.api.schemas.requests import ChatBody, SamplingBody, parse
from server.api.schemas.response_schemas import (
    CallItem,
    CallOutputItem,
    InputMessage,
    ItemContent,
    ItemText,
    ResponseBody,
    ResponseNamedTool,
    TextFormat,
    ThoughtsItem,
)


def response_to_chat(body: ResponseBody) -> ChatBody:
    """The chat that a response is the answer to.

    Raises:
        InvalidRequestError: A chat cannot say it.
    """
    values: dict[str, Any] = body.model_dump(
        include={*SamplingBody.model_fields, "parallel_tool_calls", "chat_template_kwargs"},
        exclude_unset=True,
    )
    values["messages"] = _messages(body)
    values["tools"] = [_tool(tool.model_dump(exclude_none=True)) for tool in body.tools]
    choice = body.tool_choice
    if isinstance(choice, ResponseNamedTool):
        values["tool_choice"] = {"type": "function", "function": {"name": choice.name}}
    else:
        values["tool_choice"] = choice
    if body.max_output_tokens is not None:
        values["max_tokens"] = body.max_output_tokens
    if body.text.format is not None:
        values["response_format"] = _response_format(body.text.format)
    if body.reasoning.effort is not None:
        values["reasoning_effort"] = body.reasoning.effort
    return parse(ChatBody, values)


def _messages(body: ResponseBody) -> list[dict[str, Any]]:
    """The turns; instructions and the system messages that follow them are one."""
    messages: list[dict[str, Any]] = []
    if body.instructions:
        messages.append({"role": "system", "content": body.instructions})
    if isinstance(body.input, str):
        return [*messages, {"role": "user", "content": body.input}]
    for item in body.input:
        if isinstance(item, InputMessage):
            _add_message(messages, item)
        elif isinstance(item, CallItem):
            _add_call(messages, item)
        elif isinstance(item, CallOutputItem):
            output = _content(item.output)
            messages.append({"role": "tool", "tool_call_id": item.call_id, "content": output})
        else:
            assert isinstance(item, ThoughtsItem), "the schema knows no other item"
    return messages


def _add_message(messages: list[dict[str, Any]], item: InputMessage) -> None:
    content = _content(item.content)
    is_system = item.role in ("system", "developer")
    if is_system and len(messages) == 1 and messages[0]["role"] == "system":
        parts = [*_parts(messages[0]["content"]), *_parts(content)]
        messages[0] = {"role": "system", "content": parts}
    else:
        messages.append({"role": item.role, "content": content})


def _add_call(messages: list[dict[str, Any]], item: CallItem) -> None:
    """Calls that follow each other, or a text, are one turn."""
    call = {
        "id": item.call_id,
        "type": "function",
        "function": {"name": item.name, "arguments": item.arguments},
    }
    if not messages or messages[-1]["role"] != "assistant":
        messages.append({"role": "assistant", "content": None})
    messages[-1].setdefault("tool_calls", []).append(call)


def _content(content: ItemContent) -> str | list[dict[str, Any]]:
    """Text or parts as a chat has them."""
    if isinstance(content, str):
        return content
    return [
        {"type": "text", "text": part.text} if isinstance(part, ItemText) else part.model_dump()
        for part in content
    ]


def _parts(content: str | list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{"type": "text", "text": content}] if isinstance(content, str) else content


def _tool(flat: Mapping[str, Any]) -> dict[str, Any]:
    """A flat function as a chat has it."""
    function = {name: value for name, value in flat.items() if name != "type"}
    return {"type": "function", "function": function}


def _response_format(form: TextFormat) -> dict[str, Any]:
    """A flat format as a chat has it."""
    if form.type != "json_schema" or form.schema_ is None:
        return {"type": form.type}
    schema = form.model_dump(by_alias=True, exclude_none=True, exclude={"type"})
    return {"type": "json_schema", "json_schema": schema}


RESPONSES = Dialect(
    schema=ResponseBody,
    endpoint=Endpoint.RESPONSES,
    to_chat=response_to_chat,
    names={
        "messages": "input",
        "max_tokens": "max_output_tokens",
        "response_format": "text.format",
        "reasoning_effort": "reasoning.effort",
        "tools[].function.strict": "tools[].strict",
    },
)
"""How to read a response's body and speak of it."""
