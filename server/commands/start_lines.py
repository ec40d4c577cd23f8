"""start_lines: what `kvserve serve` says once the model is there: model, memory, address, curl."""

from __future__ import annotations

import json

from server.engine.engine_info import EngineInfo
from server.engine.planning.cache_plan import format_bytes
from server.plural import counted
from server.version import VERSION

_QUESTION = {"role": "user", "content": "What is the capital of France?"}
_BEGINNING = "Once upon a time"


def start_lines(info: EngineInfo, *, address: str, has_chat: bool) -> list[str]:
    """The lines, to be printed one below the other.

    Args:
        info: What is served.
        address: The server's URL, without a slash at its end.
        has_chat: Whether the model has a chat template.
    """
    where = info.device
    if info.device == "cpu":
        where = f"{info.kernels} kernels on {counted(info.num_threads, 'thread')}"
    weights = format_bytes(info.cost.weights_bytes)
    cache = format_bytes(info.num_cache_tokens * info.cost.cache_bytes_per_token)
    size = f"{info.num_parameters / 1e6:,.0f} million parameters"
    tokens = counted(info.num_cache_tokens, "token")
    room = f"room for {tokens}, {info.max_model_len:,} in a request"
    path = "chat/completions" if has_chat else "completions"
    question = {"messages": [_QUESTION]} if has_chat else {"prompt": _BEGINNING}
    body = json.dumps({"model": info.model_name, **question, "temperature": 0})
    return [
        f"kvserve {VERSION}",
        f"  model   {info.model_name}: {info.architecture}, {size}, {where}",
        f"  memory  {weights} of weights, {cache} of cache: {room}",
        f"  page    {address}/",
        f"  try     curl {address}/v1/{path} -H 'Content-Type: application/json' \\",
        f"            -d '{body}'",
    ]
