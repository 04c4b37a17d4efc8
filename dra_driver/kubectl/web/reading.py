"""Read the cluster periodically while a page is open, and keep the last successfully read state.

A `Periodic` reads if a page was requested within the last minute. It pauses for three times the read time, at most
a minute, to limit the load on the API server. After a failure it keeps the last value with a message and the time of
the first failure.
"""

import gc
import logging
import threading
import time
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from datetime import UTC, datetime
from itertools import chain
from typing import Final, Generic, Protocol, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from dra_driver.core.errors import DraError, ForbiddenError
from dra_driver.core.model.gpu_node import GpuNodeStatus
from dra_driver.core.request_rights import missing_right
from dra_driver.core.text import printable
from dra_driver.core.worker import Worker
from dra_driver.diagnose.doctor.facts import statuses_of
from dra_driver.kube.devices import Wire
from dra_driver.kube.objects.resource import DeviceClass
from dra_driver.kube.shapes import read_all
from dra_driver.kube.state import (
    GPU_NODES,
    KINDS,
    QUOTAS,
    ClusterState,
    StateReader,
    read_cluster,
    read_in_namespace,
    read_kind,
)
from dra_driver.kubectl.capacity import ClaimRow, claims_of, with_claim_gaps
from dra_driver.kubectl.explain import gaps_that_matter, with_defaults
from dra_driver.kubectl.usage.quota import QuotaRow, ResourceQuota
from dra_driver.kubectl.usage.quota import rows as quota_rows
from dra_driver.kubectl.web.faults import FaultCard, faults_of
from dra_driver.kubectl.web.fleet import SeenFleet, fleet_of
from dra_driver.kubectl.web.rows import EventGroup, EventRow, Waiting, event_groups, event_rows, waiting_pods

# --- Garbage collection. The state of a large cluster has millions of objects and few cycles. A full collection with
# 8,000 GPUs blocks requests for 223 ms. It is disabled while a state or answer is built, and the result is exempt
# (gc.freeze). `sweep` collects exempt objects when no page is open, at the latest after `BUILT_BEFORE_SWEEP`.

BUILT_BEFORE_SWEEP: Final = 500
"""About one hour in a large, constantly changing cluster; a sweep delays requests."""


class Collector(Protocol):
    """Subset of the module ``gc`` that `GcControl` uses."""

    def disable(self) -> None: ...
    def enable(self) -> None: ...
    def freeze(self) -> None: ...
    def unfreeze(self) -> None: ...
    def collect(self) -> int: ...


class GcControl:
    """Control garbage collection of this process. Thread-safe."""

    def __init__(self, collector: Collector = gc) -> None:
        self._collector = collector
        self._lock = threading.RLock()  # guards the two below
        self._building = self._built = 0

    @contextmanager
    def building(self) -> Iterator[None]:
        """Disable garbage collection while the block builds a large, long-lived object."""
        with self._lock:
            self._building += 1
            self._collector.disable()
        try:
            yield
        finally:
            with self._lock:
                self._building -= 1
                self._built += 1
                self._collector.freeze()
                if not self._building:
                    self._collector.enable()
                if self._built >= BUILT_BEFORE_SWEEP:
                    self.sweep()

    def sweep(self) -> None:
        with self._lock:
            self._built = 0
            self._collector.unfreeze()
            self._collector.collect()
            self._collector.freeze()


gc_control: Final = GcControl()


# --- Slow answers: computed in one thread, kept until the state changes. A page immediately gets the last answer, if
# any, and is sent again after the next.

log = logging.getLogger(__name__)

MAX_KEPT: Final = 500


class BackgroundResult(Struct, frozen=True, kw_only=True):
    """``value`` of the state with this number, or the ``problem`` that prevented it."""

    number: int
    value: object = None
    problem: str = ""


