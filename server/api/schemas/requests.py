"""What clients send: the request bodies, their types and their bounds.

Every limit on something a client can make large stands here. `parse` turns pydantic's findings
into the one error shape: the field, the bound and the value. Which fields exist at all is the
business of server.api.fields.fields; what needs the model (vocabulary, context) that of
server.api.inputs.input_processor.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Discriminator, Field, Tag, ValidationError

from server.api.fields.body_errors import explain
from server.api.schemas.output_schemas import (
    ResponseFormat,
    StructuredOutputs,
    ToolChoice,
    Tools,
)

MAX_N = 128
MAX_PROMPTS = 1024
MAX_SEQUENCES = 1024
"""Prompts times choices of one request."""
MAX_LOGPROBS = 20
MAX_STOPS = 256
MAX_STOP_LENGTH = 1024
MAX_STOP_TOKEN_IDS = 1024
MAX_LOGIT_BIASES = 4096
MAX_ALLOWED_TOKEN_IDS = 65_536
MAX_BAD_WORDS = 1024
MAX_BAD_WORD_LENGTH = 256
MAX_COMPARED = 128
"""Tokens that a comparison generates twice."""
MAX_MESSAGES = 32_768
MAX_TEMPLATE_KWARGS = 64
INT64 = 1 << 63
FIRST_ERROR = Field(fail_fast=True)
"""For lists that may be long: one finding says enough, and a million take seconds."""


def _kind(value: object) -> str:
    return "text" if isinstance(value, str) else "list"


def _prompt_kind(value: object) -> str:
    """Which of the four forms a prompt has, judged by its first element."""
    if isinstance(value, str):
        return "text"
    first = value[0] if isinstance(value, list) and value else None
    if isinstance(first, str):
        return "texts"
    return "id_lists" if isinstance(first, list) else "ids"


Finite = Field(allow_inf_nan=False)
StopString = Annotated[str, Field(min_length=1, max_length=MAX_STOP_LENGTH)]
BadWord = Annotated[str, Field(min_length=1, max_length=MAX_BAD_WORD_LENGTH)]
TemplateKwargs = Annotated[dict[str, object], Field(max_length=MAX_TEMPLATE_KWARGS)]
Stop = Annotated[
    Annotated[StopString, Tag("text")]
    | Annotated[Annotated[list[StopString], Field(max_length=MAX_STOPS)], Tag("list")],
    Discriminator(_kind),
]
ShortText = Annotated[str, Field(min_length=1, max_length=16_000)]
TokenIds = Annotated[list[int], Field(min_length=1), FIRST_ERROR]
PromptField = Annotated[
    Annotated[str, Tag("text")]
    | Annotated[Annotated[list[str], Field(max_length=MAX_PROMPTS), FIRST_ERROR], Tag("texts")]
    | Annotated[TokenIds, Tag("ids")]
    | Annotated[
        Annotated[list[TokenIds], Field(max_length=MAX_PROMPTS), FIRST_ERROR], Tag("id_lists")
    ],
    Discriminator(_prompt_kind),
]


class Body(BaseModel):
    """A request body; nulls are gone and unknown fields judged before it is made."""

    model_config = ConfigDict(strict=True, extra="ignore", frozen=True, allow_inf_nan=False)

    model: str | None = None
    """The id of the served model; may be left out, as there is only one."""


class StreamOptions(BaseModel):
    """What a stream carries beside the text."""

    model_config = ConfigDict(strict=True, extra="ignore", frozen=True)

    include_usage: bool | None = None
    """One more chunk, the last, with the token counts."""
    continuous_usage_stats: bool | None = None
    """With `include_usage`: the counts so far in every chunk."""


class SamplingBody(Body):
    """The fields that every endpoint shares that generates text."""

    temperature: Annotated[float | None, Field(ge=0, le=2)] = None
    """0 is greedy."""
    top_p: Annotated[float | None, Field(ge=0, le=1)] = None
    top_k: Annotated[int | None, Field(ge=-1, lt=INT64)] = None
    """0 and -1 are off."""
    min_p: Annotated[float | None, Field(ge=0, le=1)] = None
    seed: Annotated[int | None, Field(ge=-INT64, lt=INT64)] = None
    """Choice i draws from the stream (seed, i); without one the answer reports the seed drawn."""
    ignore_eos: bool = False
    presence_penalty: Annotated[float, Field(ge=-2, le=2)] = 0.0
    frequency_penalty: Annotated[float, Field(ge=-2, le=2)] = 0.0
    repetition_penalty: Annotated[float | None, Field(ge=0.01, le=100)] = None
    priority: Annotated[int, Field(ge=-(1 << 31), lt=1 << 31)] = 0
    """Lower runs first."""
    prefix_cache: bool = True
    """Whether keys and values of earlier requests may be reused."""
    use_cache: bool = True
    """False computes everything anew for every token, to compare."""
    cache_salt: Annotated[str, Field(max_length=256)] = ""
    """Only requests with equal salts share cached prefixes."""
    stream: bool = False


class GenerationBody(SamplingBody):
    """The fields that completions and chat share."""

    n: Annotated[int, Field(ge=1, le=MAX_N)] = 1
    max_tokens: Annotated[int | None, Field(ge=0)] = None
    max_completion_tokens: Annotated[int | None, Field(ge=0)] = None
    """The same as `max_tokens`."""
    min_tokens: Annotated[int, Field(ge=0)] = 0
    stop: Stop | None = None
    stop_token_ids: Annotated[list[int], Field(max_length=MAX_STOP_TOKEN_IDS)] = []
    include_stop_str_in_output: bool = False
    logit_bias: Annotated[
        dict[str, Annotated[float, Field(ge=-100, le=100)]], Field(max_length=MAX_LOGIT_BIASES)
    ] = {}
    allowed_token_ids: Annotated[
        Annotated[list[int], FIRST_ERROR] | None,
        Field(min_length=1, max_length=MAX_ALLOWED_TOKEN_IDS),
    ] = None
    """The only tokens that may be generated."""
    bad_words: Annotated[list[BadWord], Field(max_length=MAX_BAD_WORDS)] = []
    """Words that are not generated."""
    prompt_logprobs: Annotated[int | None, Field(ge=0, le=MAX_LOGPROBS)] = None
    """Alternatives shown beside each token of the prompt; not in streams."""
    skip_special_tokens: bool = True
    return_token_ids: bool = False
    truncate_prompt_tokens: Annotated[int | None, Field(ge=1)] = None
    """Keep only this many of the prompt's last tokens."""
    response_format: ResponseFormat | None = None
    structured_outputs: StructuredOutputs | None = None
    stream_options: StreamOptions = StreamOptions()


