"""Validation of ResourceSlices: pools, node selection, counters and the number of devices.

Follows kubernetes/kubernetes pkg/apis/resource/validation/validation.go and
pkg/registry/resource/resourceslice/strategy.go of 1.36.2 with default feature gates: list attributes and
node-allocatable mappings are dropped.
"""

from datetime import UTC, datetime
from typing import Any

from dra_driver.sim.apiserver.jsonvalue import Obj, dig, entries, mapping, rfc3339
from dra_driver.sim.apiserver.kind import Review, WriteRules
from dra_driver.sim.apiserver.names import dns_subdomain
from dra_driver.sim.apiserver.problems import (
    StatusCause,
    invalid,
    required,
    too_many,
)
from dra_driver.sim.apiserver.rules.devices import device_problems, node_selector_problems
from dra_driver.sim.apiserver.rules.dra import driver_name, each_unique, label_name, pool_name

MAX_DEVICES = 128
MAX_DEVICES_WITH_TAINTS_OR_COUNTERS = 64
MAX_COUNTER_SETS = 8
MAX_COUNTERS_PER_SET = 32
_LIST_ATTRIBUTES = ("bools", "ints", "strings", "versions")


def _default(obj: Obj) -> None:
    if pool := mapping(obj, "spec", "pool"):
        pool.setdefault("generation", 0)
    for device in entries(obj, "spec", "devices"):
        for taint in entries(device, "taints"):
            taint.setdefault("timeAdded", rfc3339(datetime.now(UTC)))


def _drop_gated(obj: Obj) -> None:
    """Drop fields whose feature gates are off by default in 1.36, silently, as the real server does."""
    for device in entries(obj, "spec", "devices"):
        device.pop("nodeAllocatableResourceMappings", None)
        for attribute in mapping(device, "attributes").values():
            for field in _LIST_ATTRIBUTES:
                attribute.pop(field, None)


def _pool(spec: Obj, path: str) -> list[StatusCause]:
    pool = mapping(spec, "pool")
    problems = pool_name(pool.get("name", ""), f"{path}.name")
    if (count := pool.get("resourceSliceCount", 0)) <= 0:
        problems.append(invalid(f"{path}.resourceSliceCount", count, "must be greater than zero"))
    if (generation := pool.get("generation", 0)) < 0:
        problems.append(invalid(f"{path}.generation", generation, "must be greater than or equal to zero"))
    return problems


def _immutable(spec: Obj, old: Obj) -> list[StatusCause]:
    pairs = (
        ("spec.pool.name", dig(spec, "pool", "name"), dig(old, "pool", "name")),
        ("spec.driver", spec.get("driver"), old.get("driver")),
        ("spec.nodeName", spec.get("nodeName"), old.get("nodeName")),
    )
    return [invalid(path, new, "field is immutable") for path, new, before in pairs if new != before]


def _node_selection(spec: Obj, path: str) -> list[StatusCause]:
    problems: list[StatusCause] = []
    chosen: list[str] = []
    if "nodeName" in spec:
        if spec["nodeName"]:
            chosen.append("`nodeName`")
            problems += [
                invalid(f"{path}.nodeName", spec["nodeName"], text) for text in dns_subdomain(spec["nodeName"])
            ]
        else:
            problems.append(invalid(f"{path}.nodeName", "", "must be either unset or set to a non-empty string"))
    if "nodeSelector" in spec:
        chosen.append("`nodeSelector`")
        problems += node_selector_problems(spec["nodeSelector"], f"{path}.nodeSelector")
        terms = entries(spec, "nodeSelector", "nodeSelectorTerms")
        if len(terms) != 1:
            text = "must have exactly one node selector term"
            problems.append(invalid(f"{path}.nodeSelector.nodeSelectorTerms", terms, text))
    for field in ("allNodes", "perDeviceNodeSelection"):
        if spec.get(field):
            chosen.append(f"`{field}`")
        elif field in spec:
            problems.append(invalid(f"{path}.{field}", False, "must be either unset or set to true"))
    text = "exactly one of `nodeName`, `nodeSelector`, `allNodes`, `perDeviceNodeSelection` is required"
    if not chosen:
        problems.append(required(path, text))
    elif len(chosen) > 1:
        problems.append(invalid(path, f"{{{', '.join(chosen)}}}", f"{text}, but multiple fields are set"))
    return problems


def _counter_set(item: Obj, path: str) -> list[StatusCause]:
    name, counters = item.get("name", ""), mapping(item, "counters")
    problems = label_name(name, f"{path}.name") if name else [required(f"{path}.name")]
    if not counters:
        return [*problems, required(f"{path}.counters")]
    if len(counters) > MAX_COUNTERS_PER_SET:
        return [*problems, too_many(f"{path}.counters", len(counters), MAX_COUNTERS_PER_SET)]
    return problems + [problem for counter in counters for problem in label_name(counter, f"{path}.counters")]


def _is_limited(device: Obj) -> bool:
    """Whether the device has taints or counters, which halve the number of devices per slice."""
    return bool(device.get("taints") or device.get("consumesCounters"))


def _validate(obj: Obj, review: Review) -> list[StatusCause]:
    spec, path = mapping(obj, "spec"), "spec"
    problems = driver_name(spec.get("driver", ""), f"{path}.driver") + _pool(spec, f"{path}.pool")
    old_devices: dict[Any, Obj] = {}
    if review.old is not None:
        problems += _immutable(spec, mapping(review.old, "spec"))
        old_devices = {device.get("name"): device for device in entries(review.old, "spec", "devices")}
    problems += _node_selection(spec, path)
    if "sharedCounters" in spec and "devices" in spec:
        problems.append(invalid(path, "", "only one of `sharedCounters` or `devices` is allowed"))
    devices, per_device = entries(spec, "devices"), bool(spec.get("perDeviceNodeSelection"))
    limit = MAX_DEVICES_WITH_TAINTS_OR_COUNTERS if any(map(_is_limited, devices)) else MAX_DEVICES

    def check(device: Obj, here: str) -> list[StatusCause]:
        return device_problems(device, old_devices.get(device.get("name")), here, per_device=per_device)

    def name_of(item: Obj) -> Any:
        return item.get("name", "")

    problems += each_unique(devices, limit, check, name_of, f"{path}.devices")
    sets = entries(spec, "sharedCounters")
    return problems + each_unique(sets, MAX_COUNTER_SETS, _counter_set, name_of, f"{path}.sharedCounters")


SLICE_RULES = WriteRules(
    default=_default,
    prepare_create=_drop_gated,
    prepare_update=lambda obj, _old, _sub: _drop_gated(obj),
    validate=_validate,
)