class BackgroundResults:
    """Compute answers by key, one at a time. Call ``ask`` from any thread, ``start`` and ``stop`` from one owner."""

    def __init__(self, building: Callable[[], AbstractContextManager[None]] = gc_control.building) -> None:
        self._building = building
        self._lock = threading.Lock()  # guards the two below
        self._answers: dict[Hashable, BackgroundResult] = {}
        self._wanted: dict[Hashable, tuple[int, Callable[[], object]]] = {}
        self.changes = 0
        """Number of computed answers."""
        self._worker = Worker("page-answers", lambda: 0.0 if self.compute_one() else None)

    def start(self) -> None:
        self._worker.start()

    def stop(self, timeout_s: float) -> None:
        self._worker.stop(timeout_s)

    def drop(self) -> None:
        """Drop all answers, because numbers of states start again."""
        with self._lock:
            self._answers.clear()
            self._wanted.clear()

    def ask(self, key: Hashable, number: int, compute: Callable[[], object]) -> BackgroundResult | None:
        """Return the last answer for ``key``. If it is not of state ``number``, schedule its computation."""
        with self._lock:
            known = self._answers.get(key)
            if known is None or known.number != number:
                self._wanted[key] = (number, compute)
                self._worker.wake()
            return known

    def compute_one(self) -> bool:
        """Compute the oldest requested answer; False if none is requested."""
        with self._lock:
            if not self._wanted:
                return False
            key = next(iter(self._wanted))
            number, compute = self._wanted.pop(key)
        with self._building():
            try:
                answer = BackgroundResult(number=number, value=compute())
            except Exception as error:  # noqa: BLE001 - the thread continues, and the page shows it
                answer = BackgroundResult(number=number, problem=_sentence(error))
        with self._lock:
            self._answers.pop(key, None)
            self._answers[key] = answer
            while len(self._answers) > MAX_KEPT:
                self._answers.pop(next(iter(self._answers)))
            self.changes += 1
        return True


def _sentence(error: Exception) -> str:
    """Return the page's message about a failure; log unexpected errors with their traceback."""
    if isinstance(error, ForbiddenError):
        return missing_right(error)
    if isinstance(error, DraError):
        return str(error)
    log.error("reading or computing web UI data failed", exc_info=error)
    return f"{type(error).__name__}: {error}"


VIEWED_S: Final = 60.0
"""Reading stops after this time without a request."""
_REST: Final = 3.0

Value = TypeVar("Value")


class ReadFailure(Struct, frozen=True, kw_only=True):
    sentence: str
    since: datetime


class LastRead(Struct, Generic[Value], frozen=True, kw_only=True):
    """A value with start and duration of its last reading. ``number`` counts distinct values."""

    value: Value
    at: datetime
    took_s: float
    number: int


class Periodic(Generic[Value]):
    """Call ``read`` in a thread. One owner calls ``start`` and ``stop`` once; other methods are thread-safe."""

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
        keeps: bool = True,
    ) -> None:
        """``rest`` is called after `VIEWED_S` without a request; then the last reading is dropped if not ``keeps``."""
        self._read = read
        self._same, self._rest, self._keeps = same, rest, keeps
        self._interval_s = interval_s
        self._clock = clock
        self._now = now
        self._asked_at = clock()
        # Written by the reading thread as single references; read by other threads without a lock.
        self._reading: LastRead[Value] | None = None
        self.trouble: ReadFailure | None = None
        self.changes = 0
        """Increases when the value or the failure changes."""
        self._worker = Worker(name, self._turn)

    def start(self) -> None:
        self._worker.start()

    def stop(self, timeout_s: float) -> None:
        """Stop the thread; a hung reading ends with the process. Idempotent."""
        self._worker.stop(timeout_s)

    def asked(self) -> "LastRead[Value] | None":
        """Return the last reading, and keep reading for another minute."""
        self._asked_at = self._clock()
        self._worker.wake()
        return self._reading

    def once(self) -> None:
        begun, at = self._clock(), self._now()
        try:
            value = self._read()
        except Exception as error:  # noqa: BLE001 - the thread keeps running, and the page shows it
            self._fail(_sentence(error))
            return
        took_s, last = self._clock() - begun, self._reading
        same = last is not None and self._same(last.value, value)
        number = (last.number if last else 0) + (not same)
        kept = last.value if same and last is not None else value
        changed = not same or self.trouble is not None
        self._reading, self.trouble = LastRead(value=kept, at=at, took_s=took_s, number=number), None
        self.changes += changed  # after the values: pages read it before them

    def _fail(self, sentence: str) -> None:
        known = self.trouble
        self.trouble = ReadFailure(sentence=printable(sentence)[:1000], since=known.since if known else self._now())
        if known is None or known.sentence != self.trouble.sentence:
            self.changes += 1

    def _turn(self) -> float | None:
        begun = self._clock()
        self.once()
        took = self._clock() - begun
        self._worker.pause(max(self._interval_s, min(_REST * took, VIEWED_S)))
        if self._clock() - self._asked_at <= VIEWED_S:
            return 0.0
        if not self._keeps:
            self._reading = None
            self.changes += 1
        self._rest()
        return None


