"""The processes that judge reviews: each one at a time, and killed when one takes too long.

A request waits for a free worker, but few do, and none for long: the API server gives up after 3 s, and everything that
it does not hear in time passes.
"""

import asyncio
import logging
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import Coroutine, Sequence
from contextlib import suppress
from typing import Final

from dra_driver.core.errors import RetryableError
from dra_driver.webhook import frames
from dra_driver.webhook.frames import ReviewOutcome

log = logging.getLogger(__name__)

WITHIN_S: Final = 1.5
"""From a complete request to its answer, waiting included: the rest of 3 s is for the network."""
START_S: Final = 60.0
MAX_WAITING: Final = 32
_PAUSE_S: Final = 1.0
"""Between two starts of one worker, so that one that cannot start costs little."""


class NotJudgedError(RetryableError):
    """No worker answered in time; ``why`` is a label of the metric."""

    def __init__(self, message: str, why: str) -> None:
        super().__init__(message)
        self.why = why


class Workers:
    """As many workers as ``count``. All methods belong to the event loop."""

    def __init__(self, arguments: Sequence[str], count: int, *, within_s: float = WITHIN_S) -> None:
        self._command = [sys.executable, "-m", "dra_driver.webhook.worker", *arguments]
        self._count, self._within_s = count, within_s
        self._idle: asyncio.Queue[Process] = asyncio.Queue()
        self._waiting = self._usable = 0
        self._running: set[Process] = set()
        self._tasks: set[asyncio.Task[None]] = set()

    def start(self) -> None:
        """Start all of them, without waiting for any."""
        for _ in range(self._count):
            self._later_start(0.0)

    async def stop(self) -> None:
        """Kill all of them."""
        for task in self._tasks:
            task.cancel()
        for worker in list(self._running):
            await self._end(worker)

    @property
    def ready(self) -> bool:
        """Whether any worker can judge. From any thread."""
        return self._usable > 0

    async def judge(self, body: bytes) -> tuple[ReviewOutcome, bytes]:
        """The answer to one review. Raises NotJudgedError when there is none in time."""
        if self._waiting >= MAX_WAITING:
            raise NotJudgedError("too many objects at once", "busy")
        worker: Process | None = None
        self._waiting += 1
        try:
            async with asyncio.timeout(self._within_s):
                worker = await self._idle.get()
                found = await _ask(worker, body)
        except (TimeoutError, OSError, EOFError, ValueError) as error:
            if worker is None:
                raise NotJudgedError("no worker was free in time", "busy") from error
            why = "slow" if isinstance(error, TimeoutError) else "failed"
            log.warning("an object could not be judged", extra={"reason": why, "bytes": len(body)})
            await self._replace(worker)
            raise NotJudgedError("judging the object took too long, or failed", why) from error
        except asyncio.CancelledError:
            if worker is not None:
                self._later(self._replace(worker))  # its answer would go to the next request
            raise
        finally:
            self._waiting -= 1
        self._idle.put_nowait(worker)
        return found

    async def _replace(self, worker: Process) -> None:
        self._usable -= 1
        await self._end(worker)
        self._later_start(0.0)

    async def _end(self, worker: Process) -> None:
        self._running.discard(worker)
        with suppress(ProcessLookupError):
            worker.kill()
        await worker.wait()

    def _later_start(self, pause_s: float) -> None:
        self._later(self._start(pause_s))

    def _later(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _start(self, pause_s: float) -> None:
        await asyncio.sleep(pause_s)
        worker = await asyncio.create_subprocess_exec(*self._command, stdin=PIPE, stdout=PIPE, limit=frames.MAX_FRAME)
        self._running.add(worker)
        try:
            async with asyncio.timeout(START_S):
                await _receive(worker)
        except (TimeoutError, OSError, EOFError, ValueError) as error:
            log.error("a worker did not start", extra={"reason": type(error).__name__})  # noqa: TRY400 - no defect here
            await self._end(worker)
            self._later_start(_PAUSE_S)
        else:
            self._usable += 1
            self._idle.put_nowait(worker)


async def _ask(worker: Process, body: bytes) -> tuple[ReviewOutcome, bytes]:
    if worker.stdin is None:
        raise EOFError
    worker.stdin.write(frames.encode(0, body))
    await worker.stdin.drain()
    return await _receive(worker)


async def _receive(worker: Process) -> tuple[ReviewOutcome, bytes]:
    if worker.stdout is None:
        raise EOFError
    kind, length = frames.HEADER.unpack(await worker.stdout.readexactly(frames.HEADER.size))
    if length > frames.MAX_FRAME:
        raise ValueError(length)
    return ReviewOutcome(kind), await worker.stdout.readexactly(length)
