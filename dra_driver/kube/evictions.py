"""Ask the API server to evict one pod, and read its refusal: 429 means that a PodDisruptionBudget does not allow it now
(or an overloaded server), 500 that several budgets select the pod (kubernetes/kubernetes
pkg/registry/core/pod/storage/eviction.go)."""

from collections.abc import Iterator, Mapping
from typing import Final, Protocol

from dra_driver.core.errors import KubernetesApiError
from dra_driver.kube import paths

NO_EVICTION: Final = "gpu.dra-driver.io/no-eviction"  # annotation of a pod; "true" keeps this project from evicting it


class Creator(Protocol):
    """The part of ``rest.RestClient`` that is needed here."""

    def create(self, path: str, body: Mapping[str, object]) -> dict[str, object]: ...


def create_eviction(api: Creator, namespace: str, name: str, uid: str) -> None:
    """Post one Eviction. Raises ConflictError for a later pod of the same name (another UID), NotFoundError for a
    deleted pod, ServerBusyError for 429 and 500, and other errors of ``RestClient``."""
    body = {
        "apiVersion": "policy/v1",
        "kind": "Eviction",
        "metadata": {"name": name, "namespace": namespace},
        "deleteOptions": {"preconditions": {"uid": uid}},
    }
    api.create(paths.eviction(namespace, name), body)


def says_budget(error: KubernetesApiError) -> bool:
    return any(cause.get("reason") == "DisruptionBudget" for cause in _causes(error))


def causes_text(error: KubernetesApiError) -> str:
    """Return the message of the disruption budgets, "" if the answer has none."""
    return "; ".join(str(cause["message"]) for cause in _causes(error) if cause.get("message"))


def _causes(error: KubernetesApiError) -> Iterator[Mapping[str, object]]:
    causes = (error.details or {}).get("causes")
    return (cause for cause in (causes if isinstance(causes, list) else ()) if isinstance(cause, Mapping))
