"""Workloads: what a load test asks for.

Random texts of given lengths, texts with a shared beginning, or a file of prompts. A load test
knows no tokenizer, so lengths are in words, about one token each; the report counts the tokens
that the server says it read and wrote. The same seed makes the same prompts.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from server.errors import ConfigurationError

WORDS = (  # noqa: SIM905 - a hundred quoted words are no easier to read
    "time year people way day man thing woman life child world school state family student group "
    "country problem hand part place case week company system program question work number night "
    "point home water room mother area money story fact month lot right study book eye job word "
    "business issue side kind head house service friend father power hour game line end member law "
    "car city name team minute idea kid body back parent face others level office door health "
    "person art war history party result change morning reason research girl guy moment air"
).split()
CHARACTERS_PER_TOKEN = 4
"""How long the answers of a ShareGPT file are taken to be; the usual figure for English."""


@dataclass(frozen=True, slots=True)
class Prompt:
    """One request of a load test."""

    messages: tuple[dict[str, object], ...]
    """A conversation; the completions endpoint is sent its contents as one text."""
    max_tokens: int

    @property
    def text(self) -> str:
        """The contents, a paragraph each."""
        return "\n\n".join(str(message["content"]) for message in self.messages)


@dataclass(frozen=True, kw_only=True, slots=True)
class Lengths:
    """How long random prompts and their answers are."""

    input_words: int
    output_tokens: int
    spread: float = 0.0
    """Lengths are uniform within this part above and below; 0 makes all the same."""
    prefix_words: int = 0
    """Words at the beginning of every prompt, the same in all, beside `input_words`."""

    def draw(self, mean: int, source: random.Random) -> int:
        """A length of this mean, at least 1."""
        return max(1, round(mean * source.uniform(1 - self.spread, 1 + self.spread)))


def random_prompts(count: int, lengths: Lengths, *, seed: int) -> list[Prompt]:
    """Make prompts of random words, after a shared beginning if there is one.

    No two share their first words otherwise, so that a prefix cache gains from nothing but the
    beginning that was asked for.
    """
    source = _source(seed)
    prefix = source.choices(WORDS, k=lengths.prefix_words)
    prompts = []
    for _ in range(count):
        words = source.choices(WORDS, k=lengths.draw(lengths.input_words, source))
        prompts.append(
            _question(" ".join(prefix + words), lengths.draw(lengths.output_tokens, source))
        )
    return prompts


def read_prompts(path: Path, count: int, *, output_tokens: int, seed: int) -> list[Prompt]:
    """Take prompts from a file, in random order, again from the start if there are too few.

    Args:
        path: JSON lines or one JSON list. Each entry has `prompt` or `messages`, and may have
            `max_tokens`; or it is a ShareGPT conversation, whose first question is asked and
            whose first answer says about how long the answer is to be.
        count: How many.
        output_tokens: For entries that do not say.
        seed: Of the order.

    Raises:
        ConfigurationError: The file has no usable entry, or a broken one.
    """
    try:
        entries = list(_entries(path.read_text(encoding="utf-8")))
    except (OSError, ValueError) as error:
        raise ConfigurationError(f"cannot read the prompts of {path}: {error}") from error
    prompts = [prompt for entry in entries if (prompt := _prompt(entry, output_tokens, path))]
    if not prompts:
        raise ConfigurationError(f"{path} has no prompts")
    _source(seed).shuffle(prompts)
    return [prompts[index % len(prompts)] for index in range(count)]


def _source(seed: int) -> random.Random:
    """Random numbers of a seed; through its digits, as a number would count without its sign."""
    return random.Random(str(seed))  # noqa: S311 - no secret depends on it


def _entries(text: str) -> Iterator[object]:
    if text.lstrip().startswith("["):
        yield from json.loads(text)
    else:
        yield from (json.loads(line) for line in text.splitlines() if line.strip())


def _prompt(entry: object, output_tokens: int, path: Path) -> Prompt | None:
    """An entry as a prompt; None for a conversation that does not begin with a question."""
    if not isinstance(entry, dict):
        raise ConfigurationError(f"an entry of {path} is no object: {str(entry)[:80]}")
    if "conversations" in entry:
        return _share_gpt(entry["conversations"])
    limit = entry.get("max_tokens", output_tokens)
    if isinstance(entry.get("messages"), list):
        return Prompt(tuple(entry["messages"]), limit)
    if isinstance(entry.get("prompt"), str):
        return _question(entry["prompt"], limit)
    raise ConfigurationError(
        f"an entry of {path} has none of 'prompt', 'messages' and 'conversations'"
    )


def _share_gpt(turns: list[dict[str, str]]) -> Prompt | None:
    if len(turns) < 2 or turns[0]["from"] not in ("human", "user"):
        return None
    return _question(turns[0]["value"], max(1, len(turns[1]["value"]) // CHARACTERS_PER_TOKEN))


def _question(text: str, max_tokens: int) -> Prompt:
    return Prompt(({"role": "user", "content": text},), max_tokens)
