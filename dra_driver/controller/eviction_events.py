"""Events about evictions: on pods, and about the brake on the controller's Lease."""

from typing import Final, Protocol

from dra_driver.controller.brake import BrakeState
from dra_driver.controller.due import Endangered
from dra_driver.controller.eviction_api import EvictionOutcome
from dra_driver.core.time import rfc3339
from dra_driver.kube.events import EventType
from dra_driver.kube.evictions import NO_EVICTION
from dra_driver.kube.types import ObjectReference

EVICTED: Final = "GpuEviction"
REFUSED: Final = "GpuEvictionRefused"
OPTED_OUT: Final = "GpuEvictionOptedOut"
BRAKED: Final = "GpuEvictionBraked"
RESUMED: Final = "GpuEvictionResumed"


class Recorder(Protocol):
    """The part of ``kube.events.EventRecorder`` that is needed here."""

    def record(self, about: ObjectReference, kind: EventType, reason: str, message: str) -> None: ...


class EvictionEvents:
    """Records events. Of the evictions' thread alone."""

    def __init__(self, recorder: Recorder, lease: ObjectReference) -> None:
        self._recorder, self._lease = recorder, lease
        self._braked = False

    def outcome(self, case: Endangered, outcome: EvictionOutcome) -> None:
        """What came of a try. Nothing for a pod that is gone, and for failures, which are in the log."""
        why = f"device {case.device.name} of pool {case.device.pool} has the taint {case.taint}"
        if outcome.result == "evicted":
            since = rfc3339(case.taint.added)
            text = f"Evicted: {why} since {since}, and the pod came by an extended resource, which cannot tolerate it"
            self._about(case, "Normal", EVICTED, text)
        elif outcome.result == "refused":
            text = f"Cannot evict the pod, although {why}: {outcome.reason}. It will be tried again"
            self._about(case, "Warning", REFUSED, text)
        elif outcome.result == "opted-out":
            text = f"Not evicted, because of the pod's annotation {NO_EVICTION}, although {why}"
            self._about(case, "Warning", OPTED_OUT, text)

    def brake(self, state: BrakeState, *, waiting: int) -> None:
        """The brake, when it goes on or off; ``waiting`` is how many pods it holds back."""
        if state.on == self._braked:
            return
        self._braked = state.on
        if not state.on:
            self._recorder.record(self._lease, "Normal", RESUMED, "Pods with extended resources are evicted again")
            return
        text = (
            f"No pod is evicted: {state.recent} of {state.fleet} GPUs became tainted within a short time, which is more"
            f" than broken hardware explains. {waiting} pods wait. See docs/eviction.md"
        )
        self._recorder.record(self._lease, "Warning", BRAKED, text)

    def _about(self, case: Endangered, kind: EventType, reason: str, text: str) -> None:
        pod = case.pod
        about: ObjectReference = {
            "apiVersion": "v1",
            "kind": "Pod",
            "namespace": pod.namespace,
            "name": pod.name,
            "uid": pod.uid,
        }
        self._recorder.record(about, kind, reason, text)
