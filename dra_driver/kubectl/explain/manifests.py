"""Extract the pods that manifests create, and add defaults as the API server does.

Sources: the defaults of resource.k8s.io/v1 claims (pkg/apis/resource/v1/defaults.go), and the effect of
DeviceTaintRules on slices (k8s.io/dynamic-resource-allocation resourceslice/tracker).
"""

from collections.abc import Collection, Iterable, Sequence
from typing import Any, Final

from msgspec.structs import replace

from dra_driver.core.errors import ConfigurationError
from dra_driver.kube.devices import unhealthy_by
from dra_driver.kube.shapes import misfit
from dra_driver.kube.state import ClusterState
from dra_driver.kubectl.explain.subject import (
    Wire,
    extended_requests_of,
    is_deleted,
    name_of,
    namespace_of,
    spec_of,
    status_of,
    uid_of,
)


def with_defaults(state: ClusterState) -> ClusterState:
    """Fill in the defaults of claims and templates, and add the taints of DeviceTaintRules to the slices."""
    return replace(
        with_taint_rules(state),
        claims=tuple(claim_with_defaults(item) for item in state.claims),
        templates=tuple({**item, "spec": claim_with_defaults(spec_of(item))} for item in state.templates),
    )


def with_taint_rules(state: ClusterState) -> ClusterState:
    rules = state.taint_rules
    return replace(state, slices=tuple(_tainted(item, rules) for item in state.slices)) if rules else state


def claim_with_defaults(claim: Wire) -> Wire:
    devices = spec_of(claim).get("devices") or {}
    requests = list(devices.get("requests") or ())
    done = [_request(item) for item in requests]
    return (
        claim if done == requests else {**claim, "spec": {**spec_of(claim), "devices": {**devices, "requests": done}}}
    )


def _request(request: Wire) -> Wire:
    changed: dict[str, object] = {}
    if request.get("exactly"):
        changed["exactly"] = _exact_request(request["exactly"])
    if request.get("firstAvailable"):
        changed["firstAvailable"] = [_exact_request(item) for item in request["firstAvailable"]]
    return {**request, **changed}


def _exact_request(exact: Wire) -> Wire:
    found = {**exact, "allocationMode": exact.get("allocationMode") or "ExactCount"}
    if found["allocationMode"] == "ExactCount" and exact.get("count") is None:
        found["count"] = 1
    if wanted := (exact.get("capacity") or {}).get("requests"):
        found["capacity"] = {**exact["capacity"], "requests": {name: str(value) for name, value in wanted.items()}}
    return found


def _tainted(item: Wire, rules: Sequence[Wire]) -> Wire:
    spec = spec_of(item)
    here = {"driver": spec.get("driver"), "pool": (spec.get("pool") or {}).get("name")}
    matching = [rule for rule in rules if _selects(rule, here)]
    if not matching:
        return item
    return {
        **item,
        "spec": {**spec, "devices": [_with_taints(device, matching) for device in spec.get("devices") or ()]},
    }


def _selects(rule: Wire, place: Wire) -> bool:
    selector = spec_of(rule).get("deviceSelector") or {}
    return all(selector.get(key) in (None, value) for key, value in place.items())


def _with_taints(device: Wire, rules: Sequence[Wire]) -> Wire:
    taints = [spec_of(rule)["taint"] for rule in rules if _selects(rule, {"device": device.get("name")})]
    return {**device, "taints": [*(device.get("taints") or ()), *taints]} if taints else device


MAX_PODS: Final = 64
_COUNTS: Final = {
    **dict.fromkeys(("Deployment", "ReplicaSet", "ReplicationController", "StatefulSet"), "replicas"),
    "Job": "parallelism",
    **dict.fromkeys(("DaemonSet", "CronJob"), ""),
}
"""Field with the number of pods, by kind of workload; "" for one pod."""

_STEPS: Final = (("spec", "template"), ("spec", "jobTemplate", "spec", "template"))


