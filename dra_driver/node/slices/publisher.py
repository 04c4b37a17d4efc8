"""Keep the node's ResourceSlices in the API server up to date while the process lives, in one thread.

A stop deletes nothing: a restart must not make devices disappear, and the kubelet deletes the resource slices of a
driver that stays away (30 s after its last connection; kubernetes/kubernetes pkg/kubelet/cm/dra/plugin). The publisher
reports a second publisher's resource slices and leaves them; it repairs edits of its own ever more slowly and reports
them. When the API server drops a field, the next pass follows immediately and withdraws devices that need it.
"""

import logging
import random
import threading
import time
from collections import deque
from collections.abc import Callable, Collection

from dra_driver.core.backoff import Backoff
from dra_driver.core.errors import ApiUnreachableError, KubernetesApiError, ServerBusyError
from dra_driver.core.model.gpu import LeftOutGpu, Snapshot
from dra_driver.core.model.terms import Terms
from dra_driver.core.telemetry import metrics
from dra_driver.core.text import listed
from dra_driver.core.worker import Worker
from dra_driver.kube import paths
from dra_driver.kube.discovery import server_version
from dra_driver.kube.events import Recorder
from dra_driver.kube.objects.core import ObjectReference
from dra_driver.kube.reflector import NewestVersion, Reflector, ReflectorChange
from dra_driver.kube.rest import RestClient
from dra_driver.node.slices import untrusted_slice
from dra_driver.node.slices.api import RestSlicesApi, SlicesApi
from dra_driver.node.slices.build import NO_TERMS, pool_name
from dra_driver.node.slices.features import FeatureWatch
from dra_driver.node.slices.gates import NO_FEATURES, ApiServerFeatures
from dra_driver.node.slices.layout import DesiredSlice, DesiredState
from dra_driver.node.slices.reconcile import Reconciler, ReconcileResult

log = logging.getLogger(__name__)

# Seconds from a change by another client to the repair: at most 1.3, so that deleted resource slices are back in 2 s.
REPAIR_S = (0.3, 1.3)
# How many repairs within WINDOW_S are made without a longer wait. The kubelet deletes resource slices when it restarts;
# nothing legitimate edits them.
WINDOW_S = 300.0
QUICK_EDITS = 3
QUICK_DELETIONS = 8
LONGEST_REPAIR_S = 60.0
# A pass even when nothing happened, in case the watch lost an event.
RESYNC_S = 600.0


class Schedule:
    """The due time of the next pass. Not thread-safe: its owner holds a lock.

    Immediately after a change of the desired state. Shortly after a change by another client: the kubelet deletes
    resource slices one by one when it starts, and the nodes of a cluster must not all answer at the same moment. With
    growing pauses after failures, and when the same repairs are needed again and again.
    """

    def __init__(self, *, rand: Callable[[], float] = random.random) -> None:
        self._rand = rand
        self._backoff = Backoff(first_s=0.5, longest_s=30.0, rand=rand)
        self._due: float | None = None
        self._not_before = 0.0
        self._deletions: deque[float] = deque(maxlen=64)
        self._edits: deque[float] = deque(maxlen=64)

    def due_s(self) -> float | None:
        """The clock's reading at which the next pass is due; None when none is needed."""
        return None if self._due is None else max(self._due, self._not_before)

    def wanted(self, now: float) -> None:
        """The desired state changed: a pass is due immediately, even while waiting after a failure."""
        self._due, self._not_before = now, 0.0

    def disturbed(self, now: float) -> None:
        """Another client changed the resource slices."""
        shortest, longest = REPAIR_S
        at = now + shortest + (longest - shortest) * self._rand()
        last = max([*self._deletions, *self._edits], default=now)
        at = max(at, last + self._spacing(now))
        self._due = at if self._due is None else min(self._due, at)

    def succeeded(self, now: float) -> None:
        self._backoff.reset()
        self._not_before = 0.0
        self._due = now + RESYNC_S * (0.9 + 0.2 * self._rand())

    def failed(self, now: float, retry_after_s: float = 0.0) -> None:
        self._not_before = now + max(self._backoff.next_s(), retry_after_s)
        self._due = self._not_before

    def repaired(self, now: float, *, only_created: bool) -> None:
        """A pass that another client's change caused had to write."""
        (self._deletions if only_created else self._edits).append(now)

    def edits(self, now: float) -> int:
        """Number of repairs of edited resource slices within `WINDOW_S`; deletions do not count."""
        return sum(now - at < WINDOW_S for at in self._edits)

    def _spacing(self, now: float) -> float:
        """The least time between two repairs."""
        deletions = sum(now - at < WINDOW_S for at in self._deletions)
        too_many = max(self.edits(now) - QUICK_EDITS, deletions - QUICK_DELETIONS)
        return 0.0 if too_many < 0 else float(min(LONGEST_REPAIR_S, 4.0 * 2.0 ** min(too_many, 8)))


