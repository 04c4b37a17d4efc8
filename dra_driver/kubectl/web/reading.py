"""Reads the cluster again and again while a page is open, and keeps the last good state.

One `Periodic` is one thread that calls one function. It reads while a page was asked for within the last minute, and
rests for at least three times as long as the last reading took: the API server of a large cluster is not kept busy. A
failed reading leaves the last value, with the sentence of the failure and since when it fails.
"""

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Final, Generic, Protocol, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from dra_driver.core.errors import DraError, ForbiddenError
from dra_driver.core.model.gpu_node import GpuNodeStatus
from dra_driver.core.request_rights import missing_right
from dra_driver.core.text import printable
from dra_driver.core.worker import Worker
from dra_driver.kube.state import KINDS, ClusterState
from dra_driver.kubectl.capacity import ClaimRow, claims_of
from dra_driver.kubectl.explain import gaps_that_matter
from dra_driver.kubectl.web.fleet import fleet_of
from dra_driver.kubectl.web.gpus import SeenFleet
from dra_driver.kubectl.web.heap import heap
from dra_driver.kubectl.web.rows import waiting_pods

log = logging.getLogger(__name__)

VIEWED_S: Final = 60.0
"""Without a request for so long nothing is read."""
_REST: Final = 3.0
_STOP_S: Final = 2.0

Value = TypeVar("Value")


class ReadFailure(Struct, frozen=True, kw_only=True):
    """Why the last reading failed, and since when readings fail."""

    sentence: str
    since: datetime


class LastRead(Struct, Generic[Value], frozen=True, kw_only=True):
    """A value, when it was read last and how long that took. ``number`` counts values that differ."""

    value: Value
    at: datetime
    took_s: float
    number: int


class Periodic(Generic[Value]):
    """Calls ``read`` in a thread of its own. ``start`` and ``stop`` once, by one owner; the rest from any thread."""

    def __init__(
        self,
        name: str,
        read: Callable[[], Value],
        interval_s: float,
        *,
        clock: Callable[[], float] = time.monotonic,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
        same: Callable[[Value, Value], bool] = lambda one, other: False,  # noqa: ARG005
        rest: Callable[[], object] = lambda: None,
    ) -> None:
        """``rest`` is called when no page has asked for `VIEWED_S`."""
        self._read = read
        self._same, self._rest = same, rest
        self._interval_s = interval_s
        self._clock = clock
        self._now = now
        self._asked_at = clock()
        # Written by the thread that reads, each as one reference; read by others without a lock.
        self._reading: LastRead[Value] | None = None
        self._trouble: ReadFailure | None = None
        self._changes = 0
        self._worker = Worker(name, self._turn)

    def start(self) -> None:
        self._worker.start()

    def stop(self) -> None:
        """Does not wait for a reading that hangs: the thread ends with the process."""
        self._worker.stop(_STOP_S)

    def asked(self) -> "LastRead[Value] | None":
        """The last reading; keeps the thread reading for another minute."""
        self._asked_at = self._clock()
        self._worker.wake()
        return self._reading

    @property
    def trouble(self) -> ReadFailure | None:
        return self._trouble

    @property
    def changes(self) -> int:
        """Grows when the value or the trouble becomes another one."""
        return self._changes

    def once(self) -> None:
        """Reads once, in the caller's thread."""
        begun = self._clock()
        try:
            value = self._read()
        except ForbiddenError as error:
            self._fail(missing_right(error))
        except DraError as error:
            self._fail(str(error))
        except Exception as error:
            log.exception("reading for the page failed")
            self._fail(f"{type(error).__name__}: {error}")
        else:
            self._keep(value, self._clock() - begun)

    def _keep(self, value: Value, took_s: float) -> None:
        last = self._reading
        same = last is not None and self._same(last.value, value)
        number = (last.number if last else 0) + (not same)
        kept = last.value if same and last is not None else value
        self._reading = LastRead(value=kept, at=self._now(), took_s=took_s, number=number)
        if not same or self._trouble:
            self._changes += 1
        self._trouble = None

    def _fail(self, sentence: str) -> None:
        known = self._trouble
        self._trouble = ReadFailure(sentence=printable(sentence)[:1000], since=known.since if known else self._now())
        if known is None or known.sentence != self._trouble.sentence:
            self._changes += 1

    def _turn(self) -> float | None:
        begun = self._clock()
        self.once()
        took = self._clock() - begun
        self._worker.pause(max(self._interval_s, _REST * took))
        if self._clock() - self._asked_at <= VIEWED_S:
            return 0.0
        self._rest()
        return None


class SeenCluster(Struct, frozen=True, kw_only=True):
    """What one reading of the cluster found: its objects, what GpuNodes say, and both as the page shows them.

    ``gaps`` are sentences about what could not be read, as far as it matters.
    """

    state: ClusterState
    told: Mapping[str, GpuNodeStatus]
    claims: Sequence[ClaimRow]
    fleet: SeenFleet
    gaps: Sequence[str] = ()


def same_cluster(one: SeenCluster, other: SeenCluster) -> bool:
    """Whether the objects are equal; one by one, so that other threads run in between."""
    if one.told != other.told or one.state.gaps != other.state.gaps:
        return False
    for kind in KINDS:
        before, after = getattr(one.state, kind.field), getattr(other.state, kind.field)
        if len(before) != len(after):
            return False
        for first, second in zip(before, after, strict=True):
            if first != second:
                return False
    return True


class ReadsCluster(Protocol):
    """Where the objects come from. Raises DraError."""

    def state(self) -> ClusterState: ...
    def gpu_nodes(self, gaps: list[str]) -> Mapping[str, GpuNodeStatus]: ...


def read_without_collection(source: ReadsCluster) -> SeenCluster:
    """`read_cluster` without garbage collection: it would walk millions of objects, again and again, and pages wait.

    See `heap`.
    """
    with heap.building():
        return read_cluster(source)


def read_cluster(source: ReadsCluster, now: Callable[[], datetime] = lambda: datetime.now(UTC)) -> SeenCluster:
    """One reading. Raises DraError."""
    gaps: list[str] = []
    state, told = source.state(), source.gpu_nodes(gaps)
    claims = claims_of(state, now())
    return SeenCluster(
        gaps=(*_gaps_that_matter(state), *gaps),
        state=replace(state, gaps=(*state.gaps, *gaps)) if gaps else state,
        told=told,
        claims=claims,
        fleet=fleet_of(state.slices, state.nodes, claims, told),
    )


def _gaps_that_matter(state: ClusterState) -> list[str]:
    """Without those about volumes while no waiting pod has one."""
    matter = set(gaps_that_matter(state, None))
    for each in waiting_pods(state) if len(matter) < len(state.gaps) else ():
        matter.update(gaps_that_matter(state, each.pod))
    return [gap for gap in state.gaps if gap in matter]
