"""Events on pods whose claim's use makes them leave: announced, then evicted, or why not."""

from collections.abc import Iterable
from typing import Final

from dra_driver.controller.eviction_api import EvictionOutcome
from dra_driver.controller.eviction_events import BRAKED, EVICTED, OPTED_OUT, REFUSED, RESUMED, Recorder
from dra_driver.controller.special_claims import PodRef
from dra_driver.controller.usage_cases import UsageCase
from dra_driver.kube.events import EventType
from dra_driver.kube.evictions import NO_EVICTION
from dra_driver.kube.types import ObjectReference

ANNOUNCED: Final = "GpuEvictionAnnounced"


class UsageEvictionEvents:
    """Of one thread. ``lease`` is what events about the brake are about."""

    def __init__(self, recorder: Recorder, lease: ObjectReference) -> None:
        self._recorder, self._lease = recorder, lease
        self._braked = False

    def announced(self, case: UsageCase, pods: Iterable[PodRef]) -> None:
        """The pods are to leave if nothing changes."""
        what = "Free memory" if case.kind == "over-grant" else "Use the GPU"
        text = (
            f"{_began(case.why)}. The pod is to be evicted if that lasts for {case.wait_s:.0f} s. {what}, or keep the"
            f' pod with the annotation {NO_EVICTION}: "true"'
        )
        for pod in pods:
            self._about(pod, "Warning", ANNOUNCED, text)

    def outcome(self, case: UsageCase, pod: PodRef, outcome: EvictionOutcome) -> None:
        """What came of a try. Nothing for a pod that is gone, and for failures, which are in the log."""
        if outcome.result == "evicted":
            self._about(pod, "Normal", EVICTED, f"Evicted: {case.why}, {case.wait_s:.0f} s after it was announced")
        elif outcome.result == "refused":
            text = f"Cannot evict the pod, although {case.why}: {outcome.reason}. It will be tried again"
            self._about(pod, "Warning", REFUSED, text)
        elif outcome.result == "opted-out":
            self._about(pod, "Warning", OPTED_OUT, f"Not evicted, although {case.why}: {outcome.reason}")

    def brake(self, is_on: bool, *, waiting: int) -> None:
        """The brake, when it goes on or off."""
        if is_on == self._braked:
            return
        self._braked = is_on
        if not is_on:
            self._recorder.record(self._lease, "Normal", RESUMED, "Pods are evicted again because of their claims' use")
            return
        text = (
            f"No pod is evicted because of its claim's use: {waiting} claims are over their grant or idle, more of them"
            " at once than chance explains. See docs/usage-limits.md"
        )
        self._recorder.record(self._lease, "Warning", BRAKED, text)

    def _about(self, pod: PodRef, kind: EventType, reason: str, text: str) -> None:
        about: ObjectReference = {
            "apiVersion": "v1",
            "kind": "Pod",
            "namespace": pod.namespace,
            "name": pod.name,
            "uid": pod.uid,
        }
        self._recorder.record(about, kind, reason, text)


def _began(text: str) -> str:
    return text[:1].upper() + text[1:]