class CompletionBody(GenerationBody):
    """POST /v1/completions."""

    prompt: PromptField
    """A string, a list of strings, token ids, or a list of lists of token ids."""
    echo: bool = False
    """Begin the text with the prompt; with `max_tokens` 0 the prompt is only scored."""
    logprobs: Annotated[int | None, Field(ge=0, le=MAX_LOGPROBS)] = None


class TextPart(BaseModel):
    """A part of a message's content."""

    model_config = ConfigDict(strict=True, extra="ignore", frozen=True)

    type: Literal["text"]
    text: str


class RefusalPart(BaseModel):
    """A refusal that a client replays; the template sees its text."""

    model_config = ConfigDict(strict=True, extra="ignore", frozen=True)

    type: Literal["refusal"]
    refusal: str


class FunctionCall(BaseModel):
    """Which function an assistant called, and with what."""

    model_config = ConfigDict(strict=True, extra="ignore", frozen=True)

    name: str
    arguments: str = ""


class MadeCall(BaseModel):
    """A call that an assistant message replays."""

    model_config = ConfigDict(strict=True, extra="ignore", frozen=True)

    id: str | None = None
    type: Literal["function"] = "function"
    function: FunctionCall


TurnPart = Annotated[TextPart | RefusalPart, Field(discriminator="type")]
Content = Annotated[
    Annotated[str, Tag("text")] | Annotated[list[TurnPart], FIRST_ERROR, Tag("list")],
    Discriminator(_kind),
]


