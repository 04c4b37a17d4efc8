"""Derive the web UI's nodes and GPUs from the cluster's objects. No I/O.

A whole GPU or its partitions identify a GPU; only the GpuNode has hidden or unhealthy GPUs. Only allocated partitions
are read in full: a thousand nodes publish 200,000. Placements are in memory slices."""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

from msgspec import Struct, field
from msgspec.structs import replace

from dra_driver.core.model.gpu_node import (
    GpuNodeStatus,
    NodeGpu,
    NodePolicy,
    PublishedForm,
    ReportedIdle,
    ReportedOverGrant,
    ReportedUnattributed,
    ReportedUsage,
)
from dra_driver.core.model.mig import parent_name
from dra_driver.core.model.usage_rules import IdleAction, OverGrantAction
from dra_driver.core.quantity import Quantity
from dra_driver.core.text import gib
from dra_driver.kube.devices import (
    Wire,
    attribute_of,
    attribute_text,
    is_health_taint,
    newest_slices,
    pool_of,
    unhealthy_by,
)
from dra_driver.kube.published import names
from dra_driver.kubectl.capacity import MEMORY_KEY, NOWHERE, ClaimDevice, ClaimRow, GpuPlace, node_problem, place_of
from dra_driver.kubectl.usage.device_use import MAX_BYTES
from dra_driver.scheduler.allocation import untolerated

FREE, WHOLE, PARTITION, SHARE = "free", "whole", "partition", "share"


class Part(Struct, frozen=True, kw_only=True):
    """A claim's part of a GPU: ``start`` and ``width`` in percent; ``memory_bytes`` of the grant. 0 is unknown."""

    form: str
    pool: str
    device: str
    label: str
    start: float
    width: float
    namespace: str
    claim: str
    pods: Sequence[str] = ()
    share_id: str = ""
    memory_bytes: int = 0
    percent: int | None = None
    admin: bool = False


class GpuRow(Struct, frozen=True, kw_only=True):
    """A GPU of a node. ``slices`` counts its memory slices of MIG, 0 if not published.

    ``offers`` are the published forms (``whole``, ``3g.40gb``, ``share``); ``health`` is "" if unknown. ``since`` is
    the RFC 3339 time of the oldest health taint, "" if unknown. ``closed`` is the reason that new claims cannot use it,
    or that its claims are unknown; "" otherwise. ``is_unprepared``: its node offers it and reports no prepared claim;
    None without a report.
    """

    node: str
    name: str
    driver: str
    uuid: str = ""
    product: str = ""
    memory_bytes: int = 0
    slices: int = 0
    parts: Sequence[Part] = ()
    admins: Sequence[Part] = ()
    offers: Sequence[str] = ()
    sharing: str = ""
    policy: str = ""
    waiting: str = ""
    health: str = ""
    causes: Sequence[str] = ()
    message: str = ""
    found_use: Sequence[str] = ()
    taints: Sequence[str] = ()
    unhealthy: Sequence[str] = ()
    since: str = ""
    closed: str = ""
    is_unprepared: bool | None = None
    place: GpuPlace = NOWHERE

    @property
    def used_percent(self) -> float | None:
        """None if the size of a part is unknown."""
        return min(100.0, sum(part.width for part in self.parts)) if all(part.width for part in self.parts) else None

    @property
    def used_as(self) -> str:
        return self.parts[0].form if self.parts else FREE

    @property
    def is_unhealthy(self) -> bool:
        """Return whether slices or GpuNode report it: either can be newer. Drains and policies do not count."""
        return self.health == "Unhealthy" or bool(self.unhealthy)

    @property
    def is_free(self) -> bool:
        return not (self.parts or self.is_unhealthy or self.closed)


class NodeRow(Struct, frozen=True, kw_only=True):
    """A node with its GPUs. ``problem`` is the reason that it rejects ordinary pods, or "". ``pool`` is the node pool
    of a cloud provider's or Karpenter's label, or ""."""

    name: str
    gpus: Sequence[GpuRow]
    pool: str = ""
    problem: str = ""
    problems: Sequence[str] = ()
    found_use: Sequence[str] = ()
    versions: Mapping[str, str] = field(default_factory=dict)
    policies: Sequence[NodePolicy] = ()

    @property
    def model(self) -> str:
        return ", ".join(sorted({gpu.product for gpu in self.gpus if gpu.product})) or "GPU"

    @property
    def faults(self) -> int:
        return sum(gpu.is_unhealthy for gpu in self.gpus)

    @property
    def is_unhealthy(self) -> bool:
        return bool(self.problem or self.problems) or any(gpu.is_unhealthy for gpu in self.gpus)


