"""A /v1/responses request in the words of a chat.

The chat that comes of it runs as any other does; `RESPONSES` turns what is said about it
back into the words of the client. What the schema has checked is taken over as it is.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import BaseModel

from server.api.dialects.dialect import Dialect, sampling_fields
from server.api.dialects.tool_kinds import functions_only, in_namespace, refuse_choice
from server.api.fields.fields import Endpoint
from server.api.inputs.chat_turns import REASONING
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
    CustomCallItem,
    InputMessage,
    Item,
    ItemContent,
    ItemText,
    NamespaceTool,
    ResponseBody,
    ResponseNamedTool,
    ResponseTool,
    TextFormat,
    ThoughtsItem,
)
from server.errors import InvalidRequestError


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
    values["tools"] = [function for tool in body.tools for function in _functions(tool)]
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
    if not body.input and not body.instructions:
        raise InvalidRequestError("'input' must not be empty (got []).", param="input")
    items: deque[Item] = deque(body.input)
    messages = _system(_opening(body.instructions, items))
    answer = _OpenAnswer()
    for item in items:
        if answer.take(item):
            continue
        messages += answer.close()
        answer = _OpenAnswer()
        if not answer.take(item):
            messages.append(_message(item))
    return messages + answer.close()


class _OpenAnswer:
    """A turn of the assistant: its thoughts, then what it said, then its calls."""

    def __init__(self) -> None:
        self._thoughts: list[str] = []
        self._content: Content | None = None
        self._calls: list[MadeCall] = []

    def take(self, item: Item) -> bool:
        """Let an item join the turn; returns whether it does."""
        if isinstance(item, ThoughtsItem):
            self._thoughts += [item.text] if item.text else []
            return True
        if isinstance(item, CallItem | CustomCallItem):
            self._calls.append(_made_call(item))
            return True
        is_free = self._content is None and not self._calls
        if isinstance(item, InputMessage) and item.role == "assistant" and is_free:
            self._content = _content(item.content)
            return True
        return False

    def close(self) -> list[Message]:
        """The turn as a chat has it; thoughts that led to nothing are none."""
        if self._content is None and not self._calls:
            return []
        more: dict[str, Any] = {"tool_calls": self._calls} if self._calls else {}
        more |= {"reasoning_content": "\n".join(self._thoughts)} if self._thoughts else {}
        return [Message(role="assistant", content=self._content, **more)]


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


def _made_call(item: CallItem | CustomCallItem) -> MadeCall:
    function = FunctionCall(name=_name_of(item), arguments=_arguments_of(item))
    return MadeCall(id=item.call_id, type="function", function=function)


def _name_of(item: CallItem | CustomCallItem) -> str:
    """The name under which the model called."""
    namespace = item.namespace if isinstance(item, CallItem) else None
    return in_namespace(namespace, item.name) if namespace else item.name


def _arguments_of(item: CallItem | CustomCallItem) -> str:
    """The arguments as JSON; the text of a tool that takes plain text is its only one."""
    if isinstance(item, CallItem):
        return item.arguments
    return json.dumps({"input": item.input}, ensure_ascii=False)


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


def _functions(tool: ResponseTool | NamespaceTool) -> list[Tool]:
    """A function, or all those of a namespace, as a chat has them."""
    if isinstance(tool, ResponseTool):
        return [_tool(tool)]
    return [
        _tool(one.model_copy(update={"name": in_namespace(tool.name, one.name)}))
        for one in tool.tools
    ]


def _offer(body: dict[str, object]) -> tuple[dict[str, object], tuple[str, ...]]:
    """The body with the tools and items that mean something here, and the names of the others.

    Raises:
        UnsupportedValueError: Another tool must be called.
    """
    choice = body.get("tool_choice")
    if isinstance(choice, Mapping) and choice.get("type") in _OTHER_TOOLS:
        refuse_choice(choice["type"])
    tools, others = functions_only(
        body.get("tools"), lambda tool: tool.get("type") not in _OTHER_TOOLS
    )
    items, unseen = _without_other_items(body.get("input"))
    changed = {"tools": tools, "input": items}
    return body | {name: changed[name] for name in changed if name in body}, (*others, *unseen)


def _without_other_items(items: object) -> tuple[object, tuple[str, ...]]:
    """The items of a conversation without what only its provider's own tools did."""
    if not isinstance(items, list):
        return items, ()
    kinds = {
        str(item["type"])
        for item in items
        if isinstance(item, Mapping) and item.get("type") in _OTHER_ITEMS
    }
    if not kinds:
        return items, ()
    kept = [item for item in items if not (isinstance(item, Mapping) and item.get("type") in kinds)]
    return kept, tuple(f"input[].{kind}" for kind in sorted(kinds))


_OTHER_TOOLS = frozenset(
    {"custom", "web_search", "web_search_preview", "local_shell", "shell", "image_generation",
     "tool_search", "apply_patch", "file_search", "code_interpreter", "computer",
     "computer_use_preview", "mcp"}
)  # fmt: skip
_OTHER_ITEMS = frozenset(
    {"web_search_call", "image_generation_call", "tool_search_call", "tool_search_output",
     "local_shell_call", "local_shell_call_output", "file_search_call", "code_interpreter_call",
     "mcp_list_tools", "compaction"}
)  # fmt: skip


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
    if form.type != "json_schema":
        more = _set_fields(form, "schema_")
        return ResponseFormat.model_validate({"type": form.type, "schema": more.get("schema_")})
    if form.schema_ is None:
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
        REASONING: "input[].content",
    },
    tool_schema="parameters",
    offer=_offer,
)
"""How to read a response's body and speak of it."""
