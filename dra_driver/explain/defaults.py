"""Objects of manifests as the API server would return them: defaults filled in, numbers as quantities.

Owns the defaults of resource.k8s.io/v1 claims (pkg/apis/resource/v1/defaults.go) and the scheduler's view of taint
rules (k8s.io/dynamic-resource-allocation resourceslice/tracker). Objects of a live cluster pass unchanged.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from dra_driver.explain.objects import Wire, spec_of
from dra_driver.kube.state import ClusterState


def completed(state: ClusterState) -> ClusterState:
    """The state with defaults in claims and templates, and the taints of DeviceTaintRules in the slices."""
    return replace(
        state,
        claims=tuple(claim_completed(item) for item in state.claims),
        templates=tuple({**item, "spec": claim_completed(spec_of(item))} for item in state.templates),
        slices=tuple(_tainted(item, state.taint_rules) for item in state.slices) if state.taint_rules else state.slices,
    )


def claim_completed(claim: Wire) -> Wire:
    """The claim with allocation mode, count, operators and quantities as the API server writes them."""
    devices = spec_of(claim).get("devices") or {}
    requests = devices.get("requests") or ()
    done = [_request(item) for item in requests]
    if all(new is old for new, old in zip(done, requests, strict=True)):
        return claim
    return {**claim, "spec": {**spec_of(claim), "devices": {**devices, "requests": done}}}


def _request(request: Wire) -> Wire:
    changed: dict[str, Any] = {}
    if request.get("exactly"):
        way = _way(request["exactly"])
        if way is not request["exactly"]:
            changed["exactly"] = way
    if request.get("firstAvailable"):
        ways = [_way(item) for item in request["firstAvailable"]]
        if any(new is not old for new, old in zip(ways, request["firstAvailable"], strict=True)):
            changed["firstAvailable"] = ways
    return {**request, **changed} if changed else request


def _way(way: Wire) -> Wire:
    changed: dict[str, Any] = {}
    mode = way.get("allocationMode") or "ExactCount"
    if not way.get("allocationMode"):
        changed["allocationMode"] = mode
    if mode == "ExactCount" and way.get("count") is None:
        changed["count"] = 1
    asked = (way.get("capacity") or {}).get("requests") or {}
    if any(not isinstance(value, str) for value in asked.values()):
        changed["capacity"] = {**way["capacity"], "requests": {name: str(value) for name, value in asked.items()}}
    return {**way, **changed} if changed else way


def _tainted(item: Wire, rules: Sequence[Wire]) -> Wire:
    """The slice with the taints of the rules that select some of its devices, after the devices' own."""
    spec = spec_of(item)
    mine = [rule for rule in rules if _selects(rule, spec)]
    if not mine:
        return item
    devices = [_with_taints(device, mine) for device in spec.get("devices") or ()]
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
