"""What clients send to /v1/responses: the body, its items and its tools.

Only the types and bounds; what they mean in terms of a chat is said in api.dialects.responses.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Discriminator, Field, Tag

from server.api.schemas.output_schemas import MAX_TOOLS, TOOL_NAME
from server.api.schemas.requests import FIRST_ERROR, MAX_MESSAGES, SamplingBody

MAX_LABELS = 64


class _ItemPart(BaseModel):
    model_config = ConfigDict(strict=True, extra="ignore", frozen=True)


class ItemText(_ItemPart):
    """Text that was sent or generated."""

    type: Literal["input_text", "output_text", "text"]
    text: str


class ItemRefusal(_ItemPart):
    """A refusal that a client replays; the template sees its text."""

    type: Literal["refusal"]
    refusal: str


def _kind(value: object) -> str:
    return "text" if isinstance(value, str) else "list"


def _item_kind(value: object) -> str | None:
    """The type of an item; a message need not name it."""
    if not isinstance(value, Mapping):
        return None
    kind = value.get("type")
    return "message" if kind is None and "role" in value else kind


def _choice_kind(value: object) -> str:
    return "mode" if isinstance(value, str) else "named"


ItemParts = list[Annotated[ItemText | ItemRefusal, Field(discriminator="type")]]
ItemContent = Annotated[
    Annotated[str, Tag("text")] | Annotated[ItemParts, FIRST_ERROR, Tag("list")],
    Discriminator(_kind),
]


class InputMessage(_ItemPart):
    """One turn."""

    type: Literal["message"] | None = None
    role: Literal["system", "developer", "user", "assistant"]
    content: ItemContent


class CallItem(_ItemPart):
    """A call that the model made."""

    type: Literal["function_call"]
    call_id: str
    name: str
    namespace: str | None = None
    arguments: str


class CustomCallItem(_ItemPart):
    """A call of a tool that takes plain text."""

    type: Literal["custom_tool_call"]
    call_id: str
    name: str
    input: str


class CallOutputItem(_ItemPart):
    """What came of a call."""

    type: Literal["function_call_output", "custom_tool_call_output"]
    call_id: str
    output: ItemContent


class ThoughtsPart(_ItemPart):
    """A piece of thoughts."""

    type: Literal["reasoning_text", "summary_text", "text"]
    text: str


class ThoughtsItem(_ItemPart):
    """Thoughts that a client replays; for templates that show them."""

    type: Literal["reasoning"]
    content: list[ThoughtsPart] | None = None
    summary: list[ThoughtsPart] | None = None
    """Read where there is no content."""

    @property
    def text(self) -> str:
        """The thoughts."""
        return "\n".join(part.text for part in self.content or self.summary or ())


Item = Annotated[
    Annotated[InputMessage, Tag("message")]
    | Annotated[CallItem, Tag("function_call")]
    | Annotated[CustomCallItem, Tag("custom_tool_call")]
    | Annotated[CallOutputItem, Tag("function_call_output")]
    | Annotated[CallOutputItem, Tag("custom_tool_call_output")]
    | Annotated[ThoughtsItem, Tag("reasoning")],
    Discriminator(_item_kind),
]
Input = Annotated[
    Annotated[Annotated[str, Field(min_length=1)], Tag("text")]
    | Annotated[
        Annotated[list[Item], Field(max_length=MAX_MESSAGES), FIRST_ERROR],
        Tag("list"),
    ],
    Discriminator(_kind),
]


class TextFormat(_ItemPart):
    """The form of the answer's text; a key that nobody knows might have been the form."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)

    type: Literal["text", "json_object", "json_schema"]
    name: str | None = None
    description: str | None = None
    schema_: Annotated[dict[str, object] | None, Field(alias="schema")] = None
    strict: bool | None = None


class TextOptions(_ItemPart):
    """What the text should be like."""

    format: TextFormat | None = None


class ReasoningOptions(_ItemPart):
    """How the model should think."""

    effort: str | None = None
    """Handed to a template that reads `reasoning_effort`, otherwise ignored and reported."""


class ResponseTool(_ItemPart):
    """A function the model may call."""

    type: Literal["function"]
    name: Annotated[str, Field(pattern=TOOL_NAME)]
    description: str | None = None
    parameters: dict[str, object] | None = None
    strict: bool | None = None


class NamespaceTool(_ItemPart):
    """Functions that belong together; each is offered under both names."""

    type: Literal["namespace"]
    name: Annotated[str, Field(pattern=TOOL_NAME)]
    description: str | None = None
    tools: Annotated[list[ResponseTool], Field(max_length=MAX_TOOLS)]


class ResponseNamedTool(_ItemPart):
    """The function that must be called."""

    type: Literal["function"]
    name: str


ResponseToolChoice = Annotated[
    Annotated[Literal["none", "auto", "required"], Tag("mode")]
    | Annotated[ResponseNamedTool, Tag("named")],
    Discriminator(_choice_kind),
]


class ResponseBody(SamplingBody):
    """POST /v1/responses and /v1/responses/input_tokens."""

    input: Input
    """A text, or the whole conversation as items; nothing is kept from one request to the next."""
    instructions: str | None = None
    """Put before the input as a system message."""
    max_output_tokens: Annotated[int | None, Field(ge=1)] = None
    text: TextOptions = TextOptions()
    reasoning: ReasoningOptions = ReasoningOptions()
    tools: Annotated[
        list[Annotated[ResponseTool | NamespaceTool, Field(discriminator="type")]],
        Field(max_length=MAX_TOOLS, default_factory=list),
    ]
    tool_choice: ResponseToolChoice = "auto"
    parallel_tool_calls: bool = True
    metadata: Annotated[dict[str, str], Field(max_length=MAX_LABELS, default_factory=dict)]
    """Labels, repeated in the answer."""
    chat_template_kwargs: Annotated[dict[str, object], Field(default_factory=dict)]
