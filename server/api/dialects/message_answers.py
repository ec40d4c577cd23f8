"""What /v1/messages answers: the message, its blocks, and the events of its stream."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, Field, RootModel

StopReason = Literal["end_turn", "max_tokens", "stop_sequence", "tool_use"]


class AnswerText(BaseModel):
    """Text for the reader."""

    type: Literal["text"] = "text"
    text: str


class AnswerThinking(BaseModel):
    """Thoughts; nobody signs them."""

    type: Literal["thinking"] = "thinking"
    thinking: str
    signature: Literal[""] = ""


class AnswerToolUse(BaseModel):
    """A call the model wants made."""

    type: Literal["tool_use"] = "tool_use"
    id: str
    name: str
    input: dict[str, object]


AnswerBlock = Annotated[AnswerText | AnswerThinking | AnswerToolUse, Field(discriminator="type")]


class MessageUsage(BaseModel):
    """Token counts; the prompt has `input_tokens` and `cache_read_input_tokens` together."""

    input_tokens: int
    cache_read_input_tokens: int
    cache_creation_input_tokens: int = 0
    output_tokens: int


class MessageObject(BaseModel):
    """The answer of /v1/messages."""

    id: str
    type: Literal["message"] = "message"
    role: Literal["assistant"] = "assistant"
    model: str
    content: list[AnswerBlock]
    stop_reason: StopReason | None
    stop_sequence: str | None
    usage: MessageUsage


class MessageStart(BaseModel):
    """The message begins."""

    type: Literal["message_start"] = "message_start"
    message: MessageObject


class BlockStart(BaseModel):
    """A block begins."""

    type: Literal["content_block_start"] = "content_block_start"
    index: int
    content_block: AnswerBlock


class TextDelta(BaseModel):
    """Text is gained."""

    type: Literal["text_delta"] = "text_delta"
    text: str


class ThinkingDelta(BaseModel):
    """Thoughts are gained."""

    type: Literal["thinking_delta"] = "thinking_delta"
    thinking: str


class InputDelta(BaseModel):
    """A piece of the JSON of a call's input is gained."""

    type: Literal["input_json_delta"] = "input_json_delta"
    partial_json: str


class BlockDelta(BaseModel):
    """A block gains something."""

    type: Literal["content_block_delta"] = "content_block_delta"
    index: int
    delta: Annotated[TextDelta | ThinkingDelta | InputDelta, Field(discriminator="type")]


class BlockStop(BaseModel):
    """A block ends."""

    type: Literal["content_block_stop"] = "content_block_stop"
    index: int


class MessageEnding(BaseModel):
    """Why the message ends."""

    stop_reason: StopReason
    stop_sequence: str | None


class MessageDelta(BaseModel):
    """The message is about to end."""

    type: Literal["message_delta"] = "message_delta"
    delta: MessageEnding
    usage: MessageUsage


class MessageStop(BaseModel):
    """The message has ended."""

    type: Literal["message_stop"] = "message_stop"


class Ping(BaseModel):
    """The server is still there."""

    type: Literal["ping"] = "ping"


MessageChange = (
    MessageStart | BlockStart | BlockDelta | BlockStop | MessageDelta | MessageStop | Ping
)


class MessageEvent(RootModel[Annotated[MessageChange, Field(discriminator="type")]]):
    """One event of a stream."""


class MessageTokens(BaseModel):
    """The answer of /v1/messages/count_tokens."""

    input_tokens: int


class MessageErrorDetail(BaseModel):
    """What went wrong."""

    type: str
    message: str


class MessageError(BaseModel):
    """The shape of every error of /v1/messages."""

    type: Literal["error"] = "error"
    error: MessageErrorDetail
    request_id: str
