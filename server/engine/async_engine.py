"""AsyncEngine: the bridge between the event loop and the engine thread.

Requests, aborts and the order to stop go to the thread through one inbox; frozen outputs come
back in one call per step. The thread builds the engine itself and sleeps while it has no work.
Nothing is shared but the inbox: the event loop never touches a request it has handed over. What
must look into the engine goes there too, and runs between two steps.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import queue
import threading
from collections.abc import AsyncGenerator, Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from model.chat_template import ChatTemplate
from model.tokenizer import Tokenizer
from server.engine.cache_snapshot import CacheSnapshot, take_snapshot
from server.engine.engine import Engine
from server.engine.engine_info import EngineCounts, EngineInfo
from server.engine.grammars.grammar import GrammarCompiler
from server.engine.loaded_engine import LoadedEngine
from server.engine.outbox import Outbox
from server.engine.timeline import Timeline
from server.engine_status import EngineStatus
from server.errors import EngineUnavailableError
from server.request import FinishReason, Request, RequestOutput

logger = logging.getLogger(__name__)
_LAST_STEP_SECONDS = 3.0
"""What the engine thread gets to notice that it should stop."""
Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class _Add:
    requests: tuple[Request, ...]


@dataclass(frozen=True, slots=True)
class _Abort:
    request_ids: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Job:
    """Work for the engine thread between two steps, and who waits for what comes of it."""

    work: Callable[[Engine], Any]
    done: asyncio.Future[Any]


@dataclass(frozen=True, slots=True)
class _Stop:
    pass


class AsyncEngine:
    """Runs an engine in its own thread; every method belongs to the event loop.

    Args:
        build: Loads the model and makes the engine; called once, in the engine thread.
    """

    def __init__(self, build: Callable[[], LoadedEngine]) -> None:
        self._build = build
        self._loaded: LoadedEngine | None = None
        self._inbox: queue.SimpleQueue[_Add | _Abort | Job | _Stop] = queue.SimpleQueue()
        self._streams: dict[str, Outbox] = {}
        self._jobs: set[asyncio.Future[Any]] = set()
        self._idle = asyncio.Event()
        self._idle.set()
        self._thread: threading.Thread | None = None
        self.status = EngineStatus.LOADING
        self.error: str | None = None

    @property
    def info(self) -> EngineInfo:
        """Facts about the model; only once it is loaded."""
        return self._ready.info

    @property
    def tokenizer(self) -> Tokenizer:
        """The model's tokenizer; only once it is loaded."""
        return self._ready.tokenizer

    @property
    def chat_template(self) -> ChatTemplate | None:
        """The model's chat template, if it has one; only once it is loaded."""
        return self._ready.chat_template

    @property
    def grammars(self) -> GrammarCompiler:
        """Compiles grammars for the model's vocabulary; only once it is loaded."""
        return self._ready.grammars

    @property
    def timeline(self) -> Timeline:
        """Timeline of requests; the engine thread writes it, anyone may read it."""
        return self._ready.timeline

    @property
    def counts(self) -> EngineCounts:
        """How busy the engine is: numbers read one by one while it goes on."""
        scheduler = self._ready.engine.scheduler
        if self.status is EngineStatus.DEAD:  # whatever it still holds will not go on
            return EngineCounts(num_preemptions=scheduler.num_preemptions)
        num_running = scheduler.num_running
        return EngineCounts(
            num_running=num_running,
            num_waiting=max(0, len(self._streams) - num_running),
            cache_usage=scheduler.manager.usage,
            num_preemptions=scheduler.num_preemptions,
        )

    async def start(self) -> None:
        """Load the model and begin to serve.

        Raises:
            Exception: Whatever kept the engine from being built.
        """
        loop = asyncio.get_running_loop()
        built: asyncio.Future[LoadedEngine] = loop.create_future()
        self._thread = threading.Thread(
            target=self._run, args=(loop, built), name="engine", daemon=True
        )
        self._thread.start()
        try:
            self._loaded = await built
        except BaseException as error:
            self.status, self.error = EngineStatus.DEAD, str(error)
            raise
        self.status = EngineStatus.READY

    async def generate(self, requests: Sequence[Request]) -> AsyncGenerator[RequestOutput, None]:
        """Hand the requests over and yield what the steps bring until all have ended.

        Closing the iterator early aborts what still runs.

        Raises:
            EngineUnavailableError: The engine does not run.
        """
        self._check_running()
        outbox = Outbox()
        open_ids = {request.request_id for request in requests}
        self._streams.update(dict.fromkeys(open_ids, outbox))
        self._idle.clear()
        self._inbox.put(_Add(tuple(requests)))
        try:
            while open_ids:
                for output in await outbox.take():
                    if output.finish_reason is not None:
                        open_ids.discard(output.request_id)
                    yield output
        finally:
            self.abort(open_ids)

    def abort(self, request_ids: Iterable[str]) -> None:
        """End requests within one step; what they would still say is dropped."""
        known = tuple(id_ for id_ in request_ids if self._close(id_) is not None)
        if known:
            self._inbox.put(_Abort(known))

    async def call(self, work: Callable[[Engine], Result]) -> Result:
        """Run `work` in the engine thread, between two steps; all requests wait meanwhile.

        Raises:
            EngineUnavailableError: The engine does not run, or ended before it came to this.
            Exception: Whatever `work` raised; the engine goes on.
        """
        self._check_running()
        done: asyncio.Future[Result] = asyncio.get_running_loop().create_future()
        self._jobs.add(done)
        done.add_done_callback(self._jobs.discard)
        self._inbox.put(Job(work, done))
        return await done

    async def cache_snapshot(self) -> CacheSnapshot:
        """How the cache is divided between this step and the next.

        Raises:
            EngineUnavailableError: The engine does not run.
        """
        timeline = self.timeline
        return await self.call(lambda engine: take_snapshot(engine.scheduler, timeline))

    async def attention_weights(
        self, token_ids: Sequence[int], *, layer: int | None, head: int | None
    ) -> list[list[float]]:
        """Attention weights of a short text, computed piece by piece between steps.

        Raises:
            EngineUnavailableError: The engine does not run.
        """
        recording = await self.call(
            lambda engine: engine.begin_recording(token_ids, layer=layer, head=head)
        )
        while await self.call(lambda _engine: recording.advance()):
            pass  # one piece between two steps, for as long as somebody waits
        rows: list[list[float]] = recording.weights.tolist()
        return rows

    async def stop(self, grace: float) -> None:
        """Refuse nothing by itself, wait for running requests, then end the rest and the thread.

        Args:
            grace: Seconds that running requests are given to finish.
        """
        if self.status is EngineStatus.READY:
            self.status = EngineStatus.DRAINING
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._idle.wait(), grace)
        if self._streams:
            open_ids = tuple(self._streams)
            logger.warning("%d requests did not finish within %g s", len(open_ids), grace)
            self._inbox.put(_Abort(open_ids))
            self._fail_all("The server is shutting down.")
        self._inbox.put(_Stop())
        deadline = asyncio.get_running_loop().time() + _LAST_STEP_SECONDS
        while self._thread is not None and self._thread.is_alive():
            if asyncio.get_running_loop().time() > deadline:
                logger.warning("the engine is still in a step; the process ends without it")
                break
            await asyncio.sleep(0.01)
        self._thread = None
        self._fail_jobs("The server is shutting down.")

    def _check_running(self) -> None:
        runs = self.status in (EngineStatus.READY, EngineStatus.DRAINING)
        if not runs or self._thread is None:
            raise EngineUnavailableError(self.error or f"The engine is {self.status}.")

    @property
    def _ready(self) -> LoadedEngine:
        if self._loaded is None:
            raise EngineUnavailableError(self.error or "The model is still loading.")
        return self._loaded

    def _close(self, request_id: str) -> Outbox | None:
        stream = self._streams.pop(request_id, None)
        if not self._streams:
            self._idle.set()
        return stream

    def _dispatch(self, outputs: Sequence[RequestOutput]) -> None:
        """Give each output to the call that waits for it; aborted requests have none."""
        for output in outputs:
            ended = output.finish_reason is not None
            stream = (
                self._close(output.request_id) if ended else self._streams.get(output.request_id)
            )
            if stream is not None:
                stream.put(output)

    def _fail_all(self, message: str) -> None:
        self._dispatch(
            [
                RequestOutput(request_id=id_, finish_reason=FinishReason.ERROR, error=message)
                for id_ in tuple(self._streams)
            ]
        )

    def _fail_jobs(self, message: str) -> None:
        for done in tuple(self._jobs):
            _settle(done, None, EngineUnavailableError(message))

    def _die(self, message: str) -> None:
        self.status, self.error = EngineStatus.DEAD, message
        self._fail_all(message)
        self._fail_jobs(message)

    # What follows runs in the engine thread.

    def _run(self, loop: asyncio.AbstractEventLoop, built: asyncio.Future[LoadedEngine]) -> None:
        try:
            loaded = self._build()
        except BaseException as error:  # noqa: BLE001 - start() raises it in the event loop
            loop.call_soon_threadsafe(built.set_exception, error)
            return
        loop.call_soon_threadsafe(built.set_result, loaded)
        try:
            self._serve(loaded.engine, loop)
            loaded.on_stop()
        except Exception as error:
            logger.exception("the engine failed")
            message = f"The engine failed: {type(error).__name__}: {error}"
            loop.call_soon_threadsafe(self._die, message)

    def _serve(self, engine: Engine, loop: asyncio.AbstractEventLoop) -> None:
        while self._take_orders(engine, loop):
            outputs = engine.step()
            if outputs:
                loop.call_soon_threadsafe(self._dispatch, outputs)

    def _take_orders(self, engine: Engine, loop: asyncio.AbstractEventLoop) -> bool:
        """Carry out what waits in the inbox, sleeping there while there is no work.

        Returns:
            False when the order was to stop.
        """
        while not (engine.has_work and self._inbox.empty()):
            order = self._inbox.get()
            if isinstance(order, _Stop):
                return False
            if isinstance(order, _Abort):
                for request_id in order.request_ids:
                    engine.abort(request_id)
            elif isinstance(order, Job):
                _carry_out(order, engine)
            else:
                failures = [end for each in order.requests if (end := engine.add(each))]
                if failures:
                    loop.call_soon_threadsafe(self._dispatch, failures)
        return True


def _carry_out(job: Job, engine: Engine) -> None:
    """Run a job, in the engine thread, and send back what came of it."""
    result, error = None, None
    try:
        result = job.work(engine)
    except Exception as raised:  # noqa: BLE001 - the caller gets it
        error = raised
    job.done.get_loop().call_soon_threadsafe(_settle, job.done, result, error)


def _settle(done: asyncio.Future[Any], result: object, error: Exception | None) -> None:
    """Answer a job, unless its caller has left or was answered."""
    if done.done():
        return
    if error is not None:
        done.set_exception(error)
    else:
        done.set_result(result)
