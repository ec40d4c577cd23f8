"""A /v1/responses request in the words of a chat.

The chat that comes of it runs as any other does; `RESPONSES` turns what is said about it
back into the words of the client. What the schema has checked is taken over as it is.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from itertools import groupby
from typing import Any

from pydantic import BaseModel

from server.api.dialects.dialect import Dialect, sampling_fields
from server.api.fields.fields import Endpoint
from server.api.schemas.output_schemas import (
    FunctionDefinition,
    FunctionName,
    JsonSchemaFormat,
    NamedTool,
    ResponseFormat,
    Tool,
)
from server.api.schemas.requests import (
    ChatBody,
    Content,
    FunctionCall,
    MadeCall,
    Message,
    RefusalPart,
    TextPart,
    TurnPart,
    parse,
)
from server.api.schemas.response_schemas import (
    CallItem,
    CallOutputItem,
    InputMessage,
    Item,
    ItemContent,
    ItemText,
    ResponseBody,
    ResponseNamedTool,
    ResponseTool,
    TextFormat,
    ThoughtsItem,
)


def response_to_chat(body: ResponseBody) -> ChatBody:
    """The chat that a response is the answer to.

    Raises:
        InvalidRequestError: A chat cannot say it.
    """
    values = sampling_fields(body)
    values |= {
        name: getattr(body, name)
        for name in ("parallel_tool_calls", "chat_template_kwargs")
        if name in body.model_fields_set
    }
    values["messages"] = _messages(body)
    values["tools"] = [_tool(tool) for tool in body.tools]
    choice = body.tool_choice
    if isinstance(choice, ResponseNamedTool):
        values["tool_choice"] = NamedTool(type="function", function=FunctionName(name=choice.name))
    else:
        values["tool_choice"] = choice
    if body.max_output_tokens is not None:
        values["max_tokens"] = body.max_output_tokens
    if body.text.format is not None:
        values["response_format"] = _response_format(body.text.format)
    if body.reasoning.effort is not None:
        values["reasoning_effort"] = body.reasoning.effort
    return parse(ChatBody, values)


def _messages(body: ResponseBody) -> list[Message]:
    """The turns; instructions and the system messages that follow them are one."""
    if isinstance(body.input, str):
        opening = [body.instructions] if body.instructions else []
        return [*_system(opening), Message(role="user", content=body.input)]
    items: deque[Item] = deque(item for item in body.input if not isinstance(item, ThoughtsItem))
    messages = _system(_opening(body.instructions, items))
    for calls, group in groupby(items, key=lambda item: isinstance(item, CallItem)):
        if calls:
            _add_calls(messages, [item for item in group if isinstance(item, CallItem)])
        else:
            messages += [_message(item) for item in group]
    return messages


def _opening(instructions: str | None, items: deque[Item]) -> list[Content]:
    """Take the system messages that the items begin with, put after the instructions."""
    opening: list[Content] = [instructions] if instructions else []
    while items and isinstance(items[0], InputMessage):
        if items[0].role != "system" and not (opening and items[0].role == "developer"):
            break
        opening.append(_content(items[0].content))
        items.popleft()
    return opening


def _system(opening: Sequence[Content]) -> list[Message]:
    """One message of several contents, or none."""
    if len(opening) < 2:
        return [Message(role="system", content=content) for content in opening]
    return [Message(role="system", content=[part for each in opening for part in _parts(each)])]


def _message(item: Item) -> Message:
    if isinstance(item, InputMessage):
        return Message(role=item.role, content=_content(item.content))
    assert isinstance(item, CallOutputItem), "calls and thoughts are gone; there is nothing else"
    return Message(role="tool", tool_call_id=item.call_id, content=_content(item.output))


def _add_calls(messages: list[Message], items: Sequence[CallItem]) -> None:
    """Calls that follow each other, or a text, are one turn."""
    made = [
        MadeCall(
            id=item.call_id,
            type="function",
            function=FunctionCall(name=item.name, arguments=item.arguments),
        )
        for item in items
    ]
    if messages and messages[-1].role == "assistant":
        last = messages.pop()
        made = [*(last.tool_calls or ()), *made]
        messages.append(last.model_copy(update={"tool_calls": made}))
    else:
        messages.append(Message(role="assistant", content=None, tool_calls=made))


def _content(content: ItemContent) -> Content:
    """Text or parts as a chat has them."""
    if isinstance(content, str):
        return content
    return [
        TextPart(type="text", text=part.text)
        if isinstance(part, ItemText)
        else RefusalPart(type="refusal", refusal=part.refusal)
        for part in content
    ]


def _parts(content: Content) -> list[TurnPart]:
    return [TextPart(type="text", text=content)] if isinstance(content, str) else content


def _tool(flat: ResponseTool) -> Tool:
    """A flat function as a chat has it; the template sees nothing that is none."""
    more = _set_fields(flat, "description", "parameters", "strict")
    return Tool(type="function", function=FunctionDefinition(name=flat.name, **more))


def _set_fields(part: BaseModel, *names: str) -> dict[str, Any]:
    """Those of these fields that are not none."""
    values = {name: getattr(part, name) for name in names}
    return {name: value for name, value in values.items() if value is not None}


def _response_format(form: TextFormat) -> ResponseFormat:
    """A flat format as a chat has it."""
    if form.type != "json_schema" or form.schema_ is None:
        return ResponseFormat(type=form.type)
    more = _set_fields(form, "name", "description", "strict")
    full = JsonSchemaFormat.model_validate({**more, "schema": form.schema_})
    return ResponseFormat(type="json_schema", json_schema=full)


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
