"""Evict one pod through the eviction API within two limits, so that a false alarm cannot empty the cluster.

*The pace.* At most N evictions a minute, one each 60/N s, the first 60/N s after a leader began to lead. So the limit
holds across a restart or a takeover without memory of earlier evictions.

*The brake.* No eviction while more than a part of the fleet's GPUs became tainted within a window: hardware breaks one
by one, a wrong rule, policy or driver version everywhere at the same time. A taint counts from its ``timeAdded`` for at
least twice its grace period, else all pods could become due just after the window. Taints of a drain do not count.
A node writes its own devices and taints, so the brake does not count the node with most of them (`exceeds`).
"""

import random
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime, timedelta
from functools import partial
from typing import Final, Protocol

from msgspec import Struct

from dra_driver.controller.pending_evictions import Fleet, PendingEviction, PodRef, TaintedDevice, slice_view
from dra_driver.core.backoff import Backoff
from dra_driver.core.errors import ConflictError, KubernetesApiError, NotFoundError, ServerBusyError
from dra_driver.core.model.drain import DRAINED_TAINT
from dra_driver.core.model.terms import DETACHED_TAINT
from dra_driver.core.telemetry.controller_metrics import EvictionResult
from dra_driver.kube import paths
from dra_driver.kube.events import EventType, Recorder
from dra_driver.kube.evictions import NO_EVICTION, Creator, causes_text, create_eviction, says_budget
from dra_driver.kube.objects.core import ObjectReference, Pod
from dra_driver.kube.shapes import read

LEAST_GPUS: Final = 2
"""One broken GPU of a small fleet is normal."""
ASKED_FOR: Final = frozenset({DRAINED_TAINT, DETACHED_TAINT})
"""Keys of taints that an administrator requested."""


class BrakeRules(Struct, frozen=True, kw_only=True):
    """``percent`` of the fleet's GPUs within ``window_s`` seconds; 100 disables the brake. ``grace_s`` is the default
    of policies."""

    percent: int
    window_s: float
    grace_s: float = 0.0


class BrakeState(Struct, frozen=True, kw_only=True):
    """``recent`` of ``fleet`` GPUs became tainted within the window; ``until`` is when the oldest leaves it."""

    on: bool
    recent: int
    fleet: int
    until: datetime | None = None


def brake_state(fleet: Fleet, rules: BrakeRules, now: datetime) -> BrakeState:
    """Times ahead of ``now`` (a node's clock) count as recent."""
    ends = {gpu: end for gpu, end in _ends_by_gpu(fleet.tainted.values(), rules).items() if end > now}
    gpus = {pool: len(found) for pool, found in fleet.gpus.items()}
    too_many = exceeds(Counter(pool for pool, _ in ends), gpus, rules.percent)
    until = min(ends.values()) if too_many else None
    return BrakeState(on=too_many, recent=len(ends), fleet=sum(gpus.values()), until=until)


def exceeds(recent: Mapping[str, int], gpus: Mapping[str, int], percent: int) -> bool:
    """Return whether more than ``percent`` of the GPUs, and at least `LEAST_GPUS`, are recent. Both are by node.

    In a fleet of several nodes the node with most recent GPUs does not count as recent, and each node counts with at
    most the GPUs of the second largest: the report of one node is not evidence about other nodes."""
    sizes = {node: count for node, count in gpus.items() if count}
    if len(sizes) < 2:
        found, fleet, least = sum(recent.values()), sum(sizes.values()), LEAST_GPUS
    else:
        most = sorted(sizes.values())[-2]
        first = max(recent, key=lambda node: min(recent[node], most), default="")
        found = sum(min(count, most) for node, count in recent.items() if node != first)
        fleet = sum(min(count, most) for count in sizes.values())
        least = min(LEAST_GPUS, fleet - min(sizes.get(first, 0), most))
    return found >= least and found * 100 > percent * fleet


def _ends_by_gpu(devices: Iterable[TaintedDevice], rules: BrakeRules) -> dict[tuple[str, str], datetime]:
    """Time when each GPU of a pool stops counting; a partition's taint counts for its GPU."""
    ends: dict[tuple[str, str], datetime] = {}
    for device in devices:
        grace_s = rules.grace_s if device.grace_s is None else device.grace_s
        window = timedelta(seconds=max(rules.window_s, 2 * grace_s))
        for taint in device.taints:
            if taint.key not in ASKED_FOR:
                gpu = device.pool, device.gpu
                ends[gpu] = max(taint.added + window, ends.get(gpu, taint.added))
    return ends


class Pace:
    """At most ``per_minute`` evictions, spread evenly, over all threads. Thread-safe."""

    def __init__(self, per_minute: int, led_for_s: Callable[[], float | None], clock: Callable[[], float]) -> None:
        """``led_for_s``: how long this replica has led, None while it does not."""
        self._every_s, self._led_for_s, self._clock = 60.0 / per_minute, led_for_s, clock
        self._lock = threading.Lock()  # guards the next
        self._last_s: float | None = None

    def left_s(self) -> float:
        """Seconds until the next eviction, 0 or less if one may run. A new leader waits once."""
        with self._lock:
            return self._every_s - self._since_s()

    def take(self) -> bool:
        """Return whether one pod may be evicted now, and count it."""
        with self._lock:
            if self._since_s() < self._every_s:
                return False
            self._last_s = self._clock()
            return True

    def note(self) -> None:
        with self._lock:
            self._last_s = self._clock()

    def forget(self) -> None:
        with self._lock:
            self._last_s = None

    def _since_s(self) -> float:
        since_s = self._led_for_s() if self._last_s is None else self._clock() - self._last_s
        return since_s or 0.0


