"""What clients get: the types of every answer that is not an error.

The wire is described once: the answers are made of these types and the OpenAPI page shows them.
Fields that were not set are left out of the JSON.
"""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel


class PromptTokensDetails(BaseModel):
    """Where the prompt's tokens came from."""

    cached_tokens: int


class CompletionTokensDetails(BaseModel):
    """What became of the tokens that were guessed ahead."""

    accepted_prediction_tokens: int
    rejected_prediction_tokens: int


class Usage(BaseModel):
    """Token counts of a whole call; choices add up, each prompt counts once."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails
    completion_tokens_details: CompletionTokensDetails | None = None
    """Only where tokens were guessed ahead."""


class CompletionLogprobs(BaseModel):
    """One entry per token; text_offset counts characters of the choice's text."""

    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None]
    text_offset: list[int]


class PromptLogprob(BaseModel):
    """A token that might stand at a position of the prompt."""

    logprob: float
    rank: int | None
    """1 is the likeliest; null if it is not among the alternatives asked for."""
    decoded_token: str


class CompletionChoice(BaseModel):
    """One continuation, or the next piece of it."""

    index: int
    text: str
    logprobs: CompletionLogprobs | None
    finish_reason: Literal["stop", "length"] | None
    stop_reason: str | int | None = None
    token_ids: list[int] = []
    prompt_token_ids: list[int] = []
    prompt_logprobs: list[dict[str, PromptLogprob] | None] = []


class Completion(BaseModel):
    """The answer of /v1/completions, or one event of its stream."""

    id: str
    object: Literal["text_completion"]
    created: int
    model: str
    seed: int
    """The seed that was used, given or drawn."""
    choices: list[CompletionChoice]
    usage: Usage | None = None


class TopLogprob(BaseModel):
    """An alternative; `bytes` are those it adds to the text."""

    token: str
    logprob: float
    bytes: list[int]


class TokenLogprob(TopLogprob):
    """A generated token with its likeliest alternatives."""

    top_logprobs: list[TopLogprob]


class ChatLogprobs(BaseModel):
    """Log-probabilities of a choice's tokens."""

    content: list[TokenLogprob]
    refusal: None


class CalledFunction(BaseModel):
    """Which function is called; the arguments are JSON, as the model wrote it."""

    name: str
    arguments: str


class ToolCall(BaseModel):
    """A call the model wants made."""

    id: str
    type: Literal["function"]
    function: CalledFunction


class AssistantMessage(BaseModel):
    """The whole answer of a choice."""

    role: Literal["assistant"]
    content: str | None
    refusal: None
    reasoning_content: str = ""
    tool_calls: list[ToolCall] = []


class ChatChoice(BaseModel):
    """One answer."""

    index: int
    message: AssistantMessage
    logprobs: ChatLogprobs | None
    finish_reason: Literal["stop", "length", "tool_calls"]
    stop_reason: str | int | None = None
    token_ids: list[int] = []


class ChatCompletion(BaseModel):
    """The answer of /v1/chat/completions."""

    id: str
    object: Literal["chat.completion"]
    created: int
    model: str
    seed: int
    choices: list[ChatChoice]
    usage: Usage
    prompt_token_ids: list[int] = []
    prompt_logprobs: list[dict[str, PromptLogprob] | None] = []


class FunctionDelta(BaseModel):
    """What a function call gains; the name comes in the first delta only."""

    name: str = ""
    arguments: str


class ToolCallDelta(BaseModel):
    """What a tool call gains; id and type come in the first delta only."""

    index: int
    id: str = ""
    type: Literal["function"] = "function"
    function: FunctionDelta


class Delta(BaseModel):
    """What an event adds to a choice's message."""

    role: Literal["assistant"] = "assistant"
    content: str | None = ""
    reasoning_content: str = ""
    tool_calls: list[ToolCallDelta] = []


class ChunkChoice(BaseModel):
    """The next piece of one choice."""

    index: int
    delta: Delta
    logprobs: ChatLogprobs | None
    finish_reason: Literal["stop", "length", "tool_calls"] | None
    stop_reason: str | int | None = None
    token_ids: list[int] = []


class ChatCompletionChunk(BaseModel):
    """One event of a chat stream."""

    id: str
    object: Literal["chat.completion.chunk"]
    created: int
    model: str
    seed: int
    choices: list[ChunkChoice]
    usage: Usage | None = None
    prompt_token_ids: list[int] = []


class ModelCard(BaseModel):
    """The served model."""

    id: str
    object: Literal["model"]
    created: int
    owned_by: str
    root: str
    parent: None
    max_model_len: int
    architecture: str
    dtype: str
    device: str
    num_parameters: int
    vocab_size: int
    num_layers: int
    num_heads: int
    """Query heads of a layer."""
    has_chat_template: bool
    default_sampling: dict[str, float | int]
    """What an absent field of a request is taken to be, where the checkpoint recommends it."""


class ModelList(BaseModel):
    """All served models: one."""

    object: Literal["list"]
    data: list[ModelCard]


class Tokens(BaseModel):
    """The answer of /tokenize."""

    tokens: list[int]
    count: int
    max_model_len: int
    token_strs: list[str] = []


class Text(BaseModel):
    """The answer of /detokenize."""

    prompt: str


class TokenizerInfo(BaseModel):
    """Facts about the tokenizer."""

    vocab_size: int
    model_max_length: int
    bos_token: str | None
    bos_token_id: int | None
    eos_token: str | None
    eos_token_id: int | None
    eos_token_ids: list[int]
    has_chat_template: bool


class Status(BaseModel):
    """The answer of /health and /ready."""

    status: str


class Version(BaseModel):
    """The answer of /version."""

    version: str


class ErrorDetail(BaseModel):
    """What went wrong."""

    message: str
    type: str
    param: str | None
    code: str | None


class ErrorAnswer(BaseModel):
    """The one shape of every error."""

    error: ErrorDetail
