"""Extracts from manifests the pods that they would create, directly or through a workload (Deployment, Job, ...)."""

from collections.abc import Iterable
from typing import Any, Final

from dra_driver.core.errors import ConfigurationError
from dra_driver.kube.shapes import misfit
from dra_driver.kubectl.explain.objects import Wire, name_of, namespace_of, spec_of

MAX_PODS: Final = 64
"""Limit of pods from manifests that are tried one after another."""

_TEMPLATES: Final[dict[str, tuple[str, ...]]] = {
    "Deployment": ("template",),
    "ReplicaSet": ("template",),
    "ReplicationController": ("template",),
    "StatefulSet": ("template",),
    "DaemonSet": ("template",),
    "Job": ("template",),
    "CronJob": ("jobTemplate", "spec", "template"),
}
_COUNTS: Final = {"Job": "parallelism", "DaemonSet": "", "CronJob": ""}


def pods_in(documents: Iterable[Wire], namespace: str, where: str) -> list[dict[str, Any]]:
    """Returns the pods of Pods and workloads, named ``WORKLOAD-INDEX``, at most MAX_PODS in total.

    Objects without a namespace get ``namespace``. Raises ConfigurationError on a pod whose fields have wrong types.
    """
    found: list[dict[str, Any]] = []
    for document in documents:
        kind = str(document.get("kind"))
        if kind != "Pod" and kind not in _TEMPLATES:
            continue
        if not isinstance(document.get("metadata") or {}, dict):
            raise ConfigurationError(f"{where}: {kind}: metadata: expected an object")
        inside = _namespaced(document, namespace)
        for pod in [inside] if kind == "Pod" else _of_workload(inside, kind):
            problem = misfit("Pod", pod)
            if problem:
                raise ConfigurationError(f"{where}: {kind} {name_of(document)}: {problem}")
            found.append(pod)
    return found[:MAX_PODS]


def _namespaced(item: Wire, namespace: str) -> dict[str, Any]:
    metadata = item.get("metadata")
    known = metadata if isinstance(metadata, dict) else {}
    return {**item, "metadata": {**known, "namespace": known.get("namespace") or namespace}}


def _of_workload(workload: Wire, kind: str) -> list[dict[str, Any]]:
    template: Any = spec_of(workload)
    for step in _TEMPLATES[kind]:
        template = template.get(step) if isinstance(template, dict) else None
    if not isinstance(template, dict):
        return []
    metadata = template.get("metadata")
    pod = {
        "spec": template.get("spec"),
        "metadata": {**(metadata if isinstance(metadata, dict) else {}), "namespace": namespace_of(workload)},
    }
    count = _count(spec_of(workload), kind)
    return [
        {**pod, "metadata": {**pod["metadata"], "name": f"{name_of(workload)}-{index}"}}  # type: ignore[dict-item]
        for index in range(count)
    ]


def _count(spec: Wire, kind: str) -> int:
    field = _COUNTS.get(kind, "replicas")
    value = spec.get(field) if field else None
    return min(max(value, 0), MAX_PODS) if isinstance(value, int) and not isinstance(value, bool) else 1
