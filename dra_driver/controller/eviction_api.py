"""Evict one pod through the eviction API, after a last read of the pod and its device, and record events."""

import random
from typing import Final, Protocol

from msgspec import Struct

from dra_driver.controller.pending_evictions import PendingEviction, PodRef, slice_view
from dra_driver.core.backoff import Backoff
from dra_driver.core.errors import ConflictError, KubernetesApiError, NotFoundError, ServerBusyError
from dra_driver.core.telemetry.controller_metrics import EvictionResult
from dra_driver.kube import paths
from dra_driver.kube.events import EventType
from dra_driver.kube.evictions import NO_EVICTION, Creator, causes_text, create_eviction, says_budget
from dra_driver.kube.objects.core import ObjectReference, Pod
from dra_driver.kube.shapes import read

FIRST_RETRY_S, LONGEST_RETRY_S = 5.0, 120.0
OPTED_OUT_S: Final = 30.0
"""Pause until a pod that has opted out is read again."""


def retries() -> Backoff:
    """The pauses between attempts to evict one pod."""
    return Backoff(first_s=FIRST_RETRY_S, longest_s=LONGEST_RETRY_S, rand=random.random)


class EvictionRequests(Creator, Protocol):
    """Subset of ``rest.RestClient`` that this module uses."""

    def get(self, path: str) -> dict[str, object]: ...


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


def evict(api: EvictionRequests, pod: PodRef) -> EvictionOutcome:
    try:
        create_eviction(api, pod.namespace, pod.name, pod.uid)
    except (NotFoundError, ConflictError) as error:
        return EvictionOutcome(result="gone", reason=str(error))
    except ServerBusyError as error:
        refused = (error.status == 429 and says_budget(error)) or error.status == 500
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


class Recorder(Protocol):
    """Subset of ``kube.events.EventRecorder`` that this module uses."""

    def record(self, about: ObjectReference, kind: EventType, reason: str, message: str) -> None: ...


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
        """The brake, when it goes on or off."""
        if is_on != self._braked:
            self._braked = is_on
            kind: EventType = "Warning" if is_on else "Normal"
            self._recorder.record(self._lease, kind, BRAKED if is_on else RESUMED, braked if is_on else resumed)

    def _about(self, pod: PodRef, kind: EventType, reason: str, text: str) -> None:
        about = ObjectReference(api_version="v1", kind="Pod", namespace=pod.namespace, name=pod.name, uid=pod.uid)
        self._recorder.record(about, kind, reason, text)
