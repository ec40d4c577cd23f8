"""EngineConfig and ServerConfig: every option, from the command line or from KVSERVE_* variables.

Frozen once made; what "auto" comes to is decided by whoever uses it, into an object of its own.
Reads the environment only; opens no files and loads nothing.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Literal, TypeVar

from pydantic import AfterValidator, BeforeValidator, Field, SecretStr, ValidationError
from pydantic_settings import BaseSettings, SettingsConfigDict

from server.errors import ConfigurationError

_BYTES = re.compile(r"(\d+(?:\.\d+)?)\s*([kmgt]?)(i?)b?", re.IGNORECASE)
_POWERS = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4}


def parse_bytes(value: object) -> object:
    """A number of bytes from "8589934592", "8GB", "8GiB" or "8g"; "auto" is None.

    Units are powers of 1024 except for the explicit KB, MB, GB and TB, which are powers of 1000.
    What is not text is left for the validator that follows.
    """
    if not isinstance(value, str):
        return value
    if value.strip().lower() == "auto":
        return None
    match = _BYTES.fullmatch(value.strip())
    if match is None:
        raise ValueError("must be a number of bytes, such as 2GiB, or auto")
    number, unit, binary = match.groups()
    decimal = unit and not binary and value.strip().lower().endswith("b")
    return int(float(number) * (1000 if decimal else 1024) ** _POWERS[unit.lower()])


def _auto(value: object) -> object:
    """None for "auto", else the value itself."""
    return None if isinstance(value, str) and value.strip().lower() == "auto" else value


def _power_of_two(value: int) -> int:
    if value & (value - 1):
        raise ValueError("must be a power of two")
    return value


Bytes = Annotated[int | None, Field(gt=0), BeforeValidator(parse_bytes)]
Size = Annotated[int, Field(ge=1024), BeforeValidator(parse_bytes)]
AutoInt = Annotated[int | None, Field(gt=0), BeforeValidator(_auto)]


class EngineConfig(BaseSettings):
    """What to load and how to run it."""

    model_config = SettingsConfigDict(
        env_prefix="KVSERVE_", frozen=True, extra="forbid", use_attribute_docstrings=True
    )

    model: str | None = None
    """A GGUF file, a folder in Hugging Face layout or a hub name; the embedded default if none."""
    served_model_name: Annotated[str | None, Field(min_length=1)] = None
    """The id under which clients ask for the model; its own name if none."""
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    """Of weights and cache; auto is the file's float32, else bfloat16; kernels keep GGUF blocks."""
    device: Annotated[str, Field(pattern=r"^(auto|cpu|cuda(:\d{1,2})?)$")] = "auto"
    """Where to run: auto, cpu, cuda or cuda:1; auto is the first CUDA device if it is usable."""
    threads: AutoInt = None
    """CPU threads of the forward pass; auto follows the affinity mask and the cgroup quota."""
    kernels: Literal[
        "auto", "amx", "avx512", "avxvnni", "avx2", "i8mm", "dotprod", "portable", "off"
    ] = "auto"
    """Native CPU kernels; auto is the best this processor can run, off leaves it to torch."""
    quantize: Literal["int8", "int4"] | None = None
    """Round the matrices to groups of 8 or 4 bits as they are loaded."""
    kv_cache_memory: Bytes = None
    """Bytes of the KV cache, such as 2GiB; auto follows the memory limit."""
    kv_cache_dtype: Literal["auto", "float32", "bfloat16", "int8"] = "auto"
    """Of keys and values; auto is the model's. int8 holds twice the tokens in the same memory."""
    max_model_len: AutoInt = None
    """The longest sequence, prompt and answer together; auto is the model's context."""
    attention_window: AutoInt = None
    """Keep only so many of the last tokens of each text in the cache; auto keeps all."""
    attention_sinks: Annotated[int | None, Field(ge=0)] = None
    """Keep so many of the first tokens beside --attention-window; one block if none."""
    max_num_seqs: Annotated[int, Field(ge=1, le=4096)] = 32
    """Requests that run at once; on a GPU 256 unless given."""
    max_num_batched_tokens: Annotated[int, Field(ge=1, le=1 << 20)] = 512
    """Tokens of one step; on a GPU 8192 unless given."""
    block_size: Annotated[int, Field(ge=16, le=256), AfterValidator(_power_of_two)] = 16
    """Tokens in a block of the KV cache; a power of two."""
    prefix_caching: bool = True
    """Whether requests with the same beginning share its keys and values."""
    speculative: Literal["off", "ngram", "model"] = "off"
    """Guess several tokens a step and check them in one pass, which changes no answer: ngram finds
    them in the request's own text, model asks --draft-model."""
    draft_model: str | None = None
    """A smaller model of the same vocabulary, named as --model is, for --speculative model."""


