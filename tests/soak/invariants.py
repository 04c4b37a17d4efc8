"""What has to hold on a node at any moment without a call: no device is granted twice, and journal, hardware, CDI files
and API server say the same.

Pure: facts in, sentences about breaches out. `facts` reads the facts of a node from outside of the process.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations

from dra_driver.core.model.mig import parse_partition_name

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
        """The pool and the GPU's own device name."""
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
    memory: Mapping[str, int] = field(default_factory=dict)
    """Bytes of each GPU that is shared, by `Grant.gpu`."""


def breaches(facts: Facts) -> list[str]:
    """Every breach, one sentence each; empty when all holds."""
    held = [grant for uid, grants in facts.api.items() if uid in facts.answered for grant in grants]
    return [
        *granted_twice(held, facts.memory),
        *_journal(facts),
        *_cdi(facts),
        *_hardware(facts),
        *_api(facts),
    ]


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