class Message(BaseModel):
    """One turn of a chat."""

    model_config = ConfigDict(strict=True, extra="ignore", frozen=True)

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: Content | None = None
    """Text or text parts; only an assistant's may be null."""
    name: str | None = None
    tool_calls: list[MadeCall] | None = None
    tool_call_id: str | None = None
    reasoning_content: str | None = None
    """Thoughts that a client replays; for templates that show them."""
    reasoning: str | None = None
    """The same under another name."""


Messages = Annotated[list[Message], Field(min_length=1, max_length=MAX_MESSAGES), FIRST_ERROR]


class ChatBody(GenerationBody):
    """POST /v1/chat/completions."""

    messages: Messages
    logprobs: bool = False
    top_logprobs: Annotated[int | None, Field(ge=0, le=MAX_LOGPROBS)] = None
    tools: Tools = []
    tool_choice: ToolChoice = "auto"
    parallel_tool_calls: bool = True
    """Whether an answer may hold several calls; false matters where a call is required."""
    add_generation_prompt: bool | None = None
    """Whether to end with the header of an assistant's turn; yes, unless one is continued."""
    continue_final_message: bool = False
    """Continue the last message; excludes `add_generation_prompt`."""
    chat_template_kwargs: TemplateKwargs = {}
    reasoning_effort: str | None = None
    """Handed to a template that reads it, otherwise ignored and reported."""


class TokenizeBody(Body):
    """POST /tokenize: either `prompt` or `messages`."""

    prompt: str | None = None
    add_special_tokens: bool = True
    return_token_strs: bool = False
    messages: Messages | None = None
    tools: Tools = []
    """What the template tells the model of, beside the messages."""
    add_generation_prompt: bool | None = None
    """Whether to end with the header of an assistant's turn; yes, unless one is continued."""
    continue_final_message: bool = False
    chat_template_kwargs: TemplateKwargs = {}


class DetokenizeBody(Body):
    """POST /detokenize."""

    tokens: Annotated[list[int], FIRST_ERROR]
    skip_special_tokens: bool = False


class CompareBody(Body):
    """POST /v1/compare."""

    prompt: ShortText
    max_tokens: Annotated[int, Field(ge=2, le=MAX_COMPARED)] = 48
    """Tokens that are generated with the cache, and again without it."""
    stream: bool = False
    """Send each step as it is done, and the whole at the end."""


class AttentionBody(Body):
    """POST /v1/attention."""

    prompt: ShortText
    layer: Annotated[int | None, Field(ge=0)] = None
    """From 0; the mean of all layers if none."""
    head: Annotated[int | None, Field(ge=0)] = None
    """From 0; the mean of all heads if none."""


def num_prompts(body: CompletionBody) -> int:
    """How many prompts a completions request has."""
    return len(body.prompt) if _prompt_kind(body.prompt) in ("texts", "id_lists") else 1


Parsed = TypeVar("Parsed", bound=Body)


def parse(schema: type[Parsed], values: Mapping[str, object]) -> Parsed:
    """Check the types and bounds of a body that was judged already.

    Raises:
        InvalidRequestError: Names the first field at fault, the bound and the value.
    """
    try:
        return schema.model_validate(_without_nulls(values))
    except ValidationError as error:
        problem = error.errors(include_url=False, include_context=True)[0]
        raise explain(problem, values) from None


def _without_nulls(values: Mapping[str, object]) -> dict[str, object]:
    """The fields without those that are null, in options and formats too."""
    return {
        name: _kept(value) if name in _WITHOUT_NULLS else value for name, value in values.items()
    }


_WITHOUT_NULLS = frozenset({"stream_options", "response_format", "structured_outputs"})


def _kept(value: object) -> object:
    """An object without its nulls."""
    if not isinstance(value, dict):
        return value
    return {name: inner for name, inner in value.items() if inner is not None}
