"""A /v1/messages request in the words of a chat.

The chat that comes of it runs as any other does; `MESSAGES` and `MESSAGE_COUNTS` turn what is said
about it back into the words of the client. What the schema has checked is taken over as it is.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from server.api.dialects.dialect import Dialect, sampling_fields
from server.api.dialects.tool_kinds import functions_only, refuse_choice
from server.api.fields.fields import Endpoint
from server.api.inputs.chat_turns import REASONING
from server.api.schemas.message_schemas import (
    MessageBody,
    MessageCountBody,
    MessageTool,
    RedactedBlock,
    TextBlock,
    TextContent,
    ThinkingBlock,
    ToolReferenceBlock,
    ToolResultBlock,
    ToolUseBlock,
    Turn,
)
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
    FunctionCall,
    MadeCall,
    Message,
    TextPart,
    TurnPart,
    parse,
)
from server.errors import InvalidRequestError

Role = Literal["system", "user", "assistant", "tool"]
_MODES = {"auto": "auto", "any": "required", "none": "none"}


def message_to_chat(body: MessageCountBody) -> ChatBody:
    """The chat that a message is the answer to.

    Raises:
        InvalidRequestError: A chat cannot say it.
    """
    values = sampling_fields(body)
    messages = _messages(body)
    values["messages"] = messages
    if messages[-1].role == "assistant":
        values |= _prefill(messages[-1])
    values |= _tools(body)
    values["stop"] = body.stop_sequences
    if body.max_tokens is not None:
        values["max_tokens"] = body.max_tokens
    form = body.output_config.format
    if form is not None:
        values["response_format"] = ResponseFormat(
            type="json_schema",
            json_schema=JsonSchemaFormat.model_validate({"schema": form.schema_}),
        )
    if body.output_config.effort is not None:
        values["reasoning_effort"] = body.output_config.effort
    thinking = (
        {} if body.thinking is None else {"enable_thinking": body.thinking.type != "disabled"}
    )
    values["chat_template_kwargs"] = thinking | body.chat_template_kwargs
    return parse(ChatBody, values)


@dataclass(slots=True)
class _OpenTurn:
    """A turn that more blocks may join."""

    role: Role
    content: list[TurnPart] = field(default_factory=list)
    tool_calls: list[MadeCall] = field(default_factory=list)
    tool_call_id: str | None = None
    thoughts: list[str] = field(default_factory=list)

    def close(self) -> Message:
        """The turn as a chat has it; what it has not is not set."""
        calls: dict[str, Any] = {"tool_calls": self.tool_calls} if self.tool_calls else {}
        answered: dict[str, Any] = (
            {} if self.tool_call_id is None else {"tool_call_id": self.tool_call_id}
        )
        thoughts: dict[str, Any] = (
            {"reasoning_content": "\n".join(self.thoughts)} if self.thoughts else {}
        )
        return Message(role=self.role, content=self.content, **calls, **answered, **thoughts)


def _messages(body: MessageCountBody) -> list[Message]:
    turns: list[_OpenTurn] = []
    if body.system:
        turns.append(_OpenTurn("system", _text_parts(body.system)))
    for turn in body.messages:
        _add_turn(turns, turn)
    return [turn.close() for turn in turns]


def _add_turn(turns: list[_OpenTurn], turn: Turn) -> None:
    """Each result of a call is a message of its own; all else joins the turn before."""
    if isinstance(turn.content, str):
        _turn_of(turns, turn.role).content += _text_parts(turn.content)
        return
    if all(isinstance(block, ThinkingBlock | RedactedBlock) for block in turn.content):
        _turn_of(turns, turn.role)  # it says nothing, but it is a turn
    for block in turn.content:
        if isinstance(block, TextBlock):
            _turn_of(turns, turn.role).content += _text_parts([block])
        elif isinstance(block, ThinkingBlock) and block.thinking and turn.role == "assistant":
            _turn_of(turns, turn.role).thoughts.append(block.thinking)
        elif isinstance(block, ToolUseBlock):
            _turn_of(turns, turn.role).tool_calls.append(_call(block))
        elif isinstance(block, ToolResultBlock):
            content = _text_parts(block.content or "")
            turns.append(_OpenTurn("tool", content, tool_call_id=block.tool_use_id))


def _turn_of(turns: list[_OpenTurn], role: Role) -> _OpenTurn:
    """The last turn if this role said it, else a new one."""
    if not turns or turns[-1].role != role:
        turns.append(_OpenTurn(role))
    return turns[-1]


def _text_parts(content: TextContent) -> list[TurnPart]:
    texts = [content] if isinstance(content, str) else map(_text_of, content)
    return [TextPart(type="text", text=text) for text in texts]


def _text_of(block: TextBlock | ToolReferenceBlock) -> str:
    """What a block says; a reference to a tool that was found is the tool's name."""
    return block.text if isinstance(block, TextBlock) else block.tool_name


