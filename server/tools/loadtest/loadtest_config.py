"""LoadTestConfig: every option of kvserve loadtest."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field
from pydantic_settings import BaseSettings, SettingsConfigDict

from server.errors import ConfigurationError
from server.tools.loadtest.load_generator import Load
from server.tools.loadtest.load_report import Limits, parse_limits
from server.tools.loadtest.workload import Lengths, Prompt, random_prompts, read_prompts


class LoadTestConfig(BaseSettings):
    """What to ask of which server, and how hard."""

    model_config = SettingsConfigDict(
        env_prefix="KVSERVE_LOADTEST_", frozen=True, extra="ignore", use_attribute_docstrings=True
    )

    url: str = "http://127.0.0.1:8000"
    """The server, any that speaks the OpenAI API."""
    concurrency: str | None = None
    """Closed loop: so many requests at once, 1 by default; 1,2,4,8 is a sweep."""
    request_rate: str | None = None
    """Open loop: requests per second; 1,2,4 is a sweep."""
    burstiness: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 1.0
    """Shape of the gaps of an open loop: 1 is Poisson, less comes in bursts, more is even."""
    num_prompts: Annotated[int, Field(ge=1)] = 50
    """Requests of each level."""
    input_len: Annotated[int, Field(ge=1)] = 128
    """Words of a random prompt, about a token each."""
    max_tokens: Annotated[int, Field(ge=1)] = 64
    """Tokens of each answer."""
    length_spread: Annotated[float, Field(ge=0, le=1)] = 0.0
    """Lengths vary evenly by this part, up and down."""
    prefix_len: Annotated[int, Field(ge=0)] = 0
    """Words that all random prompts begin with, besides their own."""
    dataset: Path | None = None
    """Prompts from a file instead: JSON lines with prompt or messages, or ShareGPT's form."""
    endpoint: Literal["chat", "completions"] = "chat"
    """Which form of request."""
    model: str | None = None
    """The model to ask for; the first that the server names if none."""
    api_key: str | None = None
    """Sent as a bearer token."""
    ignore_eos: bool = True
    """Whether to ask for answers of full length; not every server knows this field."""
    warm_up: Annotated[int, Field(ge=0)] = 2
    """Requests before anything is measured."""
    goodput: str = ""
    """What a good request stays within, in milliseconds, such as ttft:200,tpot:50,e2el:3000."""
    timeout: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 600.0
    """Seconds without a byte after which a request has failed."""
    load_seed: Annotated[int, Field(ge=0)] = 0
    """Makes prompts and times repeatable."""

    @property
    def loads(self) -> list[Load]:
        """The levels of load.

        Raises:
            ConfigurationError: Both kinds are given, or a level is no number above zero.
        """
        if self.concurrency is not None and self.request_rate is not None:
            raise ConfigurationError(
                "--concurrency makes a closed loop and --request-rate an open one: give one of them"
            )
        if self.request_rate is not None:
            rates = _positive("--request-rate", self.request_rate)
            return [Load(rate=rate, burstiness=self.burstiness) for rate in rates]
        levels = _positive("--concurrency", self.concurrency or "1")
        if any(level != int(level) for level in levels):
            raise ConfigurationError(
                f"--concurrency: expected whole numbers (got {self.concurrency})"
            )
        return [Load(concurrency=int(level)) for level in levels]

    @property
    def limits(self) -> Limits:
        """The limits of goodput."""
        return parse_limits(text.strip() for text in self.goodput.split(",") if text.strip())

    def prompts(self, seed: int) -> Sequence[Prompt]:
        """The prompts of one level; another seed makes others."""
        if self.dataset is not None:
            return read_prompts(
                self.dataset, self.num_prompts, output_tokens=self.max_tokens, seed=seed
            )
        lengths = Lengths(
            input_words=self.input_len,
            output_tokens=self.max_tokens,
            spread=self.length_spread,
            prefix_words=self.prefix_len,
        )
        return random_prompts(self.num_prompts, lengths, seed=seed)


def _positive(option: str, text: str) -> list[float]:
    """Numbers from a list with commas."""
    try:
        numbers = [float(part) for part in text.split(",")]
    except ValueError:
        numbers = []
    if not numbers or not all(number > 0 for number in numbers):
        raise ConfigurationError(f"{option}: expected numbers above 0 (got {text})")
    return numbers
