"""Completes objects from manifests as the API server would return them: defaults filled in, numbers as quantities.

Implements the defaults of resource.k8s.io/v1 claims (pkg/apis/resource/v1/defaults.go) and the effect of
DeviceTaintRules on slices (k8s.io/dynamic-resource-allocation resourceslice/tracker). Objects read from a live cluster
pass unchanged.
"""

from collections.abc import Sequence
from typing import Any

from msgspec.structs import replace

from dra_driver.kube.state import ClusterState
from dra_driver.kubectl.explain.objects import Wire, spec_of


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
