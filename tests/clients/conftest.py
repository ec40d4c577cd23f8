"""One server for every client: SmolLM2, in a process of its own."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from server_process import ServerProcess, server_process


@pytest.fixture(scope="session")
def server() -> Iterator[ServerProcess]:
    with server_process(
        None,
        served_model_name="smollm2",
        kv_cache_memory=512 * 2**20,
        max_model_len=2048,
        log_level="warning",
    ) as server:
        yield server


@pytest.fixture(scope="session")
def url(server: ServerProcess) -> str:
    """The base URL as clients want it."""
    return f"{server.url}/v1"
