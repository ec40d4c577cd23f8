"""server.api.transport.workers: kinds of work apart, bounded, and no longer than their callers."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from server.api.transport.workers import LONG_BYTES, Pool, Workers
from server.errors import OverloadedError

ROOT = Path(__file__).parents[4]


def blocked(pool: Pool, free: threading.Event) -> asyncio.Task[bool]:
    """A piece of work that goes on until it is told to end."""
    return asyncio.create_task(pool.run(lambda: free.wait(20)))


def test_results_and_errors_come_back():
    """Whoever waits gets what came of it; what is no Exception is made one."""

    class Panic(BaseException):
        """What a native library may throw."""

    def panic() -> None:
        raise Panic("index out of bounds")

    async def main() -> None:
        pool = Pool("read", size=1, limit=9)
        assert await pool.run(lambda: 3) == 3
        with pytest.raises(ZeroDivisionError):
            await pool.run(lambda: 1 // 0)
        with pytest.raises(RuntimeError, match="Panic: index out of bounds"):
            await pool.run(panic)
        assert pool.num_open == 0

    asyncio.run(main())


def test_kinds_of_work_do_not_wait_for_each_other():
    """While everything else is busy, a short body is read."""

    async def main() -> None:
        workers, free = Workers(9), threading.Event()
        long = workers.reading(LONG_BYTES + 1)
        tasks = [blocked(pool, free) for pool in (long, workers.writing, workers.compiling) * 2]
        await asyncio.sleep(0)
        assert await workers.reading(LONG_BYTES).run(lambda: "read") == "read"
        free.set()
        assert all(await asyncio.gather(*tasks))

    asyncio.run(main())


def test_what_waits_is_bounded():
    """Beyond the limit the error says how many there are and when to come back."""

    async def main() -> None:
        pool, free = Pool("read", size=1, limit=2), threading.Event()
        tasks = [blocked(pool, free) for _ in range(2)]
        await asyncio.sleep(0)
        with pytest.raises(OverloadedError, match="limit is 2") as refused:
            await pool.run(lambda: None)
        assert 1 <= int(refused.value.headers["Retry-After"]) <= 120
        free.set()
        await asyncio.gather(*tasks)
        await pool.run(lambda: None)

    asyncio.run(main())


def test_what_nobody_waits_for_is_not_begun():
    """A caller that leaves before its turn costs nothing, and its place is free."""

    async def main() -> None:
        pool, free, begun = Pool("read", size=1, limit=9), threading.Event(), []
        first = blocked(pool, free)
        await asyncio.sleep(0)
        second = asyncio.create_task(pool.run(lambda: begun.append(1)))
        await asyncio.sleep(0)
        second.cancel()
        await asyncio.wait({second})
        free.set()
        await first
        await pool.run(lambda: None)
        assert begun == []
        assert pool.num_open == 0

    asyncio.run(main())


def test_a_process_ends_whatever_its_threads_do():
    """Nothing joins them."""
    code = (
        "import asyncio, threading\n"
        "from server.api.transport.workers import Pool\n"
        "async def main():\n"
        "    work = Pool('read', size=1, limit=1).run(threading.Event().wait)\n"
        "    task = asyncio.ensure_future(work)\n"
        "    await asyncio.sleep(0.1)\n"
        "    print('leaving', flush=True)\n"
        "asyncio.run(main())\n"
    )
    ended = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, timeout=60, check=True
    )
    assert ended.stdout == b"leaving\n"
