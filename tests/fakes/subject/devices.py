"""What the driver publishes: plain devices, a shared one, partitions with counters, and a tainted one."""

import itertools
from collections.abc import Collection
from typing import Any

Wire = dict[str, Any]
PLAIN = 34
_seconds = itertools.count()
SINCE = "2026-01-02T03:04:05Z"


def published(driver: str, node: str, node_uid: str, faults: Collection[str], generation: int = 1) -> list[Wire]:
    """The slices of the node's pool: devices, then counters."""
    pool_name = node if "pool-named-like-node" in faults else f"{node}/{driver}"
    count = 3 if "wrong-slice-count" in faults else 2
    pool = {"name": pool_name, "generation": generation, "resourceSliceCount": count}
    return [_slice(driver, node, node_uid, pool, faults, at, content) for at, content in enumerate(_contents(faults))]


def shared_names() -> set[str]:
    return {"shared-0"}


def _contents(faults: Collection[str]) -> list[Wire]:
    if "one-device" in faults:  # no fault: the smallest driver
        return [{"devices": [{"name": "unit-0"}]}, {"devices": []}]
    if "too-many-devices" in faults:
        return [{"devices": [{"name": f"unit-{at}"} for at in range(100)]}, {"devices": [{"name": "last"}]}]
    if "repeated-device-name" in faults:
        return [{"devices": [{"name": "unit-0"}]}, {"devices": [{"name": "unit-0"}]}]
    return [{"devices": _devices(faults)}, {"sharedCounters": [_counter_set(faults)]}]


def _devices(faults: Collection[str]) -> list[Wire]:
    shared = {"name": "shared-0", "allowMultipleAllocations": True, "capacity": {"memory": _memory()}}
    taint = {"key": "conformance.example.com/ill", "value": "1", "effect": "NoExecute", "timeAdded": SINCE}
    if "new-taint-times" in faults:
        taint["timeAdded"] = f"2026-01-02T03:04:{next(_seconds) % 60:02}Z"
    return [
        *({"name": f"unit-{at}"} for at in range(PLAIN - ("restarted" in faults))),
        shared,
        *({"name": f"part-{at}", "consumesCounters": [_use()]} for at in range(2)),
        {"name": "ill-0", "taints": [taint]},
    ]


def _memory() -> Wire:
    return {"value": "8Gi", "requestPolicy": {"default": "1Gi", "validRange": {"min": "1Gi", "step": "1Gi"}}}


def _use() -> Wire:
    return {"counterSet": "card", "counters": {"memory": {"value": "4Gi"}}}


def _counter_set(faults: Collection[str]) -> Wire:
    name = "forgotten" if "missing-counters" in faults else "card"
    return {"name": name, "counters": {"memory": {"value": "8Gi"}}}


def _slice(driver: str, node: str, node_uid: str, pool: Wire, faults: Collection[str], at: int, content: Wire) -> Wire:  # noqa: PLR0917 - all parts of one slice
    owner = {"apiVersion": "v1", "kind": "Node", "name": node, "uid": node_uid, "controller": True}
    metadata: Wire = {"name": f"{at:05x}-{driver}-{node}"}
    if "no-owner" not in faults:
        metadata["ownerReferences"] = [owner]
    spec = {"driver": driver, "pool": pool, "nodeName": node, **content}
    return {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice", "metadata": metadata, "spec": spec}
