"""Check a node from outside while no call is in work: no device is granted twice; journal, hardware, CDI files and API
server agree; memory and latency stay flat over a long run."""

import json
import re
import sqlite3
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from itertools import combinations
from pathlib import Path
from typing import Any

from dra_driver.core.model.gpu import Gpu
from dra_driver.core.model.mig import parse_partition_name
from dra_driver.core.quantity import Quantity
from dra_driver.sim.apiserver.kinds import RESOURCE_CLAIMS
from tests.fakes.live_claims import Obj
from tests.fakes.live_node import LiveNode

GIB = 2**30


@dataclass(frozen=True, slots=True, kw_only=True)
class Grant:
    """One device of an allocation. ``size`` is in memory slices; ``memory`` (bytes) and ``percent`` are a share's."""

    pool: str
    device: str
    admin: bool = False
    share: str = ""
    memory: int = 0
    percent: int = 0
    size: int = 0

    @property
    def gpu(self) -> str:
        return f"{self.pool} {self.device.partition('-mig-')[0]}"

    @property
    def slices(self) -> range | None:
        """The memory slices of a partition; None for a whole GPU or a share."""
        name = parse_partition_name(self.device)
        return None if name is None else range(name.start, name.start + self.size)


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What each place says, claims by UID. ``answered``: devices in the last good answer to the kubelet."""

    answered: Mapping[str, Sequence[str]]
    journal: Mapping[str, str]
    journal_devices: Mapping[str, Sequence[str]]
    cdi: Mapping[str, Sequence[str]]
    api: Mapping[str, Sequence[Grant]]
    instances: Sequence[tuple[int, int, int, int]] = ()
    """(minor, profile, start, compute instances) of what the hardware has."""
    orphans: Sequence[tuple[int, int, int]] = ()
    """(minor, profile, start) of partitions that the journal notes for destruction: a GPU that was ill refused it."""
    memory: Mapping[str, int] = field(default_factory=dict)  # bytes of each GPU that is shared, by `Grant.gpu`


def breaches(facts: Facts) -> list[str]:
    """Every breach, one sentence each; empty when all holds."""
    held = [grant for uid, grants in facts.api.items() if uid in facts.answered for grant in grants]
    return [*granted_twice(held, facts.memory), *_journal(facts), *_cdi(facts), *_hardware(facts), *_api(facts)]


def granted_twice(grants: Sequence[Grant], memory: Mapping[str, int]) -> Iterator[str]:
    """Two claims that would use the same part of a GPU. ``grants`` of all claims; ``memory`` as in `Facts`."""
    by_gpu: dict[str, list[Grant]] = {}
    for grant in grants:
        if not grant.admin:
            by_gpu.setdefault(grant.gpu, []).append(grant)
    for gpu, found in by_gpu.items():
        yield from (
            f"granted twice: {a.device} and {b.device} of {gpu}" for a, b in combinations(found, 2) if _clash(a, b)
        )
        shares = [grant for grant in found if grant.share]
        if (percent := sum(grant.percent for grant in shares)) > 100:
            yield f"granted twice: shares of {gpu} have {percent} % of its compute"
        if (total := sum(grant.memory for grant in shares)) > memory.get(gpu, total):
            yield f"granted twice: shares of {gpu} have {total / GIB:.0f} GiB of {memory[gpu] / GIB:.0f}"


def _clash(a: Grant, b: Grant) -> bool:
    if a.share and b.share:
        return a.share == b.share
    if a.slices is None or b.slices is None:
        return True  # a whole GPU, or a share beside a partition
    return bool(set(a.slices) & set(b.slices))


def _journal(facts: Facts) -> Iterator[str]:
    yield from (f"journal: {uid} was answered and has no row" for uid in facts.answered.keys() - facts.journal.keys())
    yield from (f"journal: {uid} has a row and no answer" for uid in facts.journal.keys() - facts.answered.keys())
    for uid, state in facts.journal.items():
        if state != "prepared":
            yield f"journal: {uid} is {state} while no call works on it"
        elif uid in facts.answered and sorted(facts.journal_devices.get(uid, ())) != sorted(facts.answered[uid]):
            yield f"journal: {uid} has {facts.journal_devices.get(uid)}, the answer had {facts.answered[uid]}"


def _cdi(facts: Facts) -> Iterator[str]:
    yield from (f"CDI: {uid} was answered and has no file" for uid in facts.answered.keys() - facts.cdi.keys())
    yield from (f"CDI: {uid} has a file and no answer" for uid in facts.cdi.keys() - facts.answered.keys())
    for uid in facts.cdi.keys() & facts.answered.keys():
        if sorted(facts.cdi[uid]) != sorted(facts.answered[uid]):
            yield f"CDI: the file of {uid} has {facts.cdi[uid]}, the answer had {facts.answered[uid]}"


def _hardware(facts: Facts) -> Iterator[str]:
    wanted = set()
    for devices in facts.answered.values():
        for device in devices:
            if (name := parse_partition_name(device)) is not None:
                wanted.add((name.minor, name.profile_id, name.start, 1))
    there, noted = set(facts.instances), set(facts.orphans)
    yield from (f"hardware: partition {each} of a claim is missing" for each in sorted(wanted - there))
    yield from (
        f"hardware: partition {each} belongs to no claim" for each in sorted(there - wanted) if each[:3] not in noted
    )


def _api(facts: Facts) -> Iterator[str]:
    for uid, devices in facts.answered.items():
        allocated = sorted(grant.device for grant in facts.api.get(uid, ()))
        if allocated != sorted(devices):
            yield f"API: {uid} is allocated {allocated}, the answer had {devices}"


_SHARE_ID = re.compile(r"-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$")


def facts(node: LiveNode, answered: Mapping[str, Sequence[str]]) -> Facts:
    gpus = node.hardware.snapshot().gpus  # without those that are ill
    minors = {uuid: minor for minor, uuid in enumerate(node.gpus)}
    return Facts(
        answered=answered,
        journal=node.states(),
        journal_devices=journal_devices(node.plugin / "state.db"),
        orphans=[(minors[uuid], *rest) for uuid, *rest in orphans(node.plugin / "state.db")],  # type: ignore[misc, index]
        cdi=cdi_devices(node.cdi_files()),
        api=grants(node.store.list(RESOURCE_CLAIMS).items, gpus),
        instances=[(minors[uuid], *rest) for uuid, *rest in node.instances()],  # type: ignore[misc, index]
        memory={f"{node.name}/gpu.nvidia.com gpu-{minor}": gpus[0].memory_bytes or 0 for minor in minors.values()},
    )


def journal_devices(path: Path) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True, timeout=5.0)) as connection:
        for uid, device in connection.execute("SELECT uid, device FROM device ORDER BY uid, position"):
            found.setdefault(uid, []).append(device)
    return found


def orphans(path: Path) -> list[tuple[str, int, int]]:
    """(GPU, profile, start) of partitions that a journal notes and no claim has: they could not be destroyed yet."""
    query = (
        "SELECT m.gpu_uuid, m.profile, m.start FROM mig AS m WHERE m.made = 1 AND NOT EXISTS"
        " (SELECT 1 FROM device AS d WHERE d.uid = m.uid AND d.position = m.position)"
    )
    with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True, timeout=5.0)) as connection:
        return [(str(uuid), int(profile), int(start)) for uuid, profile, start in connection.execute(query)]


def cdi_devices(files: Mapping[str, Path]) -> dict[str, list[str]]:
    """Devices of each claim's CDI file; their names begin with the claim's UID."""
    found = {}
    for uid, path in files.items():
        document = json.loads(path.read_text())
        names = [device["name"].removeprefix(f"{uid}-") for device in document["devices"]]
        found[uid] = [_SHARE_ID.sub("", name) for name in names]
    return found


def grants(claims: Iterable[Obj], gpus: Sequence[Gpu]) -> dict[str, list[Grant]]:
    """What the API server says that each claim has. GPUs of one model: profiles are looked up in the first."""
    sizes = {profile.profile_id: profile.memory_slices for profile in gpus[0].mig_profiles}
    found = {}
    for claim in claims:
        allocation = (claim.get("status") or {}).get("allocation")
        if allocation is not None:
            results = allocation["devices"]["results"]
            found[claim["metadata"]["uid"]] = [_grant(result, sizes) for result in results]
    return found


def _grant(result: Mapping[str, Any], sizes: Mapping[int, int]) -> Grant:
    name = parse_partition_name(result["device"])
    consumed = result.get("consumedCapacity") or {}
    return Grant(
        pool=result["pool"],
        device=result["device"],
        admin=bool(result.get("adminAccess")),
        share=result.get("shareID") or "",
        memory=_amount(consumed.get("memory")) if consumed else 0,
        percent=_amount(consumed.get("computePercent")) if consumed else 0,
        size=0 if name is None else sizes.get(name.profile_id, 0),
    )


def _amount(text: object) -> int:
    return Quantity.parse(str(text)).as_int() if text is not None else 0


PER = 1000
GROWTH_MIB = 4.0
"""How much the memory of one process may grow between the first and the last fifth of its run: fragments and caches."""
SLOWDOWN = 2.0  # how much slower the last third may be than the first: other work on the machine
EARLY_CLAIMS = 1500
"""A process loads code, fills caches, and its heap gets its holes until about then. Without kills, live blocks
(``sys.getallocatedblocks``) were 211,460 after 500 claims, 211,704 after 2,000 and 212,435 after 3,000."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    claims: int
    pid: int
    mib: float


