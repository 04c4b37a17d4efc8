"""Elect the replica that acts: hold a Lease of coordination.k8s.io/v1, in a separate thread.

`Election.leads` depends only on time: True until ``renew_s`` after the *begin* of the last successful renewal, by a
clock that continues while the process or machine is stopped. So a stopped or disconnected leader answers False before
another replica may take the Lease. Parts check `leads` right before each write, and bound the write by ``request_s``. A
process that is stopped between the two sends its write later, so parts only send writes that are harmless twice, such
as an eviction of a pod by its UID.

As in client-go (kubernetes/client-go tools/leaderelection), no clock of another machine is trusted: a replica measures
how long it has seen the same record. It may take a record that did not change for as long as its holder promised.
"""

import logging
import threading
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from functools import partial
from typing import Final, Protocol

from msgspec import Struct

from dra_driver.core.errors import AlreadyExistsError, ConflictError, KubernetesApiError, NotFoundError
from dra_driver.core.telemetry import controller_metrics as metrics
from dra_driver.core.time import rfc3339_micro
from dra_driver.core.wire import S, from_wire
from dra_driver.core.worker import Worker
from dra_driver.kube import paths
from dra_driver.kube.objects.core import LeaseSpec
from dra_driver.kube.objects.meta import ObjectMeta

LONGEST_S: Final = 300
"""Limit of a holder's promise: a wrong value in the Lease must not stop all replicas."""


class LeaseTimes(Struct, frozen=True, kw_only=True):
    """Seconds. The leader stops acting ``renew_s`` after its last renewal began, others may take the Lease
    ``duration_s`` after it: the difference is for one request in flight."""

    duration_s: float
    renew_s: float
    retry_s: float
    request_s: float

    @classmethod
    def of(cls, duration_s: float) -> "LeaseTimes":
        """The proportions of client-go's defaults: 15, 10 and 2 s."""
        return cls(
            duration_s=duration_s, renew_s=duration_s * 2 / 3, retry_s=duration_s * 2 / 15, request_s=duration_s / 4
        )


class LeaseRecord(Struct, frozen=True, kw_only=True):
    """The content of a Lease. ``holder`` is "" when it was released."""

    version: str
    holder: str
    duration_s: float
    transitions: int
    acquired: str = ""

    @classmethod
    def of(cls, obj: Mapping[str, object]) -> "LeaseRecord":
        """Read the API object. Fields of a wrong type count as absent."""
        metadata, spec = _part(ObjectMeta, obj.get("metadata")), _part(LeaseSpec, obj.get("spec"))
        return cls(
            version=metadata.resource_version,
            holder=spec.holder_identity,
            duration_s=float(min(max(spec.lease_duration_seconds or 0, 1), LONGEST_S)),
            transitions=max(spec.lease_transitions or 0, 0),
            acquired=spec.acquire_time,
        )


class Sighting(Struct, frozen=True, kw_only=True):
    """A record, and when this replica first saw it (s, its clock)."""

    record: LeaseRecord
    since_s: float


def seen(record: LeaseRecord, before: Sighting | None, now_s: float) -> Sighting:
    """The sighting of a record: the earlier one while the record did not change."""
    return before if before is not None and before.record == record else Sighting(record=record, since_s=now_s)


def may_take(sighting: Sighting, identity: str, now_s: float) -> bool:
    """Return whether ``identity`` may write itself into the Lease: its own, released, or with an expired promise."""
    record = sighting.record
    return record.holder in {"", identity} or now_s >= sighting.since_s + record.duration_s


def held_by(identity: str, former: LeaseRecord | None, now: datetime, duration_s: float) -> dict[str, object]:
    """The Lease's spec with which ``identity`` takes or keeps it. ``now`` is for human readers."""
    keeps = former is not None and former.holder == identity
    changes = 0 if former is None else former.transitions + (0 if keeps or not former.version else 1)
    return {
        "holderIdentity": identity,
        "leaseDurationSeconds": max(1, round(duration_s)),
        "acquireTime": former.acquired if keeps and former and former.acquired else rfc3339_micro(now),
        "renewTime": rfc3339_micro(now),
        "leaseTransitions": changes,
    }


def released(former: LeaseRecord, now: datetime) -> dict[str, object]:
    """The spec of a Lease that its holder releases, so that another replica need not wait."""
    stamp = rfc3339_micro(now)
    return {
        "holderIdentity": "",
        "leaseDurationSeconds": 1,
        "acquireTime": stamp,
        "renewTime": stamp,
        "leaseTransitions": former.transitions,
    }


def _part(kind: type[S], value: object) -> S:
    try:
        return from_wire(kind, value)
    except ValueError:
        return kind()


log = logging.getLogger(__name__)

THREAD_NAME: Final = "lease"
_LATE_S: Final = 30.0


