"""What a claim used of one of its devices over a window, as exporters or Prometheus told it, and sums of it. Pure.

Everything is None where it is not known, and a sum with an unknown part has ``partial``: no number is made up.
"""

from collections.abc import Callable, Iterable, Sequence

from msgspec import Struct


class ClaimDeviceUse(Struct, frozen=True, kw_only=True):
    """One device of one claim. Memory is in bytes, energy in joules, times in seconds; ``sm_ratio`` is 0 to 1 of the
    device: the last value, or the mean over the window where Prometheus has it.

    ``peak_bytes`` is the most that all processes of the claim had at once within the window. ``idle_s`` is how long it
    is not used, 0 while it is. ``held_s`` is how long it was seen within the window. ``share`` is "" where the claim
    has the device for itself.
    """

    namespace: str
    claim: str
    node: str = ""
    request: str = ""
    device: str = ""
    share: str = ""
    pods: tuple[str, ...] = ()
    used_bytes: int | None = None
    granted_bytes: int | None = None
    peak_bytes: int | None = None
    sm_ratio: float | None = None
    energy_joules: float | None = None
    energy_estimated: bool = False
    processes: int | None = None
    idle_s: float | None = None
    held_s: float | None = None


class GpuMemory(Struct, frozen=True, kw_only=True):
    """Who uses the memory of one GPU, in bytes: claims, processes of no claim, and what the driver reserves. Together
    they are ``used_bytes`` where all are known."""

    node: str
    device: str
    total_bytes: int | None = None
    used_bytes: int | None = None
    claims_bytes: int | None = None
    unattributed_bytes: int | None = None
    unattributed_processes: int | None = None
    reserved_bytes: int | None = None
    busy_ratio: float | None = None
    power_watts: float | None = None


class UseReport(Struct, frozen=True, kw_only=True):
    """What one source told. ``window_s`` is what peaks, energy and idleness are about; ``gaps`` are sentences about
    what could not be read or cannot be true. ``gpus`` are those whose whole use it tells."""

    source: str
    window_s: float
    uses: Sequence[ClaimDeviceUse]
    gaps: Sequence[str] = ()
    gpus: Sequence[GpuMemory] = ()


class UseSum(Struct, frozen=True, kw_only=True):
    """The devices of one claim, pod, namespace or node together. ``partial`` names the fields that lack a part."""

    key: tuple[str, ...]
    claims: int
    devices: int
    used_bytes: int | None
    granted_bytes: int | None
    peak_bytes: int | None
    sm_ratio: float | None
    energy_joules: float | None
    energy_estimated: bool
    processes: int | None
    idle_s: float | None
    partial: tuple[str, ...] = ()


def by_claim(use: ClaimDeviceUse) -> list[tuple[str, ...]]:
    return [(use.namespace, use.claim)]


def by_pod(use: ClaimDeviceUse) -> list[tuple[str, ...]]:
    """One key for all pods of a claim together: what each of them uses is not told apart here."""
    return [(use.namespace, ",".join(use.pods))]


def by_namespace(use: ClaimDeviceUse) -> list[tuple[str, ...]]:
    return [(use.namespace,)]


def by_node(use: ClaimDeviceUse) -> list[tuple[str, ...]]:
    return [(use.node,)]


def summed(uses: Iterable[ClaimDeviceUse], keys: Callable[[ClaimDeviceUse], list[tuple[str, ...]]]) -> list[UseSum]:
    """One sum for each key, in the order of keys. Utilisation is the mean over devices, idleness the shortest."""
    groups: dict[tuple[str, ...], list[ClaimDeviceUse]] = {}
    for use in uses:
        for key in keys(use):
            groups.setdefault(key, []).append(use)
    return [_sum(key, groups[key]) for key in sorted(groups)]


def _sum(key: tuple[str, ...], uses: Sequence[ClaimDeviceUse]) -> UseSum:
    partial: list[str] = []

    def known(name: str) -> list[float]:
        values = [value for use in uses if (value := getattr(use, name)) is not None]
        if values and len(values) < len(uses):
            partial.append(name)
        return values

    def total(name: str) -> int | None:
        values = known(name)
        return int(sum(values)) if values else None

    energy, ratios, idle = known("energy_joules"), known("sm_ratio"), known("idle_s")
    return UseSum(
        key=key,
        claims=len({(use.namespace, use.claim) for use in uses}),
        devices=len(uses),
        used_bytes=total("used_bytes"),
        granted_bytes=total("granted_bytes"),
        peak_bytes=total("peak_bytes"),
        sm_ratio=sum(ratios) / len(ratios) if ratios else None,
        energy_joules=sum(energy) if energy else None,
        energy_estimated=any(use.energy_estimated for use in uses),
        processes=total("processes"),
        idle_s=min(idle) if len(idle) == len(uses) else None,
        partial=tuple(partial),
    )