class Totals(Struct, frozen=True, kw_only=True):
    """GPUs by form of their claims. ``held`` is the sum of their allocated parts in GPUs, without ``held_unknown`` GPUs
    with a part of unknown size. Unhealthy GPUs are counted only as such, and never as free."""

    nodes: int = 0
    gpus: int = 0
    free: int = 0
    whole: int = 0
    partition: int = 0
    share: int = 0
    unhealthy: int = 0
    held: float = 0.0
    held_unknown: int = 0


class SeenFleet(Struct, frozen=True, kw_only=True):
    nodes: Sequence[NodeRow] = ()
    totals: Totals = Totals()

    @property
    def unprepared(self) -> Mapping[str, int] | None:
        """Healthy GPUs by model that their nodes offer and report without a prepared claim: no more can be free. None
        if a node does not report."""
        gpus = [gpu for row in self.nodes if not row.problem for gpu in row.gpus if not gpu.is_unhealthy]
        if any(gpu.is_unprepared is None for gpu in gpus):
            return None
        return Counter(gpu.product or "GPU" for gpu in gpus if gpu.is_unprepared and not gpu.parts)

    def node(self, name: str) -> NodeRow | None:
        return next((node for node in self.nodes if node.name == name), None)

    def gpu(self, node: str, name: str) -> GpuRow | None:
        found = self.node(node)
        return next((gpu for gpu in found.gpus if gpu.name == name), None) if found else None


class LinkedGpus(Struct, frozen=True, kw_only=True):
    """GPUs of one node that NVLink connects; ``kind`` describes the links."""

    kind: str
    gpus: Sequence[GpuRow]


class NearGpus(Struct, frozen=True, kw_only=True):
    """GPUs of one node with one NUMA node and PCIe root; both are "" if unpublished."""

    numa: str
    pcie_root: str
    gpus: Sequence[GpuRow]


def islands_of(node: NodeRow) -> list[LinkedGpus]:
    found: dict[str, list[GpuRow]] = {}
    for gpu in node.gpus:
        if gpu.place.island:
            found.setdefault(gpu.place.island, []).append(gpu)
    return [LinkedGpus(kind=_kind(gpus), gpus=gpus) for gpus in found.values()]


def island_of(gpu: GpuRow, fleet: SeenFleet) -> LinkedGpus | None:
    node = fleet.node(gpu.node)
    found = islands_of(node) if node and gpu.place.island else ()
    return next((each for each in found if each.gpus[0].place.island == gpu.place.island), None)


def spots_of(node: NodeRow) -> list[NearGpus]:
    """Return GPUs by NUMA node and PCIe root; none if both are unpublished."""
    found: dict[tuple[str, str], list[GpuRow]] = {}
    for gpu in node.gpus:
        found.setdefault((gpu.place.numa_text, gpu.place.pcie_root), []).append(gpu)
    spots = [NearGpus(numa=numa, pcie_root=root, gpus=gpus) for (numa, root), gpus in sorted(found.items())]
    return spots if any(spot.numa or spot.pcie_root for spot in spots) else []


class Layout(Struct, frozen=True, kw_only=True):
    """Nodes whose GPUs have the same model, links and places; ``islands`` and ``spots`` belong to the first node."""

    model: str
    nodes: Sequence[NodeRow]
    islands: Sequence[LinkedGpus]
    spots: Sequence[NearGpus]