def _call(block: ToolUseBlock) -> MadeCall:
    arguments = json.dumps(block.input, ensure_ascii=False)
    function = FunctionCall(name=block.name, arguments=arguments)
    return MadeCall(id=block.id, type="function", function=function)


def _prefill(last: Message) -> dict[str, object]:
    """How to continue an answer that was begun.

    Raises:
        InvalidRequestError: It ends with a call.
    """
    if last.tool_calls:
        raise InvalidRequestError(
            "'messages' ends with a tool_use block, but its tool_result is missing.",
            param="messages",
        )
    return {"add_generation_prompt": False, "continue_final_message": True}


def _tools(body: MessageCountBody) -> dict[str, object]:
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
    chosen: object = _MODES.get(choice.type)
    if choice.name is not None and choice.type == "tool":
        chosen = NamedTool(type="function", function=FunctionName(name=choice.name))
    return {
        "tools": [_tool(tool) for tool in body.tools],
        "tool_choice": chosen,
        "parallel_tool_calls": not choice.disable_parallel_tool_use,
    }


def _tool(tool: MessageTool) -> Tool:
    more = {"description": tool.description, "strict": tool.strict}
    function = FunctionDefinition(
        name=tool.name, parameters=tool.input_schema, **_without_none(more)
    )
    return Tool(type="function", function=function)


def _without_none(fields: Mapping[str, Any]) -> dict[str, Any]:
    """What is none is left out, so that a template does not see it."""
    return {name: value for name, value in fields.items() if value is not None}


def _offer(body: dict[str, object]) -> tuple[dict[str, object], tuple[str, ...]]:
    """The body with the tools that have a schema of the client's, and the names of the others.

    Raises:
        UnsupportedValueError: Another tool must be called.
    """
    given = body.get("tools")
    tools, others = functions_only(given, _is_function)
    choice = body.get("tool_choice")
    wanted = choice.get("name") if isinstance(choice, Mapping) else None
    if others and wanted is not None and isinstance(given, list):
        kinds = [tool for tool in given if isinstance(tool, Mapping) and not _is_function(tool)]
        for tool in kinds:
            if tool.get("name") == wanted:
                refuse_choice(tool.get("type"))
    return (body | {"tools": tools} if "tools" in body else body), others


def _is_function(tool: Mapping[str, object]) -> bool:
    """Whether the client says itself what a tool takes."""
    return tool.get("type") in (None, "custom") or "input_schema" in tool


_NAMES = {
    "stop": "stop_sequences",
    "response_format": "output_config.format",
    "reasoning_effort": "output_config.effort",
    "chat_template_kwargs.enable_thinking": "thinking",
    "tools[].function.strict": "tools[].strict",
    REASONING: "messages[].content[].thinking",
}
MESSAGES = Dialect(
    schema=MessageBody,
    endpoint=Endpoint.MESSAGES,
    to_chat=message_to_chat,
    names=_NAMES,
    tool_schema="input_schema",
    offer=_offer,
)
"""How to read a message's body and speak of it."""
MESSAGE_COUNTS = Dialect(
    schema=MessageCountBody,
    endpoint=Endpoint.MESSAGES,
    to_chat=message_to_chat,
    names=_NAMES,
    tool_schema="input_schema",
    offer=_offer,
)
"""The same where only tokens are counted."""
