"""check_growth: how much longer a tokenizer's normaliser can make a text, known before any is read.

A tokenizer comes with a model and may be hostile: replacements applied one after the other can
make gigabytes of a sentence.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from model.errors import TokenizerError

MAX_GROWTH = 64
"""Characters that one may become. Decomposition makes up to 18 of one, byte letters 4."""
_GROWTHS = {"NFKD": 18, "NFKC": 18, "NFD": 4, "NFC": 3, "ByteLevel": 4, "BertNormalizer": 3}
"""What each kind makes of a character, at most, by the Unicode standard, annex 15."""


def check_growth(normaliser: Any) -> None:  # noqa: ANN401 - the library's, of no common type
    """Refuse rules that make a text far longer than it was.

    Args:
        normaliser: Of the `tokenizers` library, or None.

    Raises:
        TokenizerError: They do.
    """
    growth = 1
    for step in () if normaliser is None else _steps(json.loads(normaliser.__getstate__())):
        growth *= _growth(step)
    if growth > MAX_GROWTH * max(_GROWTHS.values()):
        raise TokenizerError(
            f"The tokenizer's normaliser can make a text {growth} times as long; at most "
            f"{MAX_GROWTH * max(_GROWTHS.values())} times is served."
        )


def _steps(state: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The rules in their order, however they are nested."""
    pending = [state]
    while pending:
        step = pending.pop()
        if step.get("type") == "Sequence":
            pending += step.get("normalizers", [])
        else:
            yield step


def _growth(step: dict[str, Any]) -> int:
    """What a rule makes of one character, at most."""
    if step.get("type") != "Replace":
        return _GROWTHS.get(str(step.get("type")), 1)
    pattern, content = step.get("pattern", {}), len(str(step.get("content", "")))
    if "String" in pattern:
        return max(1, -(-content // max(1, len(str(pattern["String"])))))
    return content + 1  # an expression may match nothing, before every character
