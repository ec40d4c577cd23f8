"""What clients send to /v1/messages: the body, its content blocks and its tools.

Only the types and bounds; what they mean in terms of a chat is said in api.dialects.messages.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Discriminator, Field, Tag

from server.api.schemas.output_schemas import MAX_TOOLS, TOOL_NAME
from server.api.schemas.requests import (
    FIRST_ERROR,
    MAX_MESSAGES,
    MAX_STOPS,
    SamplingBody,
    StopString,
)


class _MessagePart(BaseModel):
    model_config = ConfigDict(strict=True, extra="ignore", frozen=True)


class TextBlock(_MessagePart):
    """Text."""

    type: Literal["text"]
    text: str


class ToolUseBlock(_MessagePart):
    """A call that the model made."""

    type: Literal["tool_use"]
    id: str
    name: str
    input: dict[str, object]


class ToolReferenceBlock(_MessagePart):
    """The name of a tool that a search for tools has found."""

    type: Literal["tool_reference"]
    tool_name: str


def _kind(value: object) -> str:
    return "text" if isinstance(value, str) else "list"


TextContent = Annotated[
    Annotated[str, Tag("text")]
    | Annotated[
        list[Annotated[TextBlock | ToolReferenceBlock, Field(discriminator="type")]],
        FIRST_ERROR,
        Tag("list"),
    ],
    Discriminator(_kind),
]


class ToolResultBlock(_MessagePart):
    """What came of a call."""

    type: Literal["tool_result"]
    tool_use_id: str
    content: TextContent | None = None


class ThinkingBlock(_MessagePart):
    """Thoughts that a client replays; for templates that show them."""

    type: Literal["thinking"]
    thinking: str = ""


class RedactedBlock(_MessagePart):
    """Thoughts that nobody can read."""

    type: Literal["redacted_thinking"]


ContentBlock = Annotated[
    TextBlock | ToolUseBlock | ToolResultBlock | ThinkingBlock | RedactedBlock,
    Field(discriminator="type"),
]
BlockContent = Annotated[
    Annotated[str, Tag("text")] | Annotated[list[ContentBlock], FIRST_ERROR, Tag("list")],
    Discriminator(_kind),
]


class Turn(_MessagePart):
    """One turn; neighbours of one role are one."""

    role: Literal["user", "assistant", "system"]
    content: BlockContent


class MessageTool(_MessagePart):
    """A function the model may call; the client runs it."""

    type: Literal["custom"] | None = None
    name: Annotated[str, Field(pattern=TOOL_NAME)]
    description: str | None = None
    input_schema: dict[str, object]
    strict: bool | None = None


class MessageToolChoice(_MessagePart):
    """Whether tools are called."""

    type: Literal["auto", "any", "tool", "none"]
    name: str | None = None
    """Of the tool that must be called, with type "tool"."""
    disable_parallel_tool_use: bool | None = None


class Thinking(_MessagePart):
    """Whether the model should think first, where its template lets that be chosen."""

    type: Literal["enabled", "disabled", "adaptive", "between_tools"]


class OutputFormat(_MessagePart):
    """A schema that the answer must fit; a key that nobody knows might have been the form."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)

    type: Literal["json_schema"]
    schema_: Annotated[dict[str, object], Field(alias="schema")]


class OutputConfig(_MessagePart):
    """What the answer should be like."""

    format: OutputFormat | None = None
    effort: str | None = None
    """Handed to a template that reads `reasoning_effort`, otherwise ignored and reported."""


class MessageCountBody(SamplingBody):
    """POST /v1/messages/count_tokens."""

    messages: Annotated[list[Turn], Field(min_length=1, max_length=MAX_MESSAGES), FIRST_ERROR]
    """The whole conversation; an assistant's turn at its end is continued."""
    system: TextContent | None = None
    max_tokens: Annotated[int | None, Field(ge=1)] = None
    stop_sequences: Annotated[list[StopString], Field(max_length=MAX_STOPS, default_factory=list)]
    tools: Annotated[list[MessageTool], Field(max_length=MAX_TOOLS, default_factory=list)]
    tool_choice: MessageToolChoice = MessageToolChoice(type="auto")
    thinking: Thinking | None = None
    output_config: OutputConfig = OutputConfig()
    chat_template_kwargs: Annotated[dict[str, object], Field(default_factory=dict)]


class MessageBody(MessageCountBody):
    """POST /v1/messages."""

    max_tokens: Annotated[int, Field(ge=1)]
