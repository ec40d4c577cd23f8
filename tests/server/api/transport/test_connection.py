"""server.api.transport.connection: how a client's leaving ends what it waited for."""

from __future__ import annotations

import asyncio

import pytest
from starlette.requests import ClientDisconnect, Request

from server.api.transport.connection import read_body, unless_gone
from server.errors import InvalidRequestError


async def never() -> dict:
    await asyncio.Event().wait()
    return {}


async def gone() -> dict:
    return {"type": "http.disconnect"}


def test_the_result_comes_if_the_client_stays():
    """Nothing keeps waiting for the client afterwards."""

    async def work() -> int:
        return 7

    async def run() -> int:
        result = await unless_gone(never, work())
        assert len(asyncio.all_tasks()) == 1
        return result

    assert asyncio.run(run()) == 7


def test_work_is_cancelled_when_the_client_leaves():
    """And has ended when that is said."""
    ended = []

    async def work() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            ended.append(True)

    with pytest.raises(ClientDisconnect):
        asyncio.run(unless_gone(gone, work()))
    assert ended == [True]


def test_what_the_work_raises_is_raised():
    """An error is not hidden by the watch."""

    async def work() -> None:
        raise ValueError("mine")

    with pytest.raises(ValueError, match="mine"):
        asyncio.run(unless_gone(never, work()))


@pytest.mark.parametrize("encoding", ["gzip", "br", "identity, gzip"])
def test_a_compressed_body_is_refused_as_what_it_is(encoding):
    """Nobody is told that its bytes are no JSON."""

    async def run() -> None:
        headers = [(b"content-encoding", encoding.encode())]
        scope = {"type": "http", "method": "POST", "path": "/", "headers": headers}
        await read_body(Request(scope, never), 99)

    with pytest.raises(InvalidRequestError, match=encoding) as error:
        asyncio.run(run())
    assert error.value.code == "unsupported_content_encoding"
