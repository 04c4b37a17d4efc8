"""NVLink islands: groups of a node's GPUs in which each reaches each other by NVLink, and the order that keeps them
whole.

Any two GPUs with equal ``nvlinkIsland`` are linked directly, or by the same NVSwitches; chains and meshes are divided
into such groups. An island's name is its lowest UUID: unique over nodes, and the same after a reboot.
"""

from collections.abc import Iterable, Mapping, Sequence
from itertools import combinations
from types import MappingProxyType
from typing import Final

from msgspec import Struct

from dra_driver.core.model.gpu import NO_LINKS, Gpu
from dra_driver.core.model.ids import GpuUuid

DIRECT: Final = "direct"
SWITCH: Final = "switch"


class Island(Struct, frozen=True, kw_only=True):
    """``members`` are two or more, sorted by UUID. ``kind`` is `DIRECT` (a bridge pair has two members) or `SWITCH`."""

    members: tuple[GpuUuid, ...]
    kind: str

    @property
    def name(self) -> str:
        return self.members[0]


Islands = Mapping[GpuUuid, Island]
Links = Mapping[GpuUuid, Mapping[GpuUuid, int]]
"""Return the linked GPUs of each GPU with the number of links; the same from both ends."""
NO_ISLANDS: Final[Islands] = MappingProxyType({})


def islands_of(gpus: Sequence[Gpu]) -> Islands:
    if all(gpu.nvlinks is NO_LINKS or not (gpu.nvlinks.peers or gpu.nvlinks.switch_links) for gpu in gpus):
        return NO_ISLANDS
    found = [*_switched(gpus), *_direct([gpu for gpu in gpus if not gpu.nvlinks.switch_links])]
    return {member: island for island in found for member in island.members}


def in_order(gpus: Iterable[Gpu], islands: Islands) -> list[Gpu]:
    """The GPUs in the order in which the scheduler should try them: those in no island, then islands, small ones first,
    each whole. So a claim for one GPU breaks an island only when no other GPU is free, and the next such claim takes
    the rest of it."""
    found = sorted(gpus, key=lambda gpu: gpu.minor)
    first = {island.name: gpu.minor for gpu in reversed(found) if (island := islands.get(gpu.uuid)) is not None}

    def place(gpu: Gpu) -> tuple[int, int]:
        island = islands.get(gpu.uuid)
        return (0, 0) if island is None else (len(island.members), first[island.name])

    return sorted(found, key=place)  # stable


def _switched(gpus: Iterable[Gpu]) -> Iterable[Island]:
    """One per fabric: GPUs of one node on NVSwitches are in one, unless their cliques say otherwise."""
    fabrics: dict[str, list[GpuUuid]] = {}
    for gpu in gpus:
        if gpu.nvlinks.switch_links:
            fabrics.setdefault(gpu.nvlinks.clique or "", []).append(gpu.uuid)
    return [Island(members=tuple(sorted(one)), kind=SWITCH) for one in fabrics.values() if len(one) > 1]


def _direct(gpus: Sequence[Gpu]) -> Iterable[Island]:
    links = _links(gpus)
    while links:
        groups = {_group(one, links) for one in links}
        best = min(groups, key=lambda group: (-len(group), -_links_in(group, links), group))
        yield Island(members=best, kind=DIRECT)
        left = links.keys() - set(best)
        links = {one: found for one in left if (found := {at: n for at, n in links[one].items() if at in left})}


def _links(gpus: Sequence[Gpu]) -> Links:
    """A link counts if one end reports it."""
    by_address = {gpu.pci_bus_id: gpu.uuid for gpu in gpus if gpu.pci_bus_id is not None}
    found: dict[GpuUuid, dict[GpuUuid, int]] = {}
    for gpu in gpus:
        for peer in gpu.nvlinks.peers:
            other = by_address.get(peer.pci_bus_id, gpu.uuid)
            if other != gpu.uuid:
                for one, at in ((gpu.uuid, other), (other, gpu.uuid)):
                    known = found.setdefault(one, {})
                    known[at] = max(known.get(at, 0), peer.links)
    return found


def _group(first: GpuUuid, links: Links) -> tuple[GpuUuid, ...]:
    """``first`` and GPUs that are linked with all others: the next one leaves the most to choose from, then has the
    most links."""
    group, fitting = [first], set(links[first])
    while fitting:
        one = min(fitting, key=lambda one: (-len(fitting & links[one].keys()), -_to(one, group, links), one))
        group.append(one)
        fitting &= links[one].keys()
    return tuple(sorted(group))


def _to(one: GpuUuid, group: Iterable[GpuUuid], links: Links) -> int:
    return sum(links[one][other] for other in group)


def _links_in(group: Sequence[GpuUuid], links: Links) -> int:
    return sum(links[one][other] for one, other in combinations(group, 2))
