"""What a client may ask of the form of an answer: response formats, constraints and tools."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Discriminator, Field, Tag, model_validator

MAX_TOOLS = 512
MAX_CHOICES = 4096
MAX_CHOICE_LENGTH = 4096
TOOL_NAME = r"^[A-Za-z0-9_.:/-]{1,128}$"


class _OutputPart(BaseModel):
    model_config = ConfigDict(strict=True, extra="ignore", frozen=True)


class _Format(BaseModel):
    """What asks for a form of text: a key that nobody knows might have been the form."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)

    @model_validator(mode="before")
    @classmethod
    def _without_nulls(cls, value: object) -> object:
        if not isinstance(value, dict):
            return value
        return {name: inner for name, inner in value.items() if inner is not None}


class JsonSchemaFormat(_Format):
    """A schema that the answer must fit; enforced whether `strict` says so or not."""

    name: str | None = None
    description: str | None = None
    schema_: Annotated[dict[str, object], Field(alias="schema")]
    strict: bool | None = None


class ResponseFormat(_Format):
    """The form of an answer."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchemaFormat | None = None
    schema_: Annotated[dict[str, object] | None, Field(alias="schema")] = None
    """The schema itself, as llama.cpp and Together have it."""


class StructuredOutputs(_OutputPart):
    """A constraint on the text; exactly one may be given."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)

    json_: Annotated[dict[str, object] | str | None, Field(alias="json")] = None
    """A JSON schema, or one as text."""
    json_object: bool | None = None
    regex: str | None = None
    """A regular expression that the whole text matches, as Rust's regex crate reads it."""
    choice: Annotated[
        list[Annotated[str, Field(max_length=MAX_CHOICE_LENGTH)]] | None,
        Field(min_length=1, max_length=MAX_CHOICES),
    ] = None
    """The text is one of these."""
    grammar: str | None = None
    """Lark with a rule `start`, or EBNF with a rule `root`."""


class FunctionDefinition(_OutputPart):
    """A function the model may call; unknown keys are left to the template."""

    model_config = ConfigDict(strict=True, extra="allow", frozen=True)

    name: Annotated[str, Field(pattern=TOOL_NAME)]
    description: str | None = None
    parameters: dict[str, object] | None = None
    """A JSON schema; absent, the function takes none."""
    strict: bool | None = None
    """Enforced where a call is required, or has a mark of its own; else reported as ignored."""


class Tool(_OutputPart):
    """A tool the model may use."""

    model_config = ConfigDict(strict=True, extra="allow", frozen=True)

    type: Literal["function"]
    function: FunctionDefinition


class FunctionName(_OutputPart):
    """The function that must be called."""

    name: str


class NamedTool(_OutputPart):
    """A choice of one tool."""

    type: Literal["function"]
    function: FunctionName


def _choice_kind(value: object) -> str:
    return "mode" if isinstance(value, str) else "named"


ToolChoice = Annotated[
    Annotated[Literal["none", "auto", "required"], Tag("mode")]
    | Annotated[NamedTool, Tag("named")],
    Discriminator(_choice_kind),
]
Tools = Annotated[list[Tool], Field(max_length=MAX_TOOLS)]
