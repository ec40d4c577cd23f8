"""What /v1/responses answers: the response, its items, and the events of its stream."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, Field, RootModel

from server.api.schemas.response_schemas import (
    NamespaceTool,
    ResponseNamedTool,
    ResponseTool,
    TextFormat,
)
from server.api.schemas.wire_types import ErrorDetail

ItemStatus = Literal["in_progress", "completed", "incomplete"]


class OutputText(BaseModel):
    """Text for the reader."""

    type: Literal["output_text"] = "output_text"
    text: str
    annotations: list[None] = []
    logprobs: list[None] = []


class ReasoningText(BaseModel):
    """Thoughts."""

    type: Literal["reasoning_text"] = "reasoning_text"
    text: str


class MessageItem(BaseModel):
    """What the model says."""

    type: Literal["message"] = "message"
    id: str
    status: ItemStatus
    role: Literal["assistant"] = "assistant"
    content: list[OutputText]


class ReasoningItem(BaseModel):
    """What the model thinks."""

    type: Literal["reasoning"] = "reasoning"
    id: str
    status: ItemStatus
    summary: list[None] = []
    content: list[ReasoningText]


class FunctionCallItem(BaseModel):
    """A call the model wants made; the arguments are JSON, as the model wrote it."""

    type: Literal["function_call"] = "function_call"
    id: str
    status: ItemStatus
    call_id: str
    name: str
    namespace: str | None = None
    arguments: str


OutputItem = Annotated[MessageItem | ReasoningItem | FunctionCallItem, Field(discriminator="type")]
ContentPart = Annotated[OutputText | ReasoningText, Field(discriminator="type")]


class InputTokensDetails(BaseModel):
    """Where the prompt's tokens came from."""

    cached_tokens: int
    cache_write_tokens: int = 0


class OutputTokensDetails(BaseModel):
    """What the generated tokens were for."""

    reasoning_tokens: int


class ResponseUsage(BaseModel):
    """Token counts of a response."""

    input_tokens: int
    input_tokens_details: InputTokensDetails
    output_tokens: int
    output_tokens_details: OutputTokensDetails
    total_tokens: int


class ResponseFailure(BaseModel):
    """Why a response failed."""

    code: str
    message: str


class IncompleteDetails(BaseModel):
    """Why a response is not complete."""

    reason: Literal["max_output_tokens"]


class ResponseTextEcho(BaseModel):
    """What was asked of the text."""

    format: TextFormat


class ResponseReasoningEcho(BaseModel):
    """What was asked of the thoughts."""

    effort: str | None
    summary: None = None


class ResponseObject(BaseModel):
    """The answer of /v1/responses."""

    id: str
    object: Literal["response"] = "response"
    created_at: int
    completed_at: int | None = None
    status: Literal["in_progress", "completed", "incomplete", "failed"]
    error: ResponseFailure | None = None
    incomplete_details: IncompleteDetails | None = None
    model: str
    output: list[OutputItem]
    usage: ResponseUsage | None = None
    seed: int
    """The seed that was used, given or drawn."""
    instructions: str | None
    max_output_tokens: int | None
    metadata: dict[str, str]
    parallel_tool_calls: bool
    reasoning: ResponseReasoningEcho
    temperature: float
    text: ResponseTextEcho
    tool_choice: Literal["none", "auto", "required"] | ResponseNamedTool
    tools: list[ResponseTool | NamespaceTool]
    top_p: float
    background: Literal[False] = False
    previous_response_id: None = None
    store: Literal[False] = False
    truncation: Literal["disabled"] = "disabled"


class _Event(BaseModel):
    sequence_number: int


class ResponseStateEvent(_Event):
    """The response begins or ends."""

    type: Literal[
        "response.created",
        "response.in_progress",
        "response.completed",
        "response.incomplete",
        "response.failed",
    ]
    response: ResponseObject


class ResponseItemEvent(_Event):
    """An item begins or ends."""

    type: Literal["response.output_item.added", "response.output_item.done"]
    output_index: int
    item: OutputItem


class _InsideItem(_Event):
    item_id: str
    output_index: int


class ResponsePartEvent(_InsideItem):
    """The content of an item begins or ends."""

    type: Literal["response.content_part.added", "response.content_part.done"]
    content_index: Literal[0] = 0
    part: ContentPart


class ResponseTextDeltaEvent(_InsideItem):
    """Text is gained."""

    type: Literal["response.output_text.delta"] = "response.output_text.delta"
    content_index: Literal[0] = 0
    delta: str
    logprobs: list[None] = []


class ResponseTextDoneEvent(_InsideItem):
    """The whole text."""

    type: Literal["response.output_text.done"] = "response.output_text.done"
    content_index: Literal[0] = 0
    text: str
    logprobs: list[None] = []


class ResponseThoughtsDeltaEvent(_InsideItem):
    """Thoughts are gained."""

    type: Literal["response.reasoning_text.delta"] = "response.reasoning_text.delta"
    content_index: Literal[0] = 0
    delta: str


class ResponseThoughtsDoneEvent(_InsideItem):
    """The whole thoughts."""

    type: Literal["response.reasoning_text.done"] = "response.reasoning_text.done"
    content_index: Literal[0] = 0
    text: str


class ResponseArgumentsDeltaEvent(_InsideItem):
    """Arguments of a call are gained."""

    type: Literal["response.function_call_arguments.delta"] = (
        "response.function_call_arguments.delta"
    )
    delta: str


class ResponseArgumentsDoneEvent(_InsideItem):
    """The whole arguments of a call."""

    type: Literal["response.function_call_arguments.done"] = "response.function_call_arguments.done"
    name: str
    arguments: str


class ResponseFailureEvent(_Event):
    """The stream fails; the error is there in both shapes in which clients look for it."""

    type: Literal["error"] = "error"
    error: ErrorDetail
    message: str
    param: str | None
    code: str | None


ResponseChange = (
    ResponseStateEvent
    | ResponseItemEvent
    | ResponsePartEvent
    | ResponseTextDeltaEvent
    | ResponseTextDoneEvent
    | ResponseThoughtsDeltaEvent
    | ResponseThoughtsDoneEvent
    | ResponseArgumentsDeltaEvent
    | ResponseArgumentsDoneEvent
    | ResponseFailureEvent
)


class ResponseEvent(RootModel[Annotated[ResponseChange, Field(discriminator="type")]]):
    """One event of a stream."""


class InputTokens(BaseModel):
    """How many tokens a request's prompt has."""

    object: Literal["response.input_tokens"]
    input_tokens: int