class SeenCluster(Struct, frozen=True, kw_only=True):
    """A reading of the cluster: objects, GpuNode ``statuses``, page rows, and relevant ``gaps``."""

    state: ClusterState
    statuses: Mapping[str, GpuNodeStatus]
    claims: Sequence[ClaimRow]
    fleet: SeenFleet
    faults: Sequence[FaultCard] = ()
    waiting: Sequence[Waiting] = ()
    events: Sequence[EventRow] = ()
    event_groups: Sequence[EventGroup] = ()
    quotas: Sequence[QuotaRow] = ()
    gaps: Sequence[str] = ()


def same_cluster(one: SeenCluster, other: SeenCluster) -> bool:
    """Return whether the objects are equal. Compares one at a time, so that other threads can run."""
    if (one.statuses, one.quotas, one.gaps) != (other.statuses, other.quotas, other.gaps):
        return False
    if one.state.gaps != other.state.gaps:
        return False
    for kind in KINDS:
        before, after = getattr(one.state, kind.field), getattr(other.state, kind.field)
        if len(before) != len(after):
            return False
        if any(first != second for first, second in zip(before, after, strict=True)):
            return False
    return True


class ReadsCluster(Protocol):
    """Raises DraError."""

    def state(self) -> ClusterState: ...
    def gpu_nodes(self, gaps: list[str]) -> Mapping[str, GpuNodeStatus]: ...
    def quotas(self, gaps: list[str]) -> Sequence[object]: ...


def read_state(source: ReadsCluster) -> SeenCluster:
    with gc_control.building():
        return read_from(source)


def read_from(source: ReadsCluster, now: Callable[[], datetime] = lambda: datetime.now(UTC)) -> SeenCluster:
    gaps: list[str] = []
    state, statuses = with_claim_gaps(source.state()), source.gpu_nodes(gaps)
    claims = claims_of(state, now())
    # Slices with the scheduler's defaults, as in the capacity report.
    slices = with_defaults(replace(state, claims=(), templates=())).slices
    unknown = any(gap.startswith(("resourceclaims:", "resourceslices:")) for gap in state.gaps)
    lost: list[str] = []
    waiting = waiting_pods(state, lambda said: lost.append(f"pods: {said}"))
    events = event_rows(state.events, lambda said: lost.append(f"events: {said}"))
    quotas = read_all(ResourceQuota, source.quotas(lost), lambda said: lost.append(f"resourcequotas: {said}"))
    classes = read_all(DeviceClass, state.classes, lambda _: None)
    extended = (each.spec.extended_resource_name for each in classes)
    fleet = fleet_of(slices, state.nodes, claims, statuses, "its claims are unknown" if unknown else "")
    return SeenCluster(
        fleet=fleet,
        faults=faults_of(fleet),
        waiting=waiting,
        events=events,
        event_groups=event_groups(events, state.pods),
        quotas=quota_rows(quotas, filter(None, extended)),
        gaps=(*_gaps_that_matter(state, waiting), *gaps, *lost),
        state=replace(state, gaps=(*state.gaps, *gaps)) if gaps else state,
        statuses=statuses,
        claims=claims,
    )