FIRST_RETRY_S, LONGEST_RETRY_S = 5.0, 120.0
OPTED_OUT_S: Final = 30.0
"""Pause until a pod that has opted out is read again."""


def retries() -> Backoff:
    return Backoff(first_s=FIRST_RETRY_S, longest_s=LONGEST_RETRY_S, rand=random.random)


class EvictionRequests(Creator, Protocol):
    """Subset of ``rest.RestClient`` that this module uses."""

    def get(self, path: str) -> dict[str, object]: ...
    def delete(self, path: str, uid: str | None = None) -> None: ...


class EvictionOutcome(Struct, frozen=True, kw_only=True):
    """The result of an attempt. ``retry_after_s`` is the API server's, else 0. ``unknown``: the pod may be evicted."""

    result: EvictionResult
    reason: str = ""
    retry_after_s: float = 0.0
    unknown: bool = False


def look(api: EvictionRequests, case: PendingEviction) -> EvictionOutcome | None:
    """A reason not to evict the pod now, else None. Raises KubernetesApiError when that cannot be read."""
    try:
        pod = read(Pod, api.get(paths.pod(case.pod.namespace, case.pod.name)))
        if (outcome := _of_pod(pod, case)) is not None:
            return outcome
        view = slice_view(api.get(paths.resource_slices(case.device.slice_name)))
    except NotFoundError as error:
        return EvictionOutcome(result="gone", reason=str(error))
    except ValueError as error:
        return EvictionOutcome(result="failed", reason=f"cannot read the pod: {error}")
    tainted = () if view is None else view.tainted
    if not any(found.name == case.device.name and case.taint in found.taints for found in tainted):
        return EvictionOutcome(result="gone", reason="the device no longer has the taint")
    return None


def evict(api: EvictionRequests, pod: PodRef, *, past_budgets: bool = False) -> EvictionOutcome:
    """``past_budgets``: delete a pod that a PodDisruptionBudget protects."""
    outcome = _evict(partial(create_eviction, api, pod.namespace, pod.name, pod.uid))
    if outcome.result != "refused" or not past_budgets:
        return outcome
    return _evict(partial(api.delete, paths.pod(pod.namespace, pod.name), pod.uid))


def _evict(request: Callable[[], object]) -> EvictionOutcome:
    try:
        request()
    except (NotFoundError, ConflictError) as error:
        return EvictionOutcome(result="gone", reason=str(error))
    except ServerBusyError as error:
        refused = (error.status == 429 and says_budget(error)) or (
            error.status == 500 and "PodDisruptionBudget" in str(error)  # more than one budget selects the pod
        )
        result: EvictionResult = "refused" if refused else "failed"
        return EvictionOutcome(
            result=result, reason=_why(error), retry_after_s=error.retry_after_s, unknown=result == "failed"
        )
    except KubernetesApiError as error:
        return EvictionOutcome(result="failed", reason=str(error), unknown=error.status == 0)
    return EvictionOutcome(result="evicted")


def has_ended(pod: Pod) -> bool:
    return pod.status is not None and pod.status.phase in {"Succeeded", "Failed"}


def _of_pod(pod: Pod, case: PendingEviction) -> EvictionOutcome | None:
    extended = pod.status.extended_resource_claim_status if pod.status is not None else None
    if pod.metadata.uid != case.pod.uid or pod.metadata.deletion_timestamp:
        return EvictionOutcome(result="gone", reason="the pod was replaced or is being deleted")
    if has_ended(pod) or not pod.spec.node_name:
        return EvictionOutcome(result="gone", reason="the pod does not run")
    if extended is None or extended.resource_claim_name != case.claim:
        return EvictionOutcome(result="gone", reason=f"the pod does not have the claim {case.claim}")
    if pod.metadata.annotations.get(NO_EVICTION) == "true":
        return EvictionOutcome(result="opted-out", reason=f"the pod has the annotation {NO_EVICTION}")
    return None


def _why(error: KubernetesApiError) -> str:
    text = causes_text(error)
    return f"{error}: {text}" if text else str(error)


EVICTED: Final = "GpuEviction"
REFUSED: Final = "GpuEvictionRefused"
OPTED_OUT: Final = "GpuEvictionOptedOut"
BRAKED: Final = "GpuEvictionBraked"
RESUMED: Final = "GpuEvictionResumed"
ANNOUNCED: Final = "GpuEvictionAnnounced"


class PodEvents:
    """Events of one thread. ``lease`` is the object of events about the eviction limit."""

    def __init__(self, recorder: Recorder, lease: ObjectReference) -> None:
        self._recorder, self._lease = recorder, lease
        self._braked = False

    def _record_outcome(self, pod: PodRef, result: str, evicted: str, refused: str, opted_out: str) -> None:
        """No event for a deleted pod, nor for failures, which are logged."""
        if result == "evicted":
            self._about(pod, "Normal", EVICTED, evicted)
        elif result == "refused":
            self._about(pod, "Warning", REFUSED, f"Cannot evict the pod, although {refused}. It will be tried again")
        elif result == "opted-out":
            self._about(pod, "Warning", OPTED_OUT, f"Not evicted, {opted_out}")

    def _record_brake(self, is_on: bool, braked: str, resumed: str) -> None:
        """Report a change of the eviction limit."""
        if is_on != self._braked:
            self._braked = is_on
            kind: EventType = "Warning" if is_on else "Normal"
            self._recorder.record(self._lease, kind, BRAKED if is_on else RESUMED, braked if is_on else resumed)

    def _about(self, pod: PodRef, kind: EventType, reason: str, text: str) -> None:
        about = ObjectReference(api_version="v1", kind="Pod", namespace=pod.namespace, name=pod.name, uid=pod.uid)
        self._recorder.record(about, kind, reason, text)
