"""Read from slices which devices of a node are linked or near: NVLink islands, PCIe roots, NUMA nodes, rails.

A row is a GPU with all its partitions, or a device of another driver that publishes its place, such as a network card.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import groupby
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from dra_driver.core.document import JsonDocument, camel
from dra_driver.core.model.mig import parent_name
from dra_driver.kube.devices import Wire, attribute_of, attribute_shown, attribute_text, newest_slices, pool_of
from dra_driver.kube.published import names
from dra_driver.kube.state import ClusterState
from dra_driver.kubectl.capacity.holdings import FREE, IN_USE, UNKNOWN, DeviceRow, devices_of

IN_PARTS: Final = "in parts"


class GpuPlace(Struct, frozen=True, kw_only=True):
    """Place of a GPU; ``link`` is the kind of the island's links. Empty where the driver publishes nothing."""

    numa: Sequence[int] = ()
    pcie_root: str = ""
    island: str = ""
    link: str = ""
    clique: str = ""

    @property
    def numa_text(self) -> str:
        return ", ".join(map(str, self.numa))


NOWHERE: Final = GpuPlace()
_MAX_NUMA: Final = 64


def place_of(device: Wire, driver: str, shown: Callable[[Wire, str, str], str] = attribute_text) -> GpuPlace:
    """Return the place of a published device. A driver may publish a list of NUMA nodes (DRAListTypeAttributes)."""
    attributes = device.get("attributes") or {}
    text, value = partial(shown, attributes, driver), attributes.get(names.NUMA_NODE) or {}
    numa = [value["int"]] if "int" in value else value.get("ints") or ()
    place = GpuPlace(
        numa=tuple(number for number in numa if isinstance(number, int))[:_MAX_NUMA],
        pcie_root=text(names.PCIE_ROOT),
        island=text(names.NVLINK_ISLAND),
        link=text(names.NVLINK_TYPE),
        clique=text(names.CLIQUE),
    )
    return place if place != NOWHERE else NOWHERE


class TopologyRow(Struct, frozen=True, kw_only=True, rename=camel):
    """A GPU, or a device of another driver. Texts are "" and ``numa`` is () where the driver publishes nothing.

    ``linked`` are the devices of its NVLink ``island`` on the node, itself included. ``state`` is `FREE`, `IN_USE`,
    `IN_PARTS` (partitions or shares), or `UNKNOWN` when claims could not be read. ``same_root`` are devices of other
    drivers on its PCIe root; ``rails`` is its published rail or, without one, the published rails of ``same_root``.
    """

    node: str
    driver: str
    device: str
    type: str
    product: str
    uuid: str
    pcie_root: str
    numa: tuple[int, ...]
    island: str
    link_type: str
    linked: Sequence[str]
    clique: str
    same_root: Sequence[str] = ()
    rails: Sequence[int] = ()
    state: str
    taints: Sequence[str]
    claims: Sequence[str]


class TopologyList(JsonDocument, frozen=True, kw_only=True):
    gaps: Sequence[str] = ()
    items: Sequence[TopologyRow]


def topology_of(state: ClusterState, *, node: str = "") -> list[TopologyRow]:
    """Return rows sorted by node, PCIe root, driver and device. Raises as `devices_of`."""
    rows = [row for row in devices_of(state, node=node) if row.published and row.node]
    wires = {
        (*pool_of(item), device["name"]): device
        for item in newest_slices(state.slices)
        for device in item["spec"].get("devices") or ()
    }
    units: dict[tuple[str, str, str], list[tuple[DeviceRow, Wire]]] = {}
    for row in rows:
        wire = wires[row.driver, row.pool, row.device]
        unit = row.parent or attribute_shown(wire.get("attributes"), row.driver, names.UUID) or row.device
        units.setdefault((row.driver, row.pool, unit), []).append((row, wire))
    found = [row for unit in units.values() for row in _row(unit)]
    found.sort(key=lambda row: (row.node, row.pcie_root, row.driver, len(row.device), row.device))
    return [row for _, of_node in groupby(found, lambda row: row.node) for row in _near(list(_linked(list(of_node))))]


def _row(unit: Sequence[tuple[DeviceRow, Wire]]) -> Iterator[TopologyRow]:
    """Yield the unit's row, unless its place is unknown."""
    first, wire = next((one for one in unit if not one[0].parent), unit[0])
    place, whole = place_of(wire, first.driver, attribute_shown), not first.parent
    rail = attribute_of(wire.get("attributes"), first.driver, names.RAIL).get("int")
    if first.type not in (names.TYPE_GPU, names.TYPE_MIG) and not place.pcie_root and not place.numa:
        return
    yield TopologyRow(
        node=first.node,
        driver=first.driver,
        device=first.device if whole else parent_name(first.device),
        type=first.type if whole else names.TYPE_GPU,
        product=first.product,
        uuid=attribute_shown(wire.get("attributes"), first.driver, names.UUID) if whole else first.parent,
        pcie_root=place.pcie_root,
        numa=tuple(place.numa),
        island=place.island,
        link_type=place.link,
        linked=(),
        clique=place.clique,
        rails=(rail,) if isinstance(rail, int) else (),
        state=_state([row for row, _ in unit]),
        taints=tuple(dict.fromkeys(taint for row, _ in unit for taint in row.taints)),
        claims=tuple(dict.fromkeys(f"{one.namespace}/{one.claim}" for row, _ in unit for one in row.holders or ())),
    )


def _state(rows: Sequence[DeviceRow]) -> str:
    if any(row.holders is None for row in rows):
        return UNKNOWN
    holders = [(row, one) for row in rows for one in row.holders or () if not one.admin_access]
    if not holders:
        return FREE
    return IN_USE if any(not row.parent and not one.share for row, one in holders) else IN_PARTS


def _linked(rows: Sequence[TopologyRow]) -> Iterator[TopologyRow]:
    members: dict[str, list[str]] = {}
    for row in rows:
        members.setdefault(row.island, []).append(row.device)
    for row in rows:
        yield replace(row, linked=tuple(members[row.island])) if row.island else row


def _near(rows: Sequence[TopologyRow]) -> Iterator[TopologyRow]:
    for root, found in groupby(rows, lambda row: row.pcie_root):
        of_root = list(found)
        for row in of_root:
            others = [each for each in of_root if root and each.driver != row.driver]
            rails = row.rails or sorted({rail for each in others for rail in each.rails})
            yield replace(row, same_root=tuple(each.device for each in others), rails=tuple(rails))