def layouts_of(nodes: Iterable[NodeRow]) -> list[Layout]:
    """Return the distinct layouts, the most frequent first; nodes without published places last."""
    found: dict[object, list[NodeRow]] = {}
    for node in nodes:
        numbers: dict[str, int] = {}  # islands have a unique name on each node
        places = tuple(
            (gpu.name, gpu.place.numa, gpu.place.pcie_root, gpu.place.link,
             numbers.setdefault(gpu.place.island, len(numbers)) if gpu.place.island else None)
            for gpu in node.gpus
        )  # fmt: skip
        found.setdefault((node.model, places), []).append(node)
    layouts = [
        Layout(model=each[0].model, nodes=each, islands=islands_of(each[0]), spots=spots_of(each[0]))
        for each in found.values()
    ]
    return sorted(layouts, key=lambda each: (not (each.islands or each.spots), -len(each.nodes)))


def cliques_of(fleet: SeenFleet) -> dict[str, list[GpuRow]]:
    """Return the GPUs of each clique of an NVLink fabric, by name of the clique. It can span nodes."""
    found: dict[str, list[GpuRow]] = {}
    for gpu in (gpu for node in fleet.nodes for gpu in node.gpus if gpu.place.clique):
        found.setdefault(gpu.place.clique, []).append(gpu)
    return dict(sorted(found.items()))


def _kind(gpus: Sequence[GpuRow]) -> str:
    link = gpus[0].place.link
    if link == "direct":
        return "pair" if len(gpus) == 2 else "direct links"
    return "NVSwitch" if link == "switch" else link or "linked"


Key = tuple[str, str, str]
Grants = Mapping[Key, Sequence[tuple[ClaimRow, ClaimDevice]]]
"""Claims with their allocated device, by driver, pool and device."""
Held = list[tuple[Wire, Sequence[tuple[ClaimRow, ClaimDevice]]]]
Strays = dict[Key, Held]
"""Grants of unpublished devices, by node, driver and GPU."""
_MAX_SLICES: Final = 64
_POOL_LABELS: Final = (
    "cloud.google.com/gke-nodepool",
    "eks.amazonaws.com/nodegroup",
    "kubernetes.azure.com/agentpool",
    "karpenter.sh/nodepool",
)
_PROBLEMS: Final = {"deleting": "being deleted", "not-ready": "not ready"}


class _Found(Struct, kw_only=True):
    """Data of a GPU collected from slices. ``counters`` is its counter set."""

    name: str
    driver: str
    uuid: str
    product: str = ""
    memory: int = 0
    counters: Key | None = None
    sharing: str = ""
    place: GpuPlace | None = None
    open: bool = False  # a device of it can be allocated
    offers: dict[str, None] = field(default_factory=dict)
    taints: dict[str, None] = field(default_factory=dict)
    unhealthy: dict[str, None] = field(default_factory=dict)
    since: str = ""
    held: Held = field(default_factory=list)


def fleet_of(
    slices: Sequence[Wire],
    nodes: Sequence[Wire],
    claims: Iterable[ClaimRow],
    statuses: Mapping[str, GpuNodeStatus],
    unknown: str = "",
) -> SeenFleet:
    """Return the nodes with their GPUs. ``claims`` are rows of ``capacity.claims_of``; ``statuses`` has GpuNode
    statuses by node. ``unknown`` is the reason that claims are incomplete."""
    grants: dict[Key, list[tuple[ClaimRow, ClaimDevice]]] = {}
    for claim in claims:
        for device in claim.devices:
            grants.setdefault((device.driver, device.pool, device.device), []).append((claim, device))
    memory_slices: dict[Key, int] = {}
    by_node: dict[str, dict[tuple[str, str], _Found]] = {}
    newest = newest_slices(slices)
    seen = Counter(map(pool_of, newest))
    for item in newest:
        spec = item["spec"]
        for entry in spec.get("sharedCounters") or ():
            count = sum(name.startswith("memory-slice-") for name in entry.get("counters") or ())
            memory_slices[spec["driver"], spec["pool"]["name"], entry["name"]] = count
        _read_slice(spec, grants, by_node, whole_pool=seen[pool_of(item)] == spec["pool"].get("resourceSliceCount"))
    strays: Strays = {}
    for claim, device in (each for held in grants.values() for each in held):
        gpu = (device.node, device.driver, parent_name(device.device))
        strays.setdefault(gpu, []).append(({"name": device.device}, [(claim, device)]))
    wires = {str(node["metadata"].get("name")): node for node in nodes}
    rows = []
    for name in sorted({*by_node, *statuses}, key=natural):
        problem = "this node does not exist" if wires and name not in wires else ""
        if name in wires:
            problem = node_problem(wires[name])
        problem = _PROBLEMS.get(problem, problem)
        closed = unknown or (problem and f"no claim, node {problem}")
        row = _node(
            name, by_node.get(name, {}), memory_slices, statuses.get(name, _NO_STATUS), strays=strays, closed=closed
        )
        rows.append(replace(row, problem=problem, pool=_pool_of(wires.get(name, {}))))
    return SeenFleet(nodes=tuple(rows), totals=_totals(rows))


