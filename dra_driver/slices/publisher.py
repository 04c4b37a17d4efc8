"""Keeps the node's ResourceSlices in the API server as they should be, for as long as the process lives.

Owns one thread, and what others may know of it: is it published, and what is wrong. Refuses to know hardware (it is
handed snapshots). Slices are not deleted when it stops: a restart must not make devices vanish, and the kubelet
removes the slices of a driver that stays away (30 s after its last connection; kubernetes/kubernetes
pkg/kubelet/cm/dra/plugin).

A second publisher is not fought. Slices of the same driver and node in another pool are reported and left alone;
edits of our own slices are put right ever more slowly and reported.
"""

import logging
import threading
import time
from collections.abc import Callable
from typing import Literal, Protocol

from dra_driver.errors import ApiUnreachableError, KubernetesApiError, ServerBusyError
from dra_driver.kube import paths
from dra_driver.kube.discovery import server_version
from dra_driver.kube.reflector import Change, Reflector
from dra_driver.kube.rest import RestClient
from dra_driver.kube.types import Device, ObjectReference
from dra_driver.model.gpu import LeftOutGpu, Snapshot
from dra_driver.slices.api import RestSlicesApi, SlicesApi
from dra_driver.slices.build import build_devices, pool_name, unpublished
from dra_driver.slices.features import Features, FeatureWatch
from dra_driver.slices.reconcile import Pass, Reconciler
from dra_driver.slices.schedule import QUICK_EDITS, Schedule
from dra_driver.telemetry import metrics

log = logging.getLogger(__name__)


class Watcher(Protocol):
    """What tells the publisher that slices changed (``kube.reflector.Reflector``)."""

    def start(self) -> None: ...
    def stop(self) -> None: ...


class Recorder(Protocol):
    """The part of ``kube.events.EventRecorder`` that reporting a problem needs."""

    def record(self, about: ObjectReference, kind: Literal["Normal", "Warning"], reason: str, message: str) -> None: ...


