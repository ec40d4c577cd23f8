"""The time limit of a call: outputs as they come, and an error when it is over.

Owns nothing: closing what it wraps is what ends the requests.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import TypeVar

from server.errors import RequestTimeoutError

Item = TypeVar("Item")


async def within(seconds: float, items: AsyncGenerator[Item, None]) -> AsyncGenerator[Item, None]:
    """The items that come in time; `items` is closed in the end.

    Args:
        seconds: From the moment the first is asked for.
        items: What is waited for.

    Raises:
        RequestTimeoutError: There were more to come.
    """
    deadline = asyncio.get_running_loop().time() + seconds
    async with aclosing(items):
        while True:
            try:
                # Around each wait and not around all: the next one may be awaited by another task.
                async with asyncio.timeout_at(deadline):
                    item = await anext(items)
            except StopAsyncIteration:
                return
            except TimeoutError as error:
                raise RequestTimeoutError(seconds) from error
            yield item