def _gaps_that_matter(state: ClusterState, waiting: Sequence[Waiting]) -> list[str]:
    """Return all gaps except gaps about volumes that no waiting pod uses."""
    matter = set(gaps_that_matter(state, None))
    for each in waiting if len(matter) < len(state.gaps) else ():
        matter.update(gaps_that_matter(state, each.pod))
    return [gap for gap in state.gaps if gap in matter]


MAX_NODES: Final = 20_000


class LiveSource:
    """Cluster of a client; reads ``namespaces`` if the user cannot list all namespaces. For one thread."""

    def __init__(self, api: StateReader, *namespaces: str) -> None:
        self._api = api
        self._namespaces = tuple(filter(None, namespaces))

    def state(self) -> ClusterState:
        found = read_cluster(self._api)
        own: dict[str, Sequence[Wire]] = {}
        gaps = []
        for gap in found.gaps:
            kind = next((each for each in KINDS if each.namespaced and gap.startswith(f"{each.resource}: ")), None)
            items = {each: read_in_namespace(self._api, kind, each) for each in self._namespaces} if kind else {}
            if kind is not None and (read := {name: found for name, found in items.items() if found is not None}):
                own[kind.field] = tuple(chain.from_iterable(read.values()))
                gap += f"; only namespace {', '.join(read)} is shown"  # noqa: PLW2901 - the gap with its remedy
            gaps.append(gap)
        return replace(found, gaps=tuple(gaps), **own) if own else found

    def gpu_nodes(self, gaps: list[str]) -> Mapping[str, GpuNodeStatus]:
        return statuses_of(read_kind(self._api, GPU_NODES, None, gaps)[:MAX_NODES])

    def quotas(self, gaps: list[str]) -> Sequence[object]:
        number = len(gaps)
        found = read_kind(self._api, QUOTAS, None, gaps)
        if len(gaps) == number:
            return found
        return [item for each in self._namespaces for item in read_in_namespace(self._api, QUOTAS, each) or ()]


class OwnSource(LiveSource):
    """As `LiveSource`, for one of several visitors. GpuNodes name claims of all namespaces: a visitor who may not list
    all claims gets the claims of ``namespaces``."""

    def __init__(self, api: StateReader, *namespaces: str) -> None:
        super().__init__(api, *namespaces)
        self._is_limited = True

    def state(self) -> ClusterState:
        found = super().state()
        self._is_limited = any(gap.startswith("resourceclaims:") for gap in found.gaps)
        return found

    def gpu_nodes(self, gaps: list[str]) -> Mapping[str, GpuNodeStatus]:
        found = super().gpu_nodes(gaps)
        return {name: self._own(status) for name, status in found.items()} if self._is_limited else found

    def _own(self, status: GpuNodeStatus) -> GpuNodeStatus:
        usage, own = status.usage, self._namespaces
        shown = replace(
            usage,
            over_grant=tuple(each for each in usage.over_grant if each.namespace in own),
            idle=tuple(each for each in usage.idle if each.namespace in own),
            unattributed=tuple(replace(each, commands=()) for each in usage.unattributed),
        )
        policies = (replace(each, waiting_for=(), message=None) for each in status.policies)
        gpus = (
            replace(each, waiting=each.waiting and "Newer terms wait until the GPU is free.") for each in status.gpus
        )
        problems = (replace(each, message=each.reason) for each in status.problems)
        return replace(
            status,
            usage=shown,
            policies=tuple(policies),
            gpus=tuple(gpus),
            problems=tuple(problems),
            summary=None,
        )


class FileSource:
    """A state from a file."""

    def __init__(self, state: ClusterState) -> None:
        self._state = state

    def state(self) -> ClusterState:
        return self._state

    def gpu_nodes(self, gaps: list[str]) -> Mapping[str, GpuNodeStatus]:
        if not self._state.gpu_nodes:
            gaps.append("gpunodes: not in the cluster state file: health and policies are unknown")
        return statuses_of(self._state.gpu_nodes)

    def quotas(self, gaps: list[str]) -> Sequence[object]:
        if not self._state.quotas:
            gaps.append("resourcequotas: not in the cluster state file")
        return self._state.quotas
