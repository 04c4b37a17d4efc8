"""From the cluster's objects to nodes and GPUs. Pure.

A GPU is found by its published forms: the whole one, or partitions, which name the GPU that contains them. A GPU that
publishes nothing (hidden by a policy, ill) is known from the node's GpuNode alone. Only allocated partitions are read
in full: a thousand nodes publish 200,000 of them. Source of names: ``kube/published/names.py``; placements are in
memory slices, as NVML counts them.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from msgspec import Struct, field
from msgspec.structs import replace

from dra_driver.core.model.gpu_node import (
    NO_USAGE,
    GpuNodeStatus,
    NodeGpu,
    ToldForeign,
    ToldIdle,
    ToldOverGrant,
    ToldUsage,
)
from dra_driver.core.model.usage_rules import IdleAction, OverGrantAction
from dra_driver.core.quantity import Quantity
from dra_driver.core.text import gib
from dra_driver.kube.devices import Wire, attribute_of, attribute_text, newest_slices
from dra_driver.kube.published import names
from dra_driver.kubectl.web.gpus import (
    NOWHERE,
    PARTITION,
    SHARE,
    WHOLE,
    GpuPlace,
    GpuRow,
    NodeRow,
    Part,
    SeenFleet,
    Totals,
    place_of,
)

Key = tuple[str, str, str]
_MAX_SLICES: Final = 64


class Grant(Struct, frozen=True, kw_only=True):
    """A device of a claim. ``consumed`` is what a share consumes, empty for whole devices."""

    namespace: str
    claim: str
    pods: Sequence[str]
    consumed: Mapping[str, str]
    admin: bool = False


class _Found(Struct, kw_only=True):
    """One GPU while its slices are read."""

    name: str
    driver: str
    uuid: str
    product: str = ""
    memory: int = 0
    counters: str = ""
    sharing: str = ""
    place: GpuPlace | None = None
    offers: dict[str, None] = field(default_factory=dict)
    taints: dict[str, None] = field(default_factory=dict)
    held: list[tuple[Wire, Sequence[Grant]]] = field(default_factory=list)


def fleet_of(
    slices: Sequence[Wire], nodes: Sequence[Wire], claims: Iterable[Any], told: Mapping[str, GpuNodeStatus]
) -> SeenFleet:
    """The fleet. ``claims`` are rows of ``capacity.claims_of``; ``told`` is what GpuNodes say, by node."""
    grants = _grants(claims)
    newest = newest_slices(slices)
    memory_slices = {key: count for item in newest for key, count in _counter_sets(item["spec"])}
    by_node: dict[str, dict[tuple[str, str], _Found]] = {}
    for item in newest:
        _read_slice(item["spec"], grants, by_node)
    wires = {str(node["metadata"].get("name")): node for node in nodes}
    rows = [
        _node(name, by_node.get(name, {}), memory_slices, told.get(name), wires.get(name), known=bool(wires))
        for name in sorted({*by_node, *told}, key=_natural)
    ]
    return SeenFleet(nodes=tuple(rows), totals=_totals(rows))


def _grants(claims: Iterable[Any]) -> dict[Key, list[Grant]]:
    found: dict[Key, list[Grant]] = {}
    for claim in claims:
        for device in claim.devices:
            found.setdefault((device.driver, device.pool, device.device), []).append(
                Grant(
                    namespace=claim.namespace,
                    claim=claim.name,
                    pods=claim.pods,
                    consumed=device.consumed,
                    admin=device.admin_access,
                )
            )
    return found


def _counter_sets(spec: Wire) -> Iterator[tuple[Key, int]]:
    for entry in spec.get("sharedCounters") or ():
        count = sum(name.startswith("memory-slice-") for name in entry.get("counters") or ())
        yield (spec["driver"], spec["pool"]["name"], entry["name"]), count


def _read_slice(
    spec: Wire, grants: Mapping[Key, Sequence[Grant]], by_node: dict[str, dict[tuple[str, str], _Found]]
) -> None:
    driver, pool = spec["driver"], spec["pool"]["name"]
    for device in spec.get("devices") or ():
        node = device.get("nodeName") or spec.get("nodeName")
        attributes = device.get("attributes") or {}
        uuid, whole = _gpu_of(attributes, driver)
        if not node or not uuid:
            continue
        gpus = by_node.setdefault(node, {})
        found = gpus.get((driver, uuid))
        if found is None:
            name = str(device["name"]).partition("-mig-")[0]
            found = gpus[driver, uuid] = _Found(name=name, driver=driver, uuid=uuid)
        _add(found, device, whole=whole, pool=pool)
        held = grants.get((driver, pool, device["name"]))
        if held:
            found.held.append((device, held))


def _gpu_of(attributes: Wire, driver: str) -> tuple[str, bool]:
    """UUID of the GPU, and whether the device is the whole of it; ("", False) for devices that are no GPUs."""
    kind = attribute_text(attributes, driver, names.TYPE)
    if kind == names.TYPE_MIG:
        return attribute_text(attributes, driver, names.PARENT_UUID), False
    return (attribute_text(attributes, driver, names.UUID), True) if kind == names.TYPE_GPU else ("", False)


def _add(found: _Found, device: Wire, *, whole: bool, pool: str) -> None:
    attributes = device.get("attributes") or {}
    if whole or found.place is None:  # partitions have no links
        found.place = place_of(attributes, found.driver)
    if not found.product:
        found.product = attribute_text(attributes, found.driver, names.PRODUCT_NAME)
    if not found.counters:
        found.counters = f"{pool}\n{next((each['counterSet'] for each in device.get('consumesCounters') or ()), '')}"
    if whole:
        found.name = str(device["name"])
        found.memory = _amount((device.get("capacity") or {}).get(names.MEMORY))
        found.sharing = attribute_text(attributes, found.driver, names.SHARING_STRATEGY)
        found.offers["share" if device.get("allowMultipleAllocations") else "whole"] = None
    else:
        found.offers[attribute_text(attributes, found.driver, names.PROFILE) or "partition"] = None
    for taint in device.get("taints") or ():
        found.taints[f"{taint.get('key')}:{taint.get('effect')}"] = None


def _node(
    name: str,
    found: Mapping[tuple[str, str], _Found],
    counters: Mapping[Key, int],
    told: GpuNodeStatus | None,
    wire: Wire | None,
    *,
    known: bool,
) -> NodeRow:
    said = {gpu.uuid: gpu for gpu in told.gpus} if told else {}
    gpus = [_gpu(name, each, counters, said.get(each.uuid)) for each in found.values()]
    usage = told.usage if told else NO_USAGE
    published = {gpu.uuid for gpu in gpus}
    driver = told.driver_name if told else ""
    gpus += [_unpublished(name, driver, gpu) for uuid, gpu in said.items() if uuid not in published]
    return NodeRow(
        name=name,
        gpus=tuple(
            replace(gpu, found_use=tuple(use_of_gpu(usage, gpu.name)))
            for gpu in sorted(gpus, key=lambda gpu: _natural(gpu.name))
        ),
        found_use=tuple(use_of_node(usage)),
        problem=_node_problem(wire) if wire is not None else "the cluster has no node of this name" if known else "",
        problems=tuple(each.message for each in told.problems) if told else (),
        versions=_versions(told) if told else {},
        policies=tuple((each.name, each.state.value) for each in told.policies) if told else (),
    )


def _gpu(node: str, found: _Found, counters: Mapping[Key, int], told: NodeGpu | None) -> GpuRow:
    pool, _, counter_set = found.counters.partition("\n")
    slices = counters.get((found.driver, pool, counter_set), 0)
    total = found.memory or (_amount({"value": told.memory}) if told and told.memory else 0)
    parts = list(_parts(found, total, slices))
    row = GpuRow(
        node=node,
        name=found.name,
        driver=found.driver,
        uuid=found.uuid,
        product=found.product,
        memory_bytes=total,
        slices=slices,
        parts=tuple(part for part in parts if not part.admin),
        admins=tuple(part for part in parts if part.admin),
        offers=tuple(found.offers),
        sharing=found.sharing,
        place=found.place or NOWHERE,
        taints=tuple(found.taints),
    )
    return _told(row, told) if told else row


def _told(row: GpuRow, told: NodeGpu) -> GpuRow:
    return replace(
        row,
        policy=told.policy,
        waiting=told.waiting or "",
        health=told.health.value,
        causes=told.causes,
        message=told.message or "",
    )


def _unpublished(node: str, driver: str, told: NodeGpu) -> GpuRow:
    memory = _amount({"value": told.memory}) if told.memory else 0
    row = GpuRow(node=node, name=told.name, driver=driver, uuid=told.uuid, product=told.product_name or "")
    return _told(replace(row, memory_bytes=memory), told)


def _parts(found: _Found, total: int, slices: int) -> Iterator[Part]:
    """Parts in the order of their place; shares have no place and stand one after the other."""
    at = 0.0
    for device, grants in found.held:
        whole = _gpu_of(device.get("attributes") or {}, found.driver)[1]
        for grant in sorted(grants, key=lambda each: (each.namespace, each.claim)):
            part = _part(found, device, grant, whole=whole, at=at, total=total, slices=slices)
            at += 0.0 if grant.admin or part.form != SHARE else part.width
            yield part


def _part(found: _Found, device: Wire, grant: Grant, *, whole: bool, at: float, total: int, slices: int) -> Part:
    attributes = device.get("attributes") or {}
    form, start, width = WHOLE, 0.0, 100.0
    memory, label = total, "whole GPU"
    percent = None
    if not whole:
        form, label = PARTITION, attribute_text(attributes, found.driver, names.PROFILE)
        memory = _amount((device.get("capacity") or {}).get(names.MEMORY))
        start, width = _place(attributes, found.driver, slices, memory, total)
    elif grant.consumed:
        form = SHARE
        memory = _amount({"value": grant.consumed.get(names.MEMORY, "0")})
        asked = grant.consumed.get(names.COMPUTE_PERCENT)
        percent = int(asked) if asked and asked.isdigit() and len(asked) < 4 else None
        label = gib(memory) if memory else "share"
        start, width = min(at, 100.0), min(100.0 * memory / total, 100.0) if total else 0.0
    return Part(
        form=form,
        device=str(device["name"]),
        label=label,
        start=round(start, 3),
        width=round(width, 3),
        namespace=grant.namespace,
        claim=grant.claim,
        pods=grant.pods,
        memory_bytes=memory,
        percent=percent,
        admin=grant.admin,
    )


def _place(attributes: Wire, driver: str, slices: int, memory: int, total: int) -> tuple[float, float]:
    start, size = (_int(attributes, name, driver) for name in (names.PLACEMENT_START, names.PLACEMENT_SIZE))
    if slices and size and start is not None and start + size <= slices <= _MAX_SLICES:
        return 100.0 * start / slices, 100.0 * size / slices
    return 0.0, min(100.0, 100.0 * memory / total) if total else 0.0


def _node_problem(node: Wire) -> str:
    if (node.get("metadata") or {}).get("deletionTimestamp"):
        return "being deleted"
    if (node.get("spec") or {}).get("unschedulable"):
        return "cordoned"
    conditions = (node.get("status") or {}).get("conditions") or ()
    ready = next((item.get("status") for item in conditions if item.get("type") == "Ready"), "True")
    return "" if ready == "True" else "not ready"


def _versions(told: GpuNodeStatus) -> dict[str, str]:
    found = {
        "NVIDIA driver": told.driver_version,
        "CUDA": told.cuda_version,
        "Container toolkit": told.toolkit_version,
        "Container runtime": told.container_runtime_version,
        "Kernel": told.kernel_version,
        "Node process": told.node_process_version,
    }
    return {name: value for name, value in found.items() if value}


def _totals(rows: Sequence[NodeRow]) -> Totals:
    gpus = [gpu for row in rows for gpu in row.gpus]
    forms = {form: sum(gpu.used_as == form for gpu in gpus) for form in (WHOLE, PARTITION, SHARE)}
    return Totals(
        nodes=len(rows),
        gpus=len(gpus),
        free=sum(not gpu.parts and not gpu.is_sick for gpu in gpus),
        sick=sum(gpu.is_sick for gpu in gpus),
        **forms,
    )


def _int(attributes: Wire, name: str, driver: str) -> int | None:
    value = attribute_of(attributes, driver, name).get("int")
    return value if isinstance(value, int) else None


def _amount(capacity: Wire | None) -> int:
    try:
        return max(0, Quantity.parse(str((capacity or {}).get("value", "0"))).as_int())
    except ValueError:
        return 0


def _natural(name: str) -> list[tuple[int, int | str]]:
    """``gpu-10`` comes after ``gpu-2``."""
    return [
        (0, int(part)) if part.isdigit() and part.isascii() else (1, part) for part in re.split(r"([0-9]{1,18})", name)
    ]


def use_of_gpu(usage: ToldUsage, gpu: str) -> Iterator[str]:
    """Claims over their grant on ``gpu`` (``gpu-0``), and processes of no claim."""
    yield from (_over_grant(each) for each in usage.over_grant if each.gpu == gpu)
    yield from (_foreign(each) for each in usage.unattributed if each.gpu == gpu)


def use_of_node(usage: ToldUsage) -> Iterator[str]:
    """All of the node, with the names of the GPUs, and idle claims."""
    yield from (f"{each.gpu}: {_over_grant(each)}" for each in usage.over_grant)
    yield from (f"{each.gpu}: {_foreign(each)}" for each in usage.unattributed)
    yield from map(_idle, usage.idle)


def _over_grant(found: ToldOverGrant) -> str:
    ends = f"; a pod is evicted after {found.grace_s} s" if found.action is OverGrantAction.EVICT else ""
    since = f" since {found.since}" if found.since else ""
    return f"claim {found.namespace}/{found.claim} uses {found.used} of {found.granted}{since}{ends}"


def _foreign(found: ToldForeign) -> str:
    count = "1 process belongs" if found.processes == 1 else f"{found.processes} processes belong"
    commands = f" ({', '.join(found.commands)})" if found.commands else ""
    memory = f" with {found.memory}" if found.memory else ""
    return f"{count} to no claim{memory}{commands}, since {found.since}"


def _idle(found: ToldIdle) -> str:
    ends = f"; its pods are evicted after {found.after_min} minutes more" if found.action is IdleAction.RECLAIM else ""
    return f"claim {found.namespace}/{found.claim} is idle since {found.since}{ends}"
