"""prompt_blocks: by which blocks of text a front knows a prompt again.

Each digest stands for a block of characters and all before it, so two prompts share as many
digests as they have whole blocks in common. It guesses where the model would share its cache; a
wrong guess costs time and is never seen in an answer. Knows JSON, and neither tokens nor replicas.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from hashlib import blake2b

BLOCK_CHARACTERS = 256
"""About 64 tokens of English."""
MAX_BLOCKS = 512
"""What lies beyond is not looked at: whoever shares so much is found by it."""
_DIGEST_BYTES = 8
_PARTS = ("tools", "system", "instructions", "messages", "input", "prompt")
"""Fields that make a prompt, in the order in which templates put them."""
_APART = ("model", "cache_salt")
"""Fields by whose values prompts have nothing in common."""


def prompt_blocks(body: bytes) -> tuple[str, ...]:
    """The digests of a request's whole blocks; none for what is no JSON object.

    Args:
        body: Of any of the generation endpoints.
    """
    try:
        fields = json.loads(body)
    except (ValueError, RecursionError):
        return ()  # a replica says what is wrong
    return _digests(fields) if isinstance(fields, dict) else ()


def _digests(fields: Mapping[str, object]) -> tuple[str, ...]:
    text = _text(fields)
    chain = blake2b(_text_of([fields.get(name) for name in _APART]), digest_size=_DIGEST_BYTES)
    found = []
    stop = min(len(text) - BLOCK_CHARACTERS, BLOCK_CHARACTERS * (MAX_BLOCKS - 1))
    for start in range(0, stop + 1, BLOCK_CHARACTERS):
        block = text[start : start + BLOCK_CHARACTERS]
        chain.update(block.encode("utf-8", "surrogatepass"))
        found.append(chain.hexdigest())
    return tuple(found)


def _text(fields: Mapping[str, object]) -> str:
    """The prompt as one text, whose beginning does not depend on what follows it."""
    given = [fields[name] for name in _PARTS if fields.get(name) is not None]
    return "".join(part if isinstance(part, str) else json.dumps(part) for part in given)


def _text_of(values: object) -> bytes:
    return json.dumps(values).encode()