def _pool_of(node: Wire) -> str:
    labels = (node.get("metadata") or {}).get("labels") or {}
    return next((str(labels[name]) for name in _POOL_LABELS if labels.get(name)), "")


def _read_slice(
    spec: Wire,
    grants: dict[Key, list[tuple[ClaimRow, ClaimDevice]]],
    by_node: dict[str, dict[tuple[str, str], _Found]],
    *,
    whole_pool: bool,
) -> None:
    driver, pool = spec["driver"], spec["pool"]["name"]
    for device in spec.get("devices") or ():
        node = device.get("nodeName") or spec.get("nodeName")
        uuid, whole = _gpu_of(device.get("attributes") or {}, driver)
        if not node or not uuid:
            continue
        gpus = by_node.setdefault(node, {})
        found = gpus.get((driver, uuid))
        if found is None:
            found = gpus[driver, uuid] = _Found(name=parent_name(device["name"]), driver=driver, uuid=uuid)
        _add(found, device, whole=whole, pool=pool)
        found.open = found.open or (whole_pool and untolerated(device.get("taints") or (), ()) is None)
        if held := grants.pop((driver, pool, device["name"]), None):
            found.held.append((device, held))


def _gpu_of(attributes: Wire, driver: str) -> tuple[str, bool]:
    """Return the UUID of the GPU, and whether the device is the whole GPU; ("", False) for other devices."""
    kind = attribute_text(attributes, driver, names.TYPE)
    if kind == names.TYPE_MIG:
        return attribute_text(attributes, driver, names.PARENT_UUID), False
    return (attribute_text(attributes, driver, names.UUID), True) if kind == names.TYPE_GPU else ("", False)


def _add(found: _Found, device: Wire, *, whole: bool, pool: str) -> None:
    attributes = device.get("attributes") or {}
    if whole or found.place is None:  # partitions have no links
        found.place = place_of(device, found.driver)
    if not found.product:
        found.product = attribute_text(attributes, found.driver, names.PRODUCT_NAME)
    if found.counters is None and (consumed := device.get("consumesCounters")):
        found.counters = (found.driver, pool, consumed[0]["counterSet"])
    if whole:
        found.name = str(device["name"])
        found.memory = _published_memory(device)
        found.sharing = attribute_text(attributes, found.driver, names.SHARING_STRATEGY)
        found.offers["share" if device.get("allowMultipleAllocations") else "whole"] = None
    else:
        found.offers[attribute_text(attributes, found.driver, names.PROFILE) or "partition"] = None
    found.unhealthy |= dict.fromkeys(unhealthy_by(device))
    for taint in device.get("taints") or ():
        found.taints[f"{taint.get('key')}:{taint.get('effect')}"] = None
        added = taint.get("timeAdded")
        if isinstance(added, str) and is_health_taint(taint.get("key"), taint.get("effect")):
            found.since = min(found.since or added, added)


_NO_STATUS: Final = GpuNodeStatus(driver_name="")