def latency_lines(what: str, figures_ms: Sequence[float]) -> Iterator[str]:
    for at in range(0, len(figures_ms), PER):
        part = sorted(figures_ms[at : at + PER])
        if len(part) < PER // 4:
            return
        p99 = part[min(len(part) - 1, int(len(part) * 0.99))]
        yield f"  {what} {at + 1:>6} to {at + len(part):>6}: p50 {part[len(part) // 2]:7.1f} ms  p99 {p99:8.1f} ms"


@dataclass(frozen=True, slots=True, kw_only=True)
class Trend:
    """How ``what`` changed over a run; ``is_worse`` is None where the run was too short to say."""

    what: str
    is_worse: bool | None
    figures: str


def slower(what: str, figures_ms: Sequence[float]) -> Trend:
    """Compare the lower quartiles of the last and the first third: faults at random moments slow other calls."""
    third = len(figures_ms) // 3
    if third < PER // 4:
        return Trend(what=f"latency of {what}", is_worse=None, figures=f"{len(figures_ms)} calls, needs {3 * PER // 4}")
    first, last = (statistics.quantiles(part, n=4)[0] for part in (figures_ms[:third], figures_ms[-third:]))
    figures = f"{first:.1f} ms (lower quartile of the first third), {last:.1f} ms at the end"
    return Trend(what=f"latency of {what}", is_worse=last > SLOWDOWN * first, figures=figures)


