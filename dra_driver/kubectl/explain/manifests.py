"""Extracts from manifests the pods that they would create, directly or through a workload (Deployment, Job, ...)."""

from collections.abc import Iterable, Sequence
from typing import Any, Final

from msgspec.structs import replace

from dra_driver.core.errors import ConfigurationError
from dra_driver.kube.shapes import misfit
from dra_driver.kube.state import ClusterState
from dra_driver.kubectl.explain.subject import Wire, name_of, namespace_of, spec_of

# --- Completes objects from manifests as the API server would return them: defaults filled in, numbers as quantities.
#
# Implements the defaults of resource.k8s.io/v1 claims (pkg/apis/resource/v1/defaults.go) and the effect of
# DeviceTaintRules on slices (k8s.io/dynamic-resource-allocation resourceslice/tracker). Objects read from a live
# cluster pass unchanged.


def with_defaults(state: ClusterState) -> ClusterState:
    """Fills in the defaults of claims and templates, and adds the taints of DeviceTaintRules to the slices."""
    return replace(
        state,
        claims=tuple(claim_with_defaults(item) for item in state.claims),
        templates=tuple({**item, "spec": claim_with_defaults(spec_of(item))} for item in state.templates),
        slices=tuple(_tainted(item, state.taint_rules) for item in state.slices) if state.taint_rules else state.slices,
    )


def claim_with_defaults(claim: Wire) -> Wire:
    """Fills in allocation mode, count and quantities as the API server writes them."""
    devices = spec_of(claim).get("devices") or {}
    requests = devices.get("requests") or ()
    done = [_request(item) for item in requests]
    if all(new is old for new, old in zip(done, requests, strict=True)):
        return claim
    return {**claim, "spec": {**spec_of(claim), "devices": {**devices, "requests": done}}}


def _request(request: Wire) -> Wire:
    changed: dict[str, Any] = {}
    if request.get("exactly"):
        exact = _exact_request(request["exactly"])
        if exact is not request["exactly"]:
            changed["exactly"] = exact
    if request.get("firstAvailable"):
        alternatives = [_exact_request(item) for item in request["firstAvailable"]]
        if any(new is not old for new, old in zip(alternatives, request["firstAvailable"], strict=True)):
            changed["firstAvailable"] = alternatives
    return {**request, **changed} if changed else request


def _exact_request(exact: Wire) -> Wire:
    changed: dict[str, Any] = {}
    mode = exact.get("allocationMode") or "ExactCount"
    if not exact.get("allocationMode"):
        changed["allocationMode"] = mode
    if mode == "ExactCount" and exact.get("count") is None:
        changed["count"] = 1
    wanted = (exact.get("capacity") or {}).get("requests") or {}
    if any(not isinstance(value, str) for value in wanted.values()):
        changed["capacity"] = {**exact["capacity"], "requests": {name: str(value) for name, value in wanted.items()}}
    return {**exact, **changed} if changed else exact


def _tainted(item: Wire, rules: Sequence[Wire]) -> Wire:
    """Adds the taints of the rules that select devices of this slice, after the devices' own taints."""
    spec = spec_of(item)
    matching = [rule for rule in rules if _selects(rule, spec)]
    if not matching:
        return item
    devices = [_with_taints(device, matching) for device in spec.get("devices") or ()]
    return {**item, "spec": {**spec, "devices": devices}}


def _selects(rule: Wire, spec: Wire) -> bool:
    selector = spec_of(rule).get("deviceSelector") or {}
    pool = (spec.get("pool") or {}).get("name")
    return selector.get("driver") in (None, spec.get("driver")) and selector.get("pool") in (None, pool)


def _with_taints(device: Wire, rules: Sequence[Wire]) -> Wire:
    taints = [
        spec_of(rule)["taint"]
        for rule in rules
        if (spec_of(rule).get("deviceSelector") or {}).get("device") in (None, device.get("name"))
    ]
    return {**device, "taints": [*(device.get("taints") or ()), *taints]} if taints else device


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