class LeaseApi(Protocol):
    """Subset of ``rest.RestClient`` that this module uses. Requests must end within ``LeaseTimes.request_s``."""

    def get(self, path: str) -> dict[str, object]: ...
    def create(self, path: str, body: Mapping[str, object]) -> dict[str, object]: ...
    def update(self, path: str, body: Mapping[str, object]) -> dict[str, object]: ...


class Leadership(Protocol):
    def leads(self) -> bool: ...


def awake_clock() -> float:
    """Seconds since boot, including sleep, which CLOCK_MONOTONIC omits."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class Election:
    """One replica's part. ``worker`` is the thread, which releases the Lease when it stops. Thread-safe. ``on_change``
    is called in the thread when leadership changes; it must return immediately."""

    def __init__(
        self,
        api: LeaseApi,
        *,
        namespace: str,
        name: str,
        identity: str,
        times: LeaseTimes,
        on_change: Callable[[], None] = lambda: None,
        clock: Callable[[], float] = awake_clock,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self.identity = identity
        self._api, self._times, self._on_change = api, times, on_change
        self._namespace, self._name = namespace, name
        self._clock, self._now = clock, now
        self._lock = threading.Lock()  # guards the next three
        self._leads_until = 0.0
        self._since: float | None = None
        self._problem: str | None = "the Lease was not read yet"
        self._sighting: Sighting | None = None  # of the election's thread alone, as the next one
        self._led = False
        self.worker = Worker(
            THREAD_NAME,
            self.step,
            on_error=partial(metrics.internal_error, THREAD_NAME),
            after_error_s=times.retry_s,
            interrupt=self._stop_acting,
            at_end=self._ended,
            hang_after_s=times.duration_s + _LATE_S,
            clock=clock,
        )

    def leads(self) -> bool:
        with self._lock:
            return self._clock() < self._leads_until

    def led_for_s(self) -> float | None:
        """Return the seconds of uninterrupted leadership; None for a replica that does not lead."""
        with self._lock:
            now = self._clock()
            return now - self._since if self._since is not None and now < self._leads_until else None

    @property
    def problem(self) -> str | None:
        """Return why the Lease cannot be read or written; None while it can."""
        with self._lock:
            return self._problem

    def step(self) -> float:
        """Read the Lease and take or renew it if possible. Returns seconds until the next call."""
        began = self._clock()
        try:
            if self._take_or_renew():
                self._renewed(began)
            self._report(None)
        except (ConflictError, AlreadyExistsError):
            self._report(None)  # another replica was faster; its record is read in the next turn
        except KubernetesApiError as error:
            self._report(str(error))
        self._notice_change()
        return self._times.retry_s

    def release(self) -> None:
        """Write that the Lease is free, so that another replica need not wait. Best effort."""
        try:
            obj = self._api.get(self._path())
            record = LeaseRecord.of(obj)
            if record.holder == self.identity:
                self._api.update(self._path(), {**obj, "spec": released(record, self._now())})
                log.info("lease released", extra={"lease": self._name})
        except KubernetesApiError as error:
            log.info("lease not released; it will expire", extra={"lease": self._name, "reason": error})

    def _stop_acting(self) -> None:
        with self._lock:
            self._leads_until = 0.0

    def _ended(self) -> None:
        self._stop_acting()
        if self._led:
            self.release()
        self._notice_change()

    def _take_or_renew(self) -> bool:
        try:
            obj = self._api.get(self._path())
        except NotFoundError:
            spec = held_by(self.identity, None, self._now(), self._times.duration_s)
            header = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease"}
            body = {**header, "metadata": {"name": self._name, "namespace": self._namespace}, "spec": spec}
            self._api.create(paths.leases(self._namespace), body)
            return True
        record = LeaseRecord.of(obj)
        self._sighting = seen(record, self._sighting, self._clock())
        if not may_take(self._sighting, self.identity, self._clock()):
            return False
        spec = held_by(self.identity, record, self._now(), self._times.duration_s)
        self._api.update(self._path(), {**obj, "spec": spec})
        return True

    def _renewed(self, began: float) -> None:
        if self.worker.is_stopping:
            return
        with self._lock:
            if self._since is None or began >= self._leads_until:
                self._since = self._clock()
            self._leads_until = began + self._times.renew_s

    def _report(self, problem: str | None) -> None:
        with self._lock:
            changed = problem != self._problem
            self._problem = problem
        if changed and problem is not None:
            log.warning("lease cannot be used", extra={"lease": self._name, "reason": problem})

    def _notice_change(self) -> None:
        leads = self.leads()
        metrics.leader.set(leads)
        if leads != self._led:
            self._led = leads
            log.info("leads now" if leads else "no longer leads", extra={"identity": self.identity})
            self._on_change()

    def _path(self) -> str:
        return paths.leases(self._namespace, self._name)