def _node(
    name: str,
    found: Mapping[tuple[str, str], _Found],
    counters: Mapping[Key, int],
    status: GpuNodeStatus,
    *,
    strays: Strays,
    closed: str,
) -> NodeRow:
    reported = {gpu.uuid: gpu for gpu in status.gpus}
    published = {each.uuid for each in found.values()}
    hidden = (each for each in status.gpus if each.uuid not in published)
    unpublished = [_Found(name=each.name, driver=status.driver_name, uuid=each.uuid) for each in hidden]
    gpus, taken = [], set[str]()
    for each in sorted((*found.values(), *unpublished), key=lambda each: each.driver != status.driver_name):
        each.held += strays.get((name, each.driver, each.name), ())
        row = _with_report(_gpu(name, each, counters, reported.get(each.uuid)), reported.get(each.uuid))
        # Names are unique only within a pool; the page of a GPU needs a unique name.
        own = f"{row.name} {row.uuid}" if row.name in taken else row.name
        taken.add(own)
        gpus.append(replace(row, name=own, closed=closed or row.closed))
    versions = {
        "NVIDIA driver": status.driver_version,
        "CUDA": status.cuda_version,
        "Container toolkit": status.toolkit_version,
        "Container runtime": status.container_runtime_version,
        "Kernel": status.kernel_version,
        "Node process": status.node_process_version,
    }
    return NodeRow(
        name=name,
        gpus=tuple(
            replace(gpu, found_use=tuple(use_of_gpu(status.usage, gpu.name)))
            for gpu in sorted(gpus, key=lambda gpu: natural(gpu.name))
        ),
        found_use=tuple(use_of_node(status.usage)),
        problems=tuple(each.message for each in status.problems),
        versions={name: value for name, value in versions.items() if value},
        policies=status.policies,
    )


def _gpu(node: str, found: _Found, counters: Mapping[Key, int], reported: NodeGpu | None) -> GpuRow:
    slices = counters.get(found.counters, 0) if found.counters else 0
    total = found.memory or (_bytes(reported.memory) if reported else 0)
    parts = list(_parts(found, total, slices))
    return GpuRow(
        node=node,
        name=found.name,
        driver=found.driver,
        uuid=found.uuid,
        product=found.product or (reported.product_name if reported else None) or "",
        memory_bytes=total,
        slices=slices,
        parts=tuple(part for part in parts if not part.admin),
        admins=tuple(part for part in parts if part.admin),
        offers=tuple(found.offers),
        sharing=found.sharing,
        place=found.place or NOWHERE,
        taints=tuple(found.taints),
        unhealthy=tuple(found.unhealthy),
        since=found.since,
        closed=_closed(found, reported),
    )


def _closed(found: _Found, reported: NodeGpu | None) -> str:
    if not found.offers:
        is_used = reported and reported.used_as is not PublishedForm.FREE
        return f"{reported.used_as}, according to its node" if reported and is_used else "no claim, not published"
    if found.open:
        return ""
    return f"no claim, tainted ({', '.join(found.taints)})" if found.taints else "no claim, its pool is incomplete"


def _with_report(row: GpuRow, reported: NodeGpu | None) -> GpuRow:
    if reported is None:
        return row
    health, message = reported.health.value, reported.message or ""
    return replace(
        row,
        policy=reported.policy,
        waiting=reported.waiting or "",
        health=health,
        causes=reported.causes,
        message=message,
        is_unprepared=bool(reported.offered_as) and reported.used_as is PublishedForm.FREE,
    )


def _parts(found: _Found, total: int, slices: int) -> Iterator[Part]:
    """Yield parts in the order of their placement; shares follow one another."""
    at = 0.0
    for device, grants in found.held:
        for claim, grant in sorted(grants, key=lambda each: (each[0].namespace, each[0].name)):
            part = _part(found, device, claim, grant, at=at, total=total, slices=slices)
            at += 0.0 if part.admin or part.form != SHARE else part.width
            yield part


def _part(
    found: _Found, device: Wire, claim: ClaimRow, grant: ClaimDevice, *, at: float, total: int, slices: int
) -> Part:
    attributes = device.get("attributes") or {}
    form, start, width = WHOLE, 0.0, 100.0
    memory, label, percent = total, "whole GPU", None
    if not _gpu_of(attributes, found.driver)[1] and device["name"] != found.name:
        form, label = PARTITION, attribute_text(attributes, found.driver, names.PROFILE) or str(device["name"])
        memory = _published_memory(device)
        start, width = _place(attributes, found.driver, slices, memory, total)
    elif grant.consumed:
        form = SHARE
        memory = _bytes(str(grant.consumed.get(MEMORY_KEY) or ""))
        asked = grant.consumed.get(names.COMPUTE_PERCENT)
        percent = asked if isinstance(asked, int) and 0 <= asked < 1000 else None
        label = gib(memory) if memory else "share"
        start, width = min(at, 100.0), min(max(100.0 * memory / total, 0.001 * bool(memory)), 100.0) if total else 0.0
    return Part(
        form=form,
        pool=grant.pool,
        device=str(device["name"]),
        label=label,
        start=round(start, 3),
        width=round(width, 3),
        namespace=claim.namespace,
        claim=claim.name,
        pods=claim.pods,
        share_id=grant.share_id,
        memory_bytes=memory,
        percent=percent,
        admin=grant.admin_access,
    )


