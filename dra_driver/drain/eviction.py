"""Asks the API server to evict one pod, as PodDisruptionBudgets allow.

429 means that a budget does not allow it now, 500 that several budgets select the pod (kubernetes/kubernetes
pkg/registry/core/pod/storage/eviction.go). The UID keeps a later pod of the same name from harm.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal, Protocol

from dra_driver.drain.holders import HolderPod
from dra_driver.errors import ConflictError, ForbiddenError, KubernetesApiError, NotFoundError, ServerBusyError
from dra_driver.kube import paths

RETRY_S: Final = 5.0
"""Between two tries of one pod; ``kubectl drain`` waits as long."""


class Evictor(Protocol):
    """The part of ``kube.rest.RestClient`` that is needed here."""

    def create(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class EvictionAnswer:
    """``waits``: not now, try again after ``after_s``; ``refused``: it will not be evicted. ``why`` is a phrase."""

    result: Literal["evicted", "gone", "waits", "refused"]
    why: str = ""
    after_s: float = RETRY_S


def evict(api: Evictor, pod: HolderPod) -> EvictionAnswer:
    """One request. Raises KubernetesApiError when the API server cannot be reached."""
    body = {
        "apiVersion": "policy/v1",
        "kind": "Eviction",
        "metadata": {"name": pod.name, "namespace": pod.namespace},
        "deleteOptions": {"preconditions": {"uid": pod.uid}},
    }
    try:
        api.create(paths.eviction(pod.namespace, pod.name), body)
    except (NotFoundError, ConflictError):
        return EvictionAnswer(result="gone")
    except ForbiddenError:
        return EvictionAnswer(
            result="refused", why=f"this user may not create pods/eviction in namespace {pod.namespace}"
        )
    except ServerBusyError as error:
        return EvictionAnswer(result="waits", why=_why(error), after_s=max(RETRY_S, error.retry_after_s))
    return EvictionAnswer(result="evicted")


def _why(error: KubernetesApiError) -> str:
    causes = (error.details or {}).get("causes") or ()
    texts = [str(cause.get("message")) for cause in causes if isinstance(cause, Mapping) and cause.get("message")]
    return "; ".join(texts) or str(error)