class Publisher:
    """``start`` and ``stop`` once, by one owner; everything else from any thread."""

    def __init__(
        self,
        api: SlicesApi,
        driver: str,
        node: str,
        *,
        features: FeatureWatch | None = None,
        recorder: Recorder | None = None,
        schedule: Schedule | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Raises ConfigurationError when driver or node cannot be part of a pool name."""
        self._driver, self._node = driver, node
        self._reconciler = Reconciler(api, driver, node, pool_name(node, driver))
        self._features, self._recorder, self._clock = features, recorder, clock
        self._changed = threading.Condition()  # guards everything below
        self._schedule = schedule or Schedule()
        self._devices: list[Device] | None = None
        self._left_out: tuple[LeftOutGpu, ...] = ()
        self._pending: list[tuple[str, str | None]] = []
        self._woken = self._stopping = self._published = self._disturbed = False
        self._problem: str | None = None
        self._watcher: Watcher | None = None
        self._thread = threading.Thread(target=self._run, name="publisher", daemon=True)

    @classmethod
    def connect(cls, rest: RestClient, driver: str, node: str, recorder: Recorder | None = None) -> "Publisher":
        """A publisher with the API server behind it, and a reflector that wakes it."""
        api = RestSlicesApi(rest, driver, node)
        features = FeatureWatch(api, lambda: server_version(rest), driver, node)
        publisher = cls(api, driver, node, features=features, recorder=recorder)
        publisher._watcher = Reflector(rest, paths.resource_slices(), api.field_selector, publisher.notice)
        return publisher

    @property
    def published(self) -> bool:
        """Whether the API server has the newest snapshot, as far as is known."""
        with self._changed:
            return self._published

    @property
    def problem(self) -> str | None:
        """What keeps the slices from being right, as a sentence for the node's owner; None while all is well."""
        with self._changed:
            return self._problem

    @property
    def features(self) -> Features:
        """Which gated fields the API server keeps; none before it was asked."""
        return self._features.current if self._features is not None else Features()

    def start(self) -> None:
        self._thread.start()
        if self._watcher is not None:
            self._watcher.start()

    def stop(self, timeout_s: float = 2.0) -> None:
        """Ends both threads; a write in progress may end after that. Slices stay. Idempotent."""
        with self._changed:
            self._stopping = True
            self._changed.notify()
        if self._watcher is not None:
            self._watcher.stop()
        if self._thread.is_alive():
            self._thread.join(timeout_s)

    def set_snapshot(self, snapshot: Snapshot) -> None:
        """Publishes what this snapshot says, at once; returns before that is done. The same content causes nothing."""
        devices, left_out = build_devices(snapshot), unpublished(snapshot)
        with self._changed:
            news, self._left_out = left_out != self._left_out, left_out
        for gpu in left_out if news else ():
            log.warning("GPU not published", extra={"gpu": gpu.label, "reason": gpu.reason})
        with self._changed:
            if devices == self._devices:
                return
            self._devices, self._published = devices, False
            self._schedule.wanted(self._clock())
            self._wake()

    def notice(self, change: Change) -> None:
        """A watch event about this driver's slices on this node; own writes among them are recognised."""
        with self._changed:
            version = None if change.kind == "deleted" or change.item is None else _version(change)
            self._pending.append((change.name, version))
            self._wake()

    def step(self) -> float | None:
        """Runs a pass when one is due; seconds until the next is, None when nothing is planned.

        The thread's step; tests call it instead of starting the thread.
        """
        with self._changed:
            self._sort_out_events()
            due_s, devices = self._schedule.due_s(), self._devices
            if devices is None or due_s is None:
                return None
            if due_s > self._clock():
                return due_s - self._clock()
            disturbed, self._disturbed = self._disturbed, False
        self._pass(devices, disturbed)
        with self._changed:
            self._sort_out_events()
            due_s = self._schedule.due_s()
            return None if due_s is None else max(0.0, due_s - self._clock())

    def _run(self) -> None:
        while True:
            try:
                wait_s = self.step()
            except Exception:  # the thread must live; a bug in one pass is logged and tried again like a failure
                log.exception("publishing failed unexpectedly")
                metrics.internal_error("publisher")
                wait_s = self._unexpected()
            with self._changed:
                self._changed.wait_for(lambda: self._woken or self._stopping, timeout=wait_s)
                self._woken = False
                if self._stopping:
                    return

    def _unexpected(self) -> float:
        with self._changed:
            self._schedule.failed(self._clock())
            self._problem = "publishing failed unexpectedly; see the log"
            return 1.0

    def _wake(self) -> None:
        self._woken = True
        self._changed.notify()

    def _sort_out_events(self) -> None:
        """Own writes cause nothing. Only between passes is it known which versions are our own."""
        pending, self._pending = self._pending, []
        if any(not name or not self._reconciler.is_own_write(name, version) for name, version in pending):
            self._disturbed = True
            self._schedule.disturbed(self._clock())

    def _pass(self, devices: list[Device], disturbed: bool) -> None:
        try:
            done = self._reconciler.run(devices)
        except KubernetesApiError as error:
            self._failed(error, disturbed)
            return
        with self._changed:
            now = self._clock()
            self._schedule.succeeded(now)
            if disturbed and self._published and done.writes:
                self._schedule.repaired(now, only_created=done.created == done.writes)
            edits = self._schedule.edits(now)
            self._published = self._devices is devices
            if not self._published:
                self._schedule.wanted(now)  # another snapshot came during the pass
        self._report(_problem_of(done, edits, self._driver, self._node))
        self._ask_for_features()

    def _failed(self, error: KubernetesApiError, disturbed: bool) -> None:
        with self._changed:
            self._disturbed = self._disturbed or disturbed
            retry_after_s = error.retry_after_s if isinstance(error, ServerBusyError) else 0.0
            self._schedule.failed(self._clock(), retry_after_s)
        self._report(f"slices cannot be published: {error}", event=not isinstance(error, ApiUnreachableError))

    def _report(self, problem: str | None, *, event: bool = True) -> None:
        with self._changed:
            before, self._problem = self._problem, problem
        if problem == before:
            return
        if problem is None:
            log.info("slices are right again", extra={"node": self._node})
            return
        log.warning("slices are not right", extra={"node": self._node, "problem": problem})
        if event and self._recorder is not None and self._reconciler.node_uid:
            about = ObjectReference(apiVersion="v1", kind="Node", name=self._node, uid=self._reconciler.node_uid)
            self._recorder.record(about, "Warning", "ResourceSliceProblem", problem)

    def _ask_for_features(self) -> None:
        if self._features is None:
            return
        try:
            self._features.refresh()
        except KubernetesApiError as error:
            log.warning("cannot find out which slice fields the API server keeps", extra={"error": str(error)})


def _problem_of(done: Pass, edits: int, driver: str, node: str) -> str | None:
    problems = []
    if done.foreign_pools:
        problems.append(
            f"a second publisher: node {node} has slices of driver {driver} in other pools "
            f"({', '.join(done.foreign_pools)}); stop the other driver, then delete the slices that it left"
        )
    if edits >= QUICK_EDITS:
        problems.append(
            f"somebody else keeps changing the slices of driver {driver} on node {node} "
            f"({edits} times in five minutes); find the second publisher for this driver and node and stop it"
        )
    if done.dropped:
        shown = ", ".join(done.dropped[:4]) + (", …" if len(done.dropped) > 4 else "")
        problems.append(f"the API server drops fields of the slices, their feature gates are off: {shown}")
    return "; ".join(problems) or None


def _version(change: Change) -> str:
    metadata = (change.item or {}).get("metadata")
    return str(metadata.get("resourceVersion", "")) if isinstance(metadata, dict) else ""