def memory_lines(found: Sequence[Memory]) -> Iterator[str]:
    for pid in dict.fromkeys(each.pid for each in found):
        run = [each for each in found if each.pid == pid]
        chosen = run[:: max(1, len(run) // 10)]
        series = "  ".join(f"{each.claims}: {each.mib:.1f}" for each in chosen)
        yield f"  RSS in MiB of process {pid} after claims  {series}"


def grown(found: Sequence[Memory]) -> Trend:
    """Compare the last process after its first claims with its end."""
    run = [each for each in found if each.pid == found[-1].pid]
    run = [each for each in run if each.claims - run[0].claims >= EARLY_CLAIMS]
    fifth = len(run) // 5
    if not fifth:
        few = f"{len(run)} readings after {EARLY_CLAIMS} claims of the last process, needs 5"
        return Trend(what="memory", is_worse=None, figures=few)
    first = statistics.median(each.mib for each in run[:fifth])
    last = statistics.median(each.mib for each in run[-fifth:])
    figures = f"process {run[0].pid} from {first:.1f} to {last:.1f} MiB over {run[-1].claims} claims"
    return Trend(what="memory", is_worse=last - first > GROWTH_MIB, figures=figures)


def verdict(trends: Iterable[Trend]) -> Iterator[str]:
    """One line per trend: flat only where it was measured."""
    for each in trends:
        said = "not judged" if each.is_worse is None else "worse" if each.is_worse else "flat"
        yield f"{each.what}: {said} ({each.figures})"
