"""Names of OpenTelemetry's conventions for generative AI, and which facts of a call bear them.

In development, and renamed now and then: so they stand in this one file.
Source: https://github.com/open-telemetry/semantic-conventions-genai, version 0.1.0
"""

from __future__ import annotations

from server.api.generation_call import GenerationCall

PROVIDER_NAME = "gen_ai.provider.name"
OPERATION_NAME = "gen_ai.operation.name"
REQUEST_MODEL = "gen_ai.request.model"
REQUEST_MAX_TOKENS = "gen_ai.request.max_tokens"
REQUEST_TEMPERATURE = "gen_ai.request.temperature"
REQUEST_TOP_P = "gen_ai.request.top_p"
REQUEST_TOP_K = "gen_ai.request.top_k"
REQUEST_SEED = "gen_ai.request.seed"
REQUEST_STREAM = "gen_ai.request.stream"
REQUEST_STOP_SEQUENCES = "gen_ai.request.stop_sequences"
REQUEST_CHOICE_COUNT = "gen_ai.request.choice.count"
RESPONSE_ID = "gen_ai.response.id"
RESPONSE_MODEL = "gen_ai.response.model"
RESPONSE_FINISH_REASONS = "gen_ai.response.finish_reasons"
RESPONSE_TIME_TO_FIRST_CHUNK = "gen_ai.response.time_to_first_chunk"
USAGE_INPUT_TOKENS = "gen_ai.usage.input_tokens"
USAGE_OUTPUT_TOKENS = "gen_ai.usage.output_tokens"
USAGE_CACHE_READ_TOKENS = "gen_ai.usage.cache_read.input_tokens"
ERROR_TYPE = "error.type"
HTTP_METHOD = "http.request.method"
HTTP_STATUS = "http.response.status_code"
URL_PATH = "url.path"
PROVIDER = "kvserve"

Attributes = dict[str, str | int | float | bool | list[str]]


def request_attributes(call: GenerationCall) -> Attributes:
    """What was asked for; no text of it."""
    params = call.requests[0].params
    return {
        OPERATION_NAME: "chat" if call.id.startswith("chat") else "text_completion",
        PROVIDER_NAME: PROVIDER,
        REQUEST_MODEL: call.model,
        RESPONSE_MODEL: call.model,
        RESPONSE_ID: call.id,
        REQUEST_MAX_TOKENS: params.max_tokens,
        REQUEST_TEMPERATURE: params.temperature,
        REQUEST_TOP_P: params.top_p,
        REQUEST_TOP_K: params.top_k,
        REQUEST_SEED: call.seed,
        REQUEST_STREAM: call.options.stream,
        REQUEST_CHOICE_COUNT: call.n,
        REQUEST_STOP_SEQUENCES: list(params.stop),
    }
