"""Evicts one pod through the eviction API, after a last look at the pod and at its device."""

from typing import Protocol

from msgspec import Struct

from dra_driver.controller.fleet import slice_view
from dra_driver.controller.pending_evictions import PendingEviction, PodRef
from dra_driver.core.errors import ConflictError, KubernetesApiError, NotFoundError, ServerBusyError
from dra_driver.core.telemetry.controller_metrics import EvictionResult
from dra_driver.kube import paths
from dra_driver.kube.evictions import NO_EVICTION, Creator, causes_text, create_eviction, says_budget
from dra_driver.kube.objects.core import Pod
from dra_driver.kube.shapes import read


class EvictionRequests(Creator, Protocol):
    """The part of ``rest.RestClient`` that an eviction needs."""

    def get(self, path: str) -> dict[str, object]: ...


class EvictionOutcome(Struct, frozen=True, kw_only=True):
    """The result of an attempt. ``retry_after_s`` is the API server's, else 0. ``unknown``: the pod may be evicted."""

    result: EvictionResult
    reason: str = ""
    retry_after_s: float = 0.0
    unknown: bool = False


def look(api: EvictionRequests, case: PendingEviction) -> EvictionOutcome | None:
    """A reason not to evict the pod now, None if it has to go. Raises KubernetesApiError when that cannot be read."""
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
    """Whether the pod has finished."""
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
