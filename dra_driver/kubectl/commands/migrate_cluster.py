"""What ``kubectl dra migrate --from-cluster`` reads: ClusterPolicies, ConfigMaps, nodes, quotas and workloads.

Objects that another object owns are left out: changing the owner changes them. A kind that may not be read is named
with the right that is missing, and the others are read.
"""

from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple, Protocol

from dra_driver.core.errors import ForbiddenError, KubernetesApiError, NotFoundError
from dra_driver.kubectl.migrate import InputDocument


class _Kind(NamedTuple):
    """A kind to read. ``optional``: not every cluster serves it."""

    group: str
    version: str
    plural: str
    kind: str
    namespaced: bool = True
    optional: bool = False


KINDS: Final[Sequence[_Kind]] = (
    _Kind("nvidia.com", "v1", "clusterpolicies", "ClusterPolicy", namespaced=False, optional=True),
    _Kind("", "v1", "nodes", "Node", namespaced=False),
    _Kind("", "v1", "configmaps", "ConfigMap"),
    _Kind("", "v1", "resourcequotas", "ResourceQuota"),
    _Kind("", "v1", "limitranges", "LimitRange"),
    _Kind("apps", "v1", "deployments", "Deployment"),
    _Kind("apps", "v1", "statefulsets", "StatefulSet"),
    _Kind("apps", "v1", "daemonsets", "DaemonSet"),
    _Kind("apps", "v1", "replicasets", "ReplicaSet"),
    _Kind("batch", "v1", "cronjobs", "CronJob"),
    _Kind("batch", "v1", "jobs", "Job"),
    _Kind("", "v1", "pods", "Pod"),
)
_MARKS: Final = ("mig-configs", "migStrategy", "timeSlicing", "sharing")


class Lister(Protocol):
    """The part of ``kube.rest.RestClient`` that is needed here."""

    def list(self, path: str, /) -> Any: ...


def cluster_documents(rest: Lister, namespace: str | None, problems: list[str]) -> Iterator[InputDocument]:
    """The objects; rights that are missing are added to ``problems``. Raises KubernetesApiError if nothing answers.

    ``namespace`` is for workloads and quotas; ConfigMaps of the device plugin are read in all namespaces.
    """
    for kind in KINDS:
        where = namespace if kind.namespaced and kind.plural != "configmaps" else None
        for item in _list(rest, kind, where, problems):
            if _matters(kind, item):
                value = {"apiVersion": f"{kind.group}/{kind.version}".lstrip("/"), "kind": kind.kind, **_tidy(item)}
                yield InputDocument(source="cluster", number=1, value=value)


def _list(rest: Lister, kind: _Kind, namespace: str | None, problems: list[str]) -> Sequence[Any]:
    root = f"/apis/{kind.group}/{kind.version}" if kind.group else f"/api/{kind.version}"
    inside = f"/namespaces/{namespace}" if namespace else ""
    try:
        found: Sequence[Any] = rest.list(f"{root}{inside}/{kind.plural}")["items"]
    except NotFoundError as error:
        if not kind.optional:
            problems.append(f"cluster: {kind.plural}: {error}")
        return ()
    except ForbiddenError:
        resource = f"{kind.plural}.{kind.group}" if kind.group else kind.plural
        place = f" in namespace {namespace}" if namespace else " in all namespaces" if kind.namespaced else ""
        problems.append(f"cluster: you may not list {resource}{place}; the right to list them is missing, so they are"
                        " left out")  # fmt: skip
        return ()
    except KubernetesApiError as error:
        if kind.plural == KINDS[1].plural or not kind.optional:
            raise
        problems.append(f"cluster: {kind.plural}: {error}")
        return ()
    return found


def _matters(kind: _Kind, item: Any) -> bool:
    """Objects that nothing owns; of ConfigMaps those that look like configurations; of pods those that go on."""
    if (item.get("metadata") or {}).get("ownerReferences") and kind.kind not in {"ConfigMap", "Node"}:
        return False
    if kind.kind == "ConfigMap":
        return any(mark in str(text) for text in (item.get("data") or {}).values() for mark in _MARKS)
    return kind.kind != "Pod" or (item.get("status") or {}).get("phase") not in {"Succeeded", "Failed"}


def _tidy(item: Any) -> dict[str, Any]:
    """Without what a pod got when it was created: its node, the token that is mounted, its tolerations for the node."""
    spec = item.get("spec") or {}
    if "containers" not in spec:
        return dict(item)
    tokens = {
        str(each.get("name")) for each in spec.get("volumes") or () if "kube-api-access-" in str(each.get("name"))
    }
    kept = {key: value for key, value in spec.items() if key not in {"nodeName", "priority", "preemptionPolicy"}}
    kept["volumes"] = [each for each in spec.get("volumes") or () if each.get("name") not in tokens]
    kept["containers"] = [_untoken(each, tokens) for each in spec["containers"]]
    if "initContainers" in spec:
        kept["initContainers"] = [_untoken(each, tokens) for each in spec["initContainers"]]
    return {**item, "spec": {key: value for key, value in kept.items() if value != []}}


def _untoken(container: Any, tokens: set[str]) -> dict[str, Any]:
    mounts = [each for each in container.get("volumeMounts") or () if each.get("name") not in tokens]
    rest = {key: value for key, value in container.items() if key != "volumeMounts"}
    return {**rest, "volumeMounts": mounts} if mounts else rest
