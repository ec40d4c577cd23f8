"""Strict JSON: a request body becomes a dictionary, or a 400 that says what is wrong.

Stricter than Python's own parser where that one is lenient: NaN, Infinity, numbers that overflow,
names given twice, unpaired surrogates and bytes that are not UTF-8 are refused. So is a body of so
many values that other threads would wait for the parser: it lets none of them run meanwhile.
"""

from __future__ import annotations

import codecs
import json
import math
import re
from collections.abc import Iterable
from typing import NoReturn, cast

from server.errors import InvalidRequestError

MAX_STRUCTURES = 250_000
"""Lists, objects and names in objects of one body."""
MAX_VALUES = 1_250_000
"""Values in the lists and objects of one body."""
MAX_DEPTH = 128
"""Lists and objects inside each other: more than anybody needs, and no stack is in danger."""
_STRING = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"', re.DOTALL)


def parse_object(raw: bytes) -> dict[str, object]:
    """Parse a body that must be one JSON object.

    Raises:
        InvalidRequestError: It is not, or has too many parts.
    """
    _check_size(raw)
    try:
        value = json.loads(
            raw.removeprefix(codecs.BOM_UTF8).decode(),
            parse_constant=_refuse_constant,
            parse_float=_finite,
            parse_int=_whole,
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
    if raw.count(b"[") + raw.count(b"{") > MAX_DEPTH:
        _check_depth(value)
    if b"\\u" in raw:
        _check_surrogates(value)
    return value


def _check_size(raw: bytes) -> None:
    """Refuse a body of too many parts; text counts only where it might be the reason."""
    if _num_structures(raw) <= MAX_STRUCTURES and raw.count(b",") <= MAX_VALUES:
        return
    num_structures = num_values = begin = 0
    while begin < len(raw):
        quote = raw.find(b'"', begin)
        end = len(raw) if quote < 0 else quote
        num_structures += _num_structures(raw, begin, end)
        num_values += raw.count(b",", begin, end)
        if num_structures > MAX_STRUCTURES or num_values > MAX_VALUES:
            raise InvalidRequestError(
                f"The request body must have at most {MAX_STRUCTURES} lists, objects and names in "
                f"objects, and at most {MAX_VALUES} values (got more).",
                code="body_too_complex",
            )
        string = _STRING.match(raw, end)
        if string is None:
            return  # the end, or no JSON: the parser says why
        begin = string.end()


def _check_depth(value: object) -> None:
    """Refuse what is nested too deeply, level by level."""
    level: list[object] = [value]
    for _ in range(MAX_DEPTH):
        level = [
            inner
            for one in level
            for inner in (one.values() if isinstance(one, dict) else cast("list[object]", one))
            if isinstance(inner, dict | list)
        ]
        if not level:
            return
    raise InvalidRequestError(
        f"The request body must be nested at most {MAX_DEPTH} deep (got more).",
        code="body_too_complex",
    )


def _num_structures(raw: bytes, begin: int = 0, end: int | None = None) -> int:
    return sum(raw.count(mark, begin, end) for mark in (b"[", b"{", b":"))


def _broken(reason: str) -> InvalidRequestError:
    return InvalidRequestError(
        f"The request body is not valid JSON: {reason}.", code="invalid_json"
    )


def _refuse_constant(name: str) -> NoReturn:
    raise _broken(f"{name} is not a JSON number")


def _whole(text: str) -> int:
    """The number; a line of Python, and so a turn for other threads, in a list of a million."""
    return int(text)


def _finite(text: str) -> float:
    value = float(text)
    if math.isinf(value):
        raise _broken(f"the number {text[:80]} is too large")
    return value


def _unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
    """The object, whose names must differ: of two values one would be ignored in silence."""
    found = dict(pairs)
    if len(found) < len(pairs):
        twice = _first_twice(name for name, _ in pairs)
        raise _broken(f"the name {json.dumps(twice[:80])} appears twice in one object")
    return found


def _first_twice(names: Iterable[str]) -> str:
    """The first name that was there before; each is looked at once."""
    seen: set[str] = set()
    for name in names:
        if name in seen:
            return name
        seen.add(name)
    raise AssertionError("there is such a name")


def _check_surrogates(value: dict[str, object]) -> None:
    """Refuse escapes that are half of a character: no tokenizer could read the text."""
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        raise _broken("an escape \\ud800 to \\udfff has no partner") from None