def pods_in(documents: Iterable[Wire], namespace: str, where: str) -> list[dict[str, Any]]:
    """Return the pods of Pods and workloads, named ``WORKLOAD-INDEX``, at most MAX_PODS in total.

    Objects without a namespace get ``namespace``. Raises ConfigurationError for a pod with fields of wrong types.
    """
    found: list[dict[str, Any]] = []
    for document in documents:
        kind = str(document.get("kind"))
        if kind != "Pod" and kind not in _COUNTS:
            continue
        metadata = document.get("metadata") or {}
        if not isinstance(metadata, dict):
            raise ConfigurationError(f"{where}: {kind}: metadata: expected an object")
        inside = {**document, "metadata": {**metadata, "namespace": metadata.get("namespace") or namespace}}
        for pod in [inside] if kind == "Pod" else _of_workload(inside, _COUNTS[kind]):
            problem = misfit("Pod", pod)
            if problem:
                raise ConfigurationError(f"{where}: {kind} {name_of(document)}: {problem}")
            found.append(pod)
    return found[:MAX_PODS]


def _of_workload(workload: Wire, count_field: str) -> list[dict[str, Any]]:
    template: object = workload
    for step in _STEPS[workload["kind"] == "CronJob"]:
        template = template.get(step) if isinstance(template, dict) else None
    if not isinstance(template, dict):
        return []
    metadata = template.get("metadata")
    labels = {**(metadata if isinstance(metadata, dict) else {}), "namespace": namespace_of(workload)}
    value = spec_of(workload).get(count_field)
    count = min(max(value, 0), MAX_PODS) if isinstance(value, int) and not isinstance(value, bool) else 1
    owner = {"kind": workload["kind"], "name": name_of(workload), "uid": ""}
    return [
        {
            "spec": template.get("spec"),
            "metadata": {**labels, "name": f"{name_of(workload)}-{index}", "ownerReferences": [owner]},
        }
        for index in range(count)
    ]


def existing_pod(state: ClusterState, wanted: Wire, taken: Collection[str]) -> Wire | None:
    """Return the existing pod of these manifests; for a workload, a pod whose UID is not ``taken``."""
    owners = wanted["metadata"].get("ownerReferences") or ()
    for pod in state.pods:
        if namespace_of(pod) != namespace_of(wanted) or uid_of(pod) in taken:
            continue
        if not owners and name_of(pod) == name_of(wanted):
            return pod
        made = any(_made(owner, each) for owner in pod["metadata"].get("ownerReferences") or () for each in owners)
        if made and not is_deleted(pod) and status_of(pod).get("phase") not in ("Succeeded", "Failed"):
            return pod
    return None


def _made(owner: Wire, workload: Wire) -> bool:
    kind, name = str(workload["kind"]), str(workload["name"])
    if kind == "Deployment":  # its ReplicaSets are named after it, with a hash
        return owner.get("kind") == "ReplicaSet" and str(owner.get("name")).rpartition("-")[0] == name
    return owner.get("kind") == kind and owner.get("name") == name


def has_same_requests(pod: Wire, wanted: Wire) -> bool:
    """Return whether two pods request the same claims and extended resources."""
    asked = [(spec_of(each).get("resourceClaims") or (), extended_requests_of(each, ())) for each in (pod, wanted)]
    return list(asked[0][0]) == list(asked[1][0]) and asked[0][1] == asked[1][1]


def without_unhealthy(item: Wire) -> Wire:
    """Return the slice without unhealthy devices."""
    devices = spec_of(item).get("devices") or ()
    kept = [device for device in devices if not unhealthy_by(device)]
    return item if len(kept) == len(devices) else {**item, "spec": {**spec_of(item), "devices": kept}}


def without_pod(state: ClusterState, pod: Wire) -> ClusterState:
    """Return the state without the pod and the claims generated for it."""
    uid = uid_of(pod)
    return replace(
        state,
        pods=tuple(each for each in state.pods if each is not pod),
        claims=tuple(
            claim
            for claim in state.claims
            if not uid or all(owner.get("uid") != uid for owner in claim["metadata"].get("ownerReferences") or ())
        ),
    )