def _place(attributes: Wire, driver: str, slices: int, memory: int, total: int) -> tuple[float, float]:
    values = (attribute_of(attributes, driver, name) for name in (names.PLACEMENT_START, names.PLACEMENT_SIZE))
    start, size = (value.get("int") for value in values)
    if size and size > 0 and start is not None and start >= 0 and start + size <= slices <= _MAX_SLICES:
        return 100.0 * start / slices, 100.0 * size / slices
    return 0.0, min(100.0, 100.0 * memory / total) if total else 0.0


def _totals(rows: Sequence[NodeRow]) -> Totals:
    gpus = [gpu for row in rows for gpu in row.gpus]
    forms = {form: sum(gpu.used_as == form for gpu in gpus) for form in (WHOLE, PARTITION, SHARE)}
    return Totals(
        nodes=len(rows),
        gpus=len(gpus),
        free=sum(gpu.is_free for gpu in gpus),
        unhealthy=sum(gpu.is_unhealthy for gpu in gpus),
        held=sum(gpu.used_percent or 0.0 for gpu in gpus) / 100,
        held_unknown=sum(gpu.used_percent is None for gpu in gpus),
        **forms,
    )


def _published_memory(device: Wire) -> int:
    return _bytes(((device.get("capacity") or {}).get(names.MEMORY) or {}).get("value"))


def _bytes(quantity: str | None) -> int:
    """Return the bytes; 0 for an invalid, negative or excessive quantity."""
    try:
        found = Quantity.parse(str(quantity or "0")).as_int()
    except ValueError:
        return 0
    return found if 0 < found <= MAX_BYTES else 0


def natural(name: str) -> list[tuple[int, int | str]]:
    """Return a sort key: ``gpu-10`` comes after ``gpu-2``."""
    parts = re.split(r"([0-9]{1,18})", name)
    return [(0, int(part)) if part.isdigit() and part.isascii() else (1, part) for part in parts]


def use_of_gpu(usage: ReportedUsage, gpu: str) -> Iterator[str]:
    yield from (_sentence(each) for each in _of_gpus(usage) if each.gpu == gpu)


def use_of_node(usage: ReportedUsage) -> Iterator[str]:
    yield from (f"{each.gpu}: {_sentence(each)}" for each in _of_gpus(usage))
    yield from map(_sentence, usage.idle)


def _of_gpus(usage: ReportedUsage) -> Sequence[ReportedOverGrant | ReportedUnattributed]:
    return *usage.over_grant, *usage.unattributed


def _sentence(found: ReportedOverGrant | ReportedUnattributed | ReportedIdle) -> str:
    if isinstance(found, ReportedOverGrant):
        ends = f"; a pod will be evicted after {found.grace_s} s" if found.action is OverGrantAction.EVICT else ""
        since, amount = f" since {_minute(found.since)}" if found.since else "", [_gib(found.used), _gib(found.granted)]
        return f"claim {found.namespace}/{found.claim} uses {' of '.join(amount)}{since}{ends}"
    if isinstance(found, ReportedUnattributed):
        count = "1 process belongs" if found.processes == 1 else f"{found.processes} processes belong"
        commands = f" ({', '.join(found.commands)})" if found.commands else ""
        memory = f" with {_gib(found.memory)}" if found.memory else ""
        return f"{count} to no claim{memory}{commands}, since {_minute(found.since)}"
    ends = (
        f"; its pods will be evicted after {found.after_min} more minutes" if found.action is IdleAction.RECLAIM else ""
    )
    return f"claim {found.namespace}/{found.claim} has been idle since {_minute(found.since)}{ends}"


def _minute(time: str) -> str:
    return f"{time[:16].replace('T', ' ')} UTC"


def _gib(quantity: str) -> str:
    return gib(_bytes(quantity)) if _bytes(quantity) else quantity