SHOWN = 4  # of a list that may be long


class Publisher:
    """Call ``start`` and ``stop`` once, from one owner; everything else from any thread."""

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
        self._lock = threading.Lock()  # guards the fields down to `_problem`
        self._schedule = schedule or Schedule()
        self._desired = DesiredState()
        self._asked = features is None  # whether the features were detected
        self._pending: list[tuple[str, str | None]] = []
        self._published = self._disturbed = False
        self._problem: str | None = None
        self._watcher: Reflector | None = None
        self._listed = threading.Event()
        self.noticed = 0
        """The number of noticed changes of the node's resource slices: while it stays, `other_pools` do."""
        self._on_notice: Callable[[], None] = lambda: None
        self._worker = Worker("publisher", self.step, on_error=self._unexpected)

    @classmethod
    def connect(
        cls,
        rest: RestClient,
        driver: str,
        node: str,
        recorder: Recorder | None = None,
        *,
        lists: bool = False,
    ) -> "Publisher":
        """A publisher for the API server, with a reflector of all drivers' slices on the node that wakes it. ``lists``:
        numaNode becomes a list."""
        newest = NewestVersion()
        api = RestSlicesApi(rest, driver, node, newest)
        features = FeatureWatch(api, lambda: server_version(rest), driver, node, lists=lists)
        publisher = cls(api, driver, node, features=features, recorder=recorder)
        publisher._watcher = Reflector(
            rest,
            paths.resource_slices(),
            f"spec.nodeName={node}",
            publisher.notice,
            slim=untrusted_slice.slimmed,
            newest=newest,
        )
        return publisher

    @property
    def published(self) -> bool:
        """Return whether the last completed pass published the newest snapshot."""
        with self._lock:
            return self._published

    @property
    def problem(self) -> str | None:
        """The reason why the resource slices are outdated, for the node's owner; None without a problem."""
        with self._lock:
            return self._problem

    @property
    def features(self) -> ApiServerFeatures:
        """The gated fields that the API server keeps; none before it was queried."""
        return self._features.current if self._features is not None else NO_FEATURES

    @property
    def left_out(self) -> tuple[LeftOutGpu, ...]:
        """Unpublished GPUs and forms, with reasons; () before the first publication."""
        with self._lock:
            return self._desired.left_out

    def wait_listed(self, timeout_s: float) -> bool:
        """Wait up to ``timeout_s`` until the node's resource slices are listed; return whether they are."""
        return self._listed.wait(timeout_s)

    def on_notice(self, callback: Callable[[], None]) -> None:
        """Call ``callback``, which must not block, after each of these changes. One callback at most."""
        self._on_notice = callback

    def other_pools(self, gpus: Collection[str]) -> tuple[untrusted_slice.OtherPool, ...]:
        """Other pools that publish GPUs of this node; ``gpus`` are the UUIDs of this node's."""
        known = self._watcher.items().values() if self._watcher is not None else ()
        return untrusted_slice.other_pools(known, self._driver, pool_name(self._node, self._driver), gpus)

    def start(self) -> None:
        self._worker.start()
        if self._watcher is not None:
            self._watcher.start()

    def stop(self, timeout_s: float = 2.0) -> None:
        """End both threads; a write in progress may end later. Resource slices stay. Idempotent."""
        self._worker.stop(timeout_s)
        if self._watcher is not None:
            self._watcher.stop()

    def set_snapshot(self, snapshot: Snapshot, terms: Terms = NO_TERMS) -> None:
        """Publish the GPUs of ``snapshot`` under ``terms`` as soon as possible; returns immediately.

        Equal content causes no write, also when the snapshot differs in unpublished parts (a partition created for a
        claim).
        """
        with self._lock:
            if not self._desired.offer(snapshot, terms) or (self._asked and not self._desired.build(self.features)):
                return
            self._published = False
            self._schedule.wanted(self._clock())
        self._worker.wake()

    def notice(self, change: ReflectorChange) -> None:
        """Handle a watch event about resource slices of this node; own writes and other drivers' are recognised."""
        self.noticed += 1  # one thread notices
        self._on_notice()
        if change.kind == "listed":
            self._listed.set()
        if change.item is not None and not untrusted_slice.is_of(change.item, self._driver):
            return
        with self._lock:
            known = change.item if change.kind != "deleted" else None
            version = None if known is None else str(untrusted_slice.metadata(known).get("resourceVersion", ""))
            self._pending.append((change.name, version))
        self._worker.wake()

    def step(self) -> float | None:
        """Run a pass when one is due. Returns the seconds until the next one, None when none is planned."""
        with self._lock:
            self._sort_out_events()
            due_s = self._schedule.due_s()
            if not self._desired.has_inventory or due_s is None:
                return None
            if due_s > self._clock():
                return due_s - self._clock()
            disturbed, self._disturbed = self._disturbed, False
        self._pass(disturbed)
        with self._lock:
            self._sort_out_events()
            due_s = self._schedule.due_s()
            return None if due_s is None else max(0.0, due_s - self._clock())

    def _unexpected(self) -> None:
        metrics.internal_error("publisher")
        with self._lock:
            self._schedule.failed(self._clock())
            self._problem = "publishing failed with an internal error; see the log"

    def _sort_out_events(self) -> None:
        """Ignore events of own writes. Their versions are only known between two passes."""
        pending, self._pending = self._pending, []
        if any(not name or not self._reconciler.is_own_write(name, version) for name, version in pending):
            self._disturbed = True
            self._schedule.disturbed(self._clock())

    def _pass(self, disturbed: bool) -> None:
        try:
            unknown = self._ask_for_features()
            slices = self._wanted()
            done = self._reconciler.run(slices)
        except KubernetesApiError as error:
            self._failed(error, disturbed)
            return
        if done.lost and self._features is not None:
            self._withdraw(done, self._features, disturbed)
            return
        with self._lock:
            now = self._clock()
            self._schedule.succeeded(now)
            if disturbed and self._published and done.writes:
                self._schedule.repaired(now, only_created=done.created == done.writes)
            edits = self._schedule.edits(now)
            self._published = self._desired.slices is slices
            if not self._published:
                self._schedule.wanted(now)  # another snapshot came during the pass
        self._report("; ".join([*unknown, *problems_of(done, edits, self._driver, self._node)]) or None)

    def _wanted(self) -> tuple[DesiredSlice, ...]:
        """The resource slices to publish with the API server's features."""
        with self._lock:
            self._asked = True
            if self._desired.build(self.features):
                self._published = False
            return self._desired.slices or ()

    def _withdraw(self, done: ReconcileResult, features: FeatureWatch, disturbed: bool) -> None:
        """The API server dropped a field that it seemed to keep: nothing that needs it may stay published."""
        log.warning(
            "API server drops gated fields; withdrawing what needs them",
            extra={"features": ",".join(sorted(done.lost)), "dropped": listed(done.dropped, SHOWN)},
        )
        news = features.lose(done.lost)
        with self._lock:
            self._disturbed = self._disturbed or disturbed
            self._published = False
            if news:
                self._schedule.wanted(self._clock())
            else:
                self._schedule.failed(self._clock())  # a pass at once would give the same result

    def _failed(self, error: KubernetesApiError, disturbed: bool) -> None:
        with self._lock:
            self._disturbed = self._disturbed or disturbed
            retry_after_s = error.retry_after_s if isinstance(error, ServerBusyError) else 0.0
            self._schedule.failed(self._clock(), retry_after_s)
        self._report(f"ResourceSlices cannot be published: {error}", event=not isinstance(error, ApiUnreachableError))

    def warn(self, reason: str, message: str) -> bool:
        """Record a Warning event on this node for another component; False while the node's UID is unknown."""
        uid = self._reconciler.node_uid
        if self._recorder is None or not uid:
            return False
        about = ObjectReference(api_version="v1", kind="Node", name=self._node, uid=uid)
        self._recorder.record(about, "Warning", reason, message)
        return True

    def _report(self, problem: str | None, *, event: bool = True) -> None:
        with self._lock:
            before, self._problem = self._problem, problem
        if problem == before:
            return
        if problem is None:
            log.info("ResourceSlices are up to date again", extra={"node": self._node})
            return
        log.warning("ResourceSlices are not up to date", extra={"node": self._node, "problem": problem})
        if event:
            self.warn("ResourceSliceProblem", problem)

    def _ask_for_features(self) -> list[str]:
        """Problems with finding the features. Raises when another attempt soon may help."""
        if self._features is None:
            return []
        try:
            self._features.refresh()
        except (ApiUnreachableError, ServerBusyError):
            raise
        except KubernetesApiError as error:
            so = "" if self._features.is_known else ", so nothing that needs a gated field is offered"
            return [f"cannot find out which ResourceSlice fields the API server keeps{so}: {error}"]
        return []


def problems_of(done: ReconcileResult, edits: int, driver: str, node: str) -> list[str]:
    """The problems that a pass found; ``edits``: other clients' changes of resource slices in `WINDOW_S`."""
    problems = []
    if done.foreign_pools:
        problems.append(
            f"second publisher: node {node} has ResourceSlices of driver {driver} in other pools "
            f"({', '.join(done.foreign_pools)}); stop that driver, then delete its ResourceSlices"
        )
    if edits >= QUICK_EDITS:
        problems.append(
            f"second publisher: another client keeps changing the ResourceSlices of driver {driver} on node {node} "
            f"({edits} times in five minutes); find it and stop it"
        )
    if done.dropped:
        problems.append(
            "the API server drops fields of ResourceSlices, because their feature gates are off: "
            + listed(done.dropped, SHOWN)
        )
    return problems
