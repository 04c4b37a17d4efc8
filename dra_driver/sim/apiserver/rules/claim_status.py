"""Validation of a ResourceClaim's status: allocation, reservations and device status.

Follows validateResourceClaimStatusUpdate of kubernetes/kubernetes pkg/apis/resource/validation/validation.go (1.36.2).
"""

from collections.abc import Callable
from typing import Any

from dra_driver.sim.apiserver.jsonvalue import Obj, copy_json, dig, entries, mapping
from dra_driver.sim.apiserver.problems import (
    StatusCause,
    forbidden_field,
    invalid,
    required,
    too_long,
    too_many,
    unsupported,
)
from dra_driver.sim.apiserver.rules.devices import node_selector_problems
from dra_driver.sim.apiserver.rules.dra import (
    MAX_CONFIGS,
    MAX_OPAQUE_BYTES,
    MAX_REQUESTS,
    binding_conditions,
    configuration,
    driver_name,
    each,
    each_unique,
    json_object,
    label_name,
    lower_uuid,
    pool_name,
)

MAX_RESULTS = 32
MAX_RESERVATIONS = 256
MAX_CONDITIONS = 8
MAX_IPS = 16

ReferenceCheck = Callable[[str, str], list[StatusCause]]


def device_key(item: Obj) -> tuple[Any, ...]:
    """The identity of an allocated device, with its share."""
    return (item.get("driver", ""), item.get("pool", ""), item.get("device", ""), item.get("shareID"))


def shown_device(item: Obj) -> Obj:
    """An allocated device as messages show it."""
    driver, pool, device, share = device_key(item)
    return {"Driver": driver, "Pool": pool, "Device": device, "ShareID": share or ""}


def status_problems(obj: Obj, old: Obj, check_reference: ReferenceCheck) -> list[StatusCause]:
    """The problems of a new status."""
    status, before = mapping(obj, "status"), mapping(old, "status")
    allocation, reserved = status.get("allocation"), entries(status, "reservedFor")
    problems = each_unique(
        reserved, MAX_RESERVATIONS, _consumer, lambda item: item.get("uid", ""), "status.reservedFor"
    )
    allocated = {device_key(item) for item in entries(allocation, "devices", "results")}

    def check_device(item: Obj, path: str) -> list[StatusCause]:
        return _device_status(item, path, allocated)

    problems += each_unique(entries(status, "devices"), -1, check_device, device_key, "status.devices")
    if reserved and allocation is None:
        text = "may not be specified when `allocated` is not set"
        problems.append(forbidden_field("status.reservedFor", text))
    elif dig(obj, "metadata", "deletionTimestamp") and any(
        item not in entries(before, "reservedFor") for item in reserved
    ):
        text = "new entries may not be added while `deallocationRequested` or `deletionTimestamp` are set"
        problems.append(forbidden_field("status.reservedFor", text))
    if allocation is not None and before.get("allocation") is not None:
        if allocation != before["allocation"]:
            problems.append(invalid("status.allocation", allocation, "field is immutable"))
    elif allocation is not None:
        problems += _allocation(allocation, "status.allocation", check_reference)
    return problems


def forget_deallocated(obj: Obj, old: Obj, subresource: str) -> None:
    """Drop status.devices of devices that are no longer allocated (strategy's dropDeallocatedStatusDevices)."""
    if subresource != "status" or not entries(obj, "status", "devices"):
        return
    had = {device_key(item) for item in entries(old, "status", "allocation", "devices", "results")}
    has = {device_key(item) for item in entries(obj, "status", "allocation", "devices", "results")}
    kept = [copy_json(item) for item in obj["status"]["devices"] if device_key(item) not in had - has]
    obj["status"]["devices"] = kept
    if not kept:
        del obj["status"]["devices"]


def _consumer(item: Obj, path: str) -> list[StatusCause]:
    return [required(f"{path}.{field}") for field in ("resource", "name", "uid") if not item.get(field)]


def _allocation(allocation: Obj, path: str, check_reference: ReferenceCheck) -> list[StatusCause]:
    def check_result(item: Obj, here: str) -> list[StatusCause]:
        problems = check_reference(item.get("request", ""), f"{here}.request") + _device(item, here)
        return problems + binding_conditions(item, here)

    def check_config(item: Obj, here: str) -> list[StatusCause]:
        source, problems = item.get("source", ""), []
        if not source:
            problems.append(required(f"{here}.source"))
        elif source not in {"FromClaim", "FromClass"}:
            problems.append(unsupported(f"{here}.source", source, ["FromClaim", "FromClass"]))
        requests, where = entries(item, "requests"), f"{here}.requests"
        problems += each_unique(requests, MAX_REQUESTS, check_reference, lambda name: name, where)
        return problems + configuration(item, here)

    devices = mapping(allocation, "devices")
    problems = each(entries(devices, "results"), MAX_RESULTS, check_result, f"{path}.devices.results")
    problems += each(entries(devices, "config"), 2 * MAX_CONFIGS, check_config, f"{path}.devices.config")
    if "nodeSelector" in allocation:
        problems += node_selector_problems(allocation["nodeSelector"], f"{path}.nodeSelector")
    return problems


def _device(item: Obj, path: str) -> list[StatusCause]:
    return [
        *driver_name(item.get("driver", ""), f"{path}.driver"),
        *pool_name(item.get("pool", ""), f"{path}.pool"),
        *label_name(item.get("device", ""), f"{path}.device"),
        *(lower_uuid(item["shareID"], f"{path}.shareID") if "shareID" in item else []),
    ]


def _device_status(item: Obj, path: str, allocated: set[tuple[Any, ...]]) -> list[StatusCause]:
    problems = _device(item, path)
    if device_key(item) not in allocated:
        problems.append(invalid(path, shown_device(item), "must be an allocated device in the claim"))
    conditions = entries(item, "conditions")
    if len(conditions) > MAX_CONDITIONS:
        problems.append(too_many(f"{path}.conditions", len(conditions), MAX_CONDITIONS))
    problems += [
        problem for at, each_ in enumerate(conditions) for problem in _condition(each_, f"{path}.conditions[{at}]")
    ]
    if item.get("data") is not None:
        problems += json_object(item["data"], f"{path}.data", MAX_OPAQUE_BYTES)
    network, where = mapping(item, "networkData"), f"{path}.networkData"
    for field, limit in (("interfaceName", 256), ("hardwareAddress", 128)):
        if len(network.get(field, "").encode()) > limit:
            problems.append(too_long(f"{where}.{field}", limit))
    if len(entries(network, "ips")) > MAX_IPS:
        problems.append(too_many(f"{where}.ips", len(entries(network, "ips")), MAX_IPS))
    return problems


def _condition(item: Obj, path: str) -> list[StatusCause]:
    """A metav1.Condition."""
    problems = [] if item.get("type") else [required(f"{path}.type")]
    if item.get("status") not in {"True", "False", "Unknown"}:
        problems.append(unsupported(f"{path}.status", item.get("status", ""), ["False", "True", "Unknown"]))
    return problems + [required(f"{path}.{field}") for field in ("lastTransitionTime", "reason") if not item.get(field)]
