"""Events about evictions: on pods, and about the eviction limit on the controller's Lease."""

from collections.abc import Iterable
from typing import Final, Protocol

from dra_driver.controller.brake import BrakeState
from dra_driver.controller.eviction_api import EvictionOutcome
from dra_driver.controller.pending_evictions import PendingEviction, PodRef
from dra_driver.controller.usage_requests import UsageEvictionRequest
from dra_driver.core.time import rfc3339
from dra_driver.kube.events import EventType
from dra_driver.kube.evictions import NO_EVICTION
from dra_driver.kube.objects.core import ObjectReference

EVICTED: Final = "GpuEviction"
REFUSED: Final = "GpuEvictionRefused"
OPTED_OUT: Final = "GpuEvictionOptedOut"
BRAKED: Final = "GpuEvictionBraked"
RESUMED: Final = "GpuEvictionResumed"
ANNOUNCED: Final = "GpuEvictionAnnounced"


class Recorder(Protocol):
    """The part of ``kube.events.EventRecorder`` that is needed here."""

    def record(self, about: ObjectReference, kind: EventType, reason: str, message: str) -> None: ...


class _PodEvents:
    """Events of one thread. ``lease`` is the object of events about the eviction limit."""

    def __init__(self, recorder: Recorder, lease: ObjectReference) -> None:
        self._recorder, self._lease = recorder, lease
        self._braked = False

    def _record_outcome(self, pod: PodRef, result: str, evicted: str, refused: str, opted_out: str) -> None:
        """No event for a deleted pod, and for failures, which are in the log."""
        if result == "evicted":
            self._about(pod, "Normal", EVICTED, evicted)
        elif result == "refused":
            self._about(pod, "Warning", REFUSED, f"Cannot evict the pod, although {refused}. It will be tried again")
        elif result == "opted-out":
            self._about(pod, "Warning", OPTED_OUT, f"Not evicted, {opted_out}")

    def _record_brake(self, is_on: bool, braked: str, resumed: str) -> None:
        """The brake, when it goes on or off."""
        if is_on != self._braked:
            self._braked = is_on
            kind: EventType = "Warning" if is_on else "Normal"
            self._recorder.record(self._lease, kind, BRAKED if is_on else RESUMED, braked if is_on else resumed)

    def _about(self, pod: PodRef, kind: EventType, reason: str, text: str) -> None:
        about = ObjectReference(api_version="v1", kind="Pod", namespace=pod.namespace, name=pod.name, uid=pod.uid)
        self._recorder.record(about, kind, reason, text)


class EvictionEvents(_PodEvents):
    def outcome(self, case: PendingEviction, outcome: EvictionOutcome) -> None:
        why = f"device {case.device.name} of pool {case.device.pool} has the taint {case.taint}"
        since = f"since {rfc3339(case.taint.added)}"
        self._record_outcome(
            case.pod,
            outcome.result,
            f"Evicted: {why} {since}, and the pod came by an extended resource, which cannot tolerate it",
            f"{why}: {outcome.reason}",
            f"because of the pod's annotation {NO_EVICTION}, although {why}",
        )

    def brake(self, state: BrakeState, *, waiting: int) -> None:
        """The brake, when it goes on or off; ``waiting`` is the number of pods that it holds back."""
        braked = (
            f"No pod is evicted: {state.recent} of {state.fleet} GPUs became tainted within a short time, which is more"
            f" than broken hardware explains. {waiting} pods wait. See docs/eviction.md"
        )
        self._record_brake(state.on, braked, "Pods with extended resources are evicted again")


class UsageEvictionEvents(_PodEvents):
    def announced(self, case: UsageEvictionRequest, pods: Iterable[PodRef]) -> None:
        """The pods will be evicted if nothing changes."""
        what = "Free memory" if case.kind == "over-grant" else "Use the GPU"
        text = (
            f"{case.why[:1].upper()}{case.why[1:]}. The pod is to be evicted if that lasts for {case.wait_s:.0f} s."
            f' {what}, or keep the pod with the annotation {NO_EVICTION}: "true"'
        )
        for pod in pods:
            self._about(pod, "Warning", ANNOUNCED, text)

    def outcome(self, case: UsageEvictionRequest, pod: PodRef, outcome: EvictionOutcome) -> None:
        self._record_outcome(
            pod,
            outcome.result,
            f"Evicted: {case.why}, {case.wait_s:.0f} s after it was announced",
            f"{case.why}: {outcome.reason}",
            f"although {case.why}: {outcome.reason}",
        )

    def brake(self, is_on: bool, *, waiting: int) -> None:
        braked = (
            f"No pod is evicted because of its claim's use: {waiting} claims are over their grant or idle, more of them"
            " at once than chance explains. See docs/usage-limits.md"
        )
        self._record_brake(is_on, braked, "Pods are evicted again because of their claims' use")
