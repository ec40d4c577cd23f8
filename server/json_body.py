"""Strict JSON: a request body becomes a dictionary, or a 400 that says what is wrong.

Stricter than Python's own parser where that one is lenient: NaN, Infinity, numbers that overflow,
names given twice, unpaired surrogates and bytes that are not UTF-8 are refused.
"""

from __future__ import annotations

import json
import math
from typing import NoReturn

from server.errors import InvalidRequestError


def parse_object(raw: bytes) -> dict[str, object]:
    """Parse a body that must be one JSON object.

    Raises:
        InvalidRequestError: It is not.
    """
    try:
        value = json.loads(
            raw.decode(),
            parse_constant=_refuse_constant,
            parse_float=_finite,
            object_pairs_hook=_unique,
        )
    except json.JSONDecodeError as error:
        reason = error.msg.removesuffix(" at")
        raise _broken(f"{reason} at line {error.lineno}, column {error.colno}") from None
    except UnicodeDecodeError as error:
        raise _broken(f"byte {error.start} is not UTF-8") from None
    except RecursionError:
        raise _broken("it is nested too deeply") from None
    except ValueError:
        raise _broken("a number has too many digits") from None
    if not isinstance(value, dict):
        raise InvalidRequestError("The request body must be a JSON object.", code="invalid_json")
    if b"\\u" in raw:
        _check_surrogates(value)
    return value


def _broken(reason: str) -> InvalidRequestError:
    return InvalidRequestError(
        f"The request body is not valid JSON: {reason}.", code="invalid_json"
    )


def _refuse_constant(name: str) -> NoReturn:
    raise _broken(f"{name} is not a JSON number")


def _finite(text: str) -> float:
    value = float(text)
    if math.isinf(value):
        raise _broken(f"the number {text[:80]} is too large")
    return value


def _unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
    """The object, whose names must differ: of two values one would be ignored in silence."""
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise _broken(f"the name {json.dumps(twice[:80])} appears twice in one object")
    return found


def _check_surrogates(value: dict[str, object]) -> None:
    """Refuse escapes that are half of a character: no tokenizer could read the text."""
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        raise _broken("an escape \\ud800 to \\udfff has no partner") from None
