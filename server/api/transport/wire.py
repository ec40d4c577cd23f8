"""The wire format's bytes: strict JSON, and server-sent events around it.

Whatever a client reads, errors included, is encoded here. Knows no answer and waits for nothing.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

from pydantic import BaseModel

KEEP_ALIVE = b": keep-alive\n\n"
DONE = b"data: [DONE]\n\n"


def event(body: BaseModel | Mapping[str, object]) -> bytes:
    """One server-sent event; ASCII, as some clients split lines at every Unicode line end."""
    return b"data: " + encode(body) + b"\n\n"


def encode(body: BaseModel | Mapping[str, object]) -> bytes:
    """Strict JSON without the fields that were not set."""
    plain = body.model_dump(exclude_unset=True) if isinstance(body, BaseModel) else body
    return json.dumps(plain, separators=(",", ":"), allow_nan=False).encode()


def encode_patiently(body: BaseModel | Mapping[str, object]) -> bytes:
    """The same piece by piece: slower, but other threads run meanwhile; for megabytes."""
    encoder = json.JSONEncoder(separators=(",", ":"), allow_nan=False, default=_set_fields)
    text = bytearray()
    for piece in encoder.iterencode(body):
        text += piece.encode()
    return bytes(text)


def _set_fields(model: BaseModel) -> dict[str, object]:
    """One level of a model, as `encode` has it."""
    return {name: value for name, value in model if name in model.model_fields_set}