class ServerConfig(EngineConfig):
    """How the model is served over HTTP."""

    host: str = "127.0.0.1"
    """The address to listen on."""
    port: Annotated[int, Field(ge=0, le=65535)] = 8000
    """The port to listen on; 0 takes a free one."""
    uds: Path | None = None
    """A Unix socket to listen on instead."""
    max_queue: Annotated[int, Field(ge=0)] = 1024
    """Sequences that may wait beyond those that run; more are refused with 429."""
    max_body_bytes: Annotated[int, Field(gt=0)] = 8_000_000
    """The largest request body; more is refused with 413."""
    max_header_line: Size = 16_384
    """The longest request line and the longest header, in bytes; more is refused with 431."""
    max_header_bytes: Size = 65_536
    """All headers of a request together, in bytes; more is refused with 431."""
    tool_call_parser: Literal["auto", "hermes", "llama3_json", "mistral", "json", "none"] = "auto"
    """How the model writes tool calls; auto is what its chat template shows."""
    unknown_fields: Literal["reject", "ignore"] = "reject"
    """What happens to top-level request fields that nobody knows."""
    grace: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 30.0
    """Seconds that running requests get to finish after SIGTERM."""
    keep_alive_interval: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 15.0
    """Seconds of silence after which a stream carries a comment."""
    request_timeout: Annotated[float | None, Field(gt=0, allow_inf_nan=False)] = None
    """Seconds a request may take in all; then it ends with an error. No limit if none."""
    api_key: SecretStr | None = None
    """A key that clients must send, or several with commas between; better given by the variable
    or a file than on the command line, where other users of the machine see it."""
    api_key_file: Path | None = None
    """A file with more such keys, one on each line."""
    cors_origins: str = "*"
    """Web sites, with commas between, whose pages may call this server; * is all, "" is none."""
    prefix_store: Path | None = None
    """A folder in which beginnings that can be shared are kept from one run to the next."""
    prefix_store_memory: Annotated[int, Field(gt=0), BeforeValidator(parse_bytes)] = 2**30
    """Bytes of the keys and values that are kept there at most, the last used."""
    traces: Literal["off", "otlp", "console"] = "off"
    """Where OpenTelemetry spans go: otlp is what OTEL_EXPORTER_OTLP_ENDPOINT names."""
    access_log: Annotated[bool | None, BeforeValidator(_auto)] = None
    """Whether each request is written to standard output as a line of JSON; auto is no on a
    terminal and yes elsewhere."""
    log_level: Annotated[
        Literal["debug", "info", "warning", "error"] | None, BeforeValidator(_auto)
    ] = None
    """The least serious message that is logged; auto is warning on a terminal and info
    elsewhere."""


Config = TypeVar("Config", bound=BaseSettings)


def configure(kind: type[Config], options: Mapping[str, object]) -> Config:
    """Make a configuration from the options that were given; the environment fills the rest.

    Args:
        kind: EngineConfig, ServerConfig, or a tool's own.
        options: Field name -> value; None means not given.

    Raises:
        ConfigurationError: A value is out of bounds; names the option, the bound and the value.
    """
    given = {name: value for name, value in options.items() if value is not None}
    try:
        return kind(**given)  # type: ignore[arg-type]  # pydantic checks the values
    except ValidationError as error:
        problem = error.errors(include_url=False)[0]
        name = str(problem["loc"][0])
        option = f"--{name.replace('_', '-')}"
        source = option if name in given else f"KVSERVE_{name.upper()}"
        text = problem["msg"].removeprefix("Value error, ")
        raise ConfigurationError(f"{source}: {text} (got {problem['input']})") from error
