"""Find claims over their memory grant, idle claims, and processes that belong to no claim. No I/O.

CUDA enforces a share per process at best: MPS limits each process (CUDA_MPS_PINNED_DEVICE_MEM_LIMIT), time slices limit
nothing. So the memory of all processes of a claim on a GPU is compared with the grant and the overhead of each process
(`UsageRules.overhead_bytes`). A claim is reported after `CONFIRM_S` above it, until `CALM_S` below it. Unknown memory
and unattributed processes never count against a claim and end a finding.

A claim is idle while it has no process, or none uses an engine of the GPU. Where the driver does not report that (MIG
without GPM, missing permissions), the use is unknown, which restarts the time.

Processes of no claim come from privileged pods with NVIDIA_VISIBLE_DEVICES, the host or the device plugin. They are
only reported: their owner is unknown.
"""

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from dra_driver.core.model import usage_findings
from dra_driver.core.model.claim import ClaimRef
from dra_driver.core.model.ids import GpuUuid
from dra_driver.core.model.terms import Form
from dra_driver.core.model.usage_rules import DEFAULT_USAGE, OverGrantAction, UsageRules, idle_after_min
from dra_driver.node.usage.values import DeviceUse, GpuUse, JoinedUsage, SeenProcess, began, step_s, total

CONFIRM_S: Final = 10.0
CALM_S: Final = 30.0
GROWTH: Final = 1.1
"""A finding changes when memory has changed by a tenth: each number is written to the API server."""


class ShareUse(Struct, frozen=True, kw_only=True):
    """The use of one shared GPU by one claim.

    ``grant_bytes`` is the sum of the claim's shares of the device. ``used_bytes`` is the memory of ``processes``
    attributed to ``pods`` of the claim (most memory first), None if that of one is unknown or may be another claim's.
    """

    claim: ClaimRef
    device: str
    grant_bytes: int
    used_bytes: int | None
    processes: int
    pods: tuple[usage_findings.UsingPod, ...] = ()
    rules: UsageRules = DEFAULT_USAGE

    @property
    def allowed_bytes(self) -> int:
        """The grant, and the overhead of each process."""
        return self.grant_bytes + self.processes * self.rules.overhead_bytes

    @property
    def is_over(self) -> bool:
        """Return whether the claim certainly exceeds the allowed memory."""
        return self.used_bytes is not None and bool(self.pods) and self.used_bytes > self.allowed_bytes


def share_uses(joined: JoinedUsage) -> list[ShareUse]:
    """Each claim's shares of each GPU together; shares without a grant of memory are skipped."""
    rules = joined.rules
    shares: dict[tuple[str, str], list[DeviceUse]] = {}
    for use in joined.devices:
        if use.assigned.form is Form.SHARE and not use.assigned.admin_access:
            shares.setdefault((use.claim.uid, use.assigned.device), []).append(use)
    return [_share(uses, rules) for uses in shares.values() if all(use.assigned.memory_bytes for use in uses)]


def _share(uses: Sequence[DeviceUse], rules: Mapping[str, UsageRules]) -> ShareUse:
    first = uses[0]
    processes = [process for use in uses for process in use.processes or ()]
    return ShareUse(
        claim=first.claim,
        device=first.assigned.device,
        grant_bytes=sum(use.assigned.memory_bytes or 0 for use in uses),
        used_bytes=total(use.used_bytes for use in uses),
        processes=len(processes),
        pods=_pods(processes),
        rules=rules.get(first.assigned.gpu_uuid, DEFAULT_USAGE),
    )


def _pods(processes: Iterable[SeenProcess]) -> tuple[usage_findings.UsingPod, ...]:
    """The one with most memory first."""
    memory: dict[usage_findings.UsingPod, int] = {}
    for each in processes:
        if each.container is not None:
            pod = each.container.pod
            memory[pod] = memory.get(pod, 0) + (each.memory_bytes or 0)
    return tuple(sorted(memory, key=lambda pod: (-memory[pod], pod.namespace, pod.name)))


class Watched(Struct, frozen=True, kw_only=True):
    """Seconds over the grant of one claim on one device, and since then below it; the finding, if any."""

    over_s: float = 0.0
    below_s: float = 0.0
    reported: usage_findings.OverGrant | None = None


Key = tuple[str, str]
"""UID of the claim, name of the device."""
WatchdogState = Mapping[Key, Watched]


def watch(
    state: WatchdogState, uses: Iterable[ShareUse], elapsed_s: float, now: datetime
) -> tuple[WatchdogState, tuple[usage_findings.OverGrant, ...]]:
    """The next state, and all claims over their grant, in the order of names; at most `MAX_OVER_GRANT`.

    A finding that is below the grant in this sample has the action Report. ``elapsed_s`` is the time since the last
    sample by a clock that does not jump, ``now`` is UTC. Claims that are not in ``uses`` have ended.
    """
    counted_s = step_s(elapsed_s)
    found: dict[Key, Watched] = {}
    for use in uses:
        key = (use.claim.uid, use.device)
        watched = _next(state.get(key), use, counted_s, now)
        if watched is not None:
            found[key] = watched
    reported = [watched.reported for watched in found.values() if watched.reported is not None]
    reported.sort(key=lambda each: (each.namespace, each.claim, each.device))
    return found, tuple(reported[: usage_findings.MAX_OVER_GRANT])


def _next(former: Watched | None, use: ShareUse, counted_s: float, now: datetime) -> Watched | None:
    if use.used_bytes is None or not use.pods:
        return None  # unknown is never over
    if not use.is_over:
        return _below(former, counted_s)
    if former is None:
        return Watched()  # first sample over the grant: its duration is unknown
    over_s = former.over_s + counted_s
    reported = former.reported
    if reported is not None:  # who it is follows immediately; how much, when it has grown
        fresh = _first_report(use, reported.since)
        if fresh.used_bytes <= reported.used_bytes * GROWTH:
            fresh = replace(fresh, used_bytes=reported.used_bytes, processes=reported.processes)
        reported = fresh
    elif over_s >= CONFIRM_S:
        reported = _first_report(use, began(now, over_s))
    return Watched(over_s=over_s, reported=reported)


def _below(former: Watched | None, counted_s: float) -> Watched | None:
    if former is None or former.reported is None:
        return None
    below_s = former.below_s + counted_s
    if below_s >= CALM_S:
        return None
    return replace(former, below_s=below_s, reported=replace(former.reported, action=OverGrantAction.REPORT))


def _first_report(use: ShareUse, since: datetime) -> usage_findings.OverGrant:
    assert use.used_bytes is not None  # noqa: S101 - for the type checker; only known memory exceeds a grant
    return usage_findings.OverGrant(
        claim_uid=use.claim.uid,
        namespace=use.claim.namespace,
        claim=use.claim.name,
        device=use.device,
        pods=use.pods[: usage_findings.MAX_PODS],
        used_bytes=use.used_bytes,
        grant_bytes=use.grant_bytes,
        processes=use.processes,
        since=since,
        action=use.rules.over_grant,
    )


UNATTRIBUTED_CONFIRM_S: Final = 30.0
"""A container's first processes are on the GPU before the kubelet reports their container."""
DRIVER_PROGRAMS: Final = frozenset({"nvidia-cuda-mps-server", "nvidia-cuda-mps-control", "nvidia-persistenced"})
"""Programs of the driver, which claims need but do not have; /proc/PID/comm has 15 characters."""
_DRIVER_COMMANDS: Final = frozenset(name[:15] for name in DRIVER_PROGRAMS)


class UnattributedState(Struct, frozen=True, kw_only=True):
    """The time for which each process of one GPU was observed (s), and the finding."""

    seen_s: Mapping[int, float]
    reported: usage_findings.Unattributed | None = None


ForeignState = Mapping[GpuUuid, UnattributedState]


def watch_unattributed(
    state: ForeignState, gpus: Iterable[GpuUse], elapsed_s: float, now: datetime
) -> tuple[ForeignState, tuple[usage_findings.Unattributed, ...]]:
    """The next state by GPU, and the findings in the order of device names, without GPUs whose processes are unknown.

    ``elapsed_s`` and ``now`` are as for `watch`.
    """
    counted_s = step_s(elapsed_s)
    found = {
        gpu.gpu_uuid: _next_unattributed(state.get(gpu.gpu_uuid), gpu, gpu.unattributed, counted_s, now)
        for gpu in gpus
        if gpu.unattributed is not None and gpu.device
    }
    reported = sorted(
        (each.reported for each in found.values() if each.reported is not None), key=lambda each: each.device
    )
    return found, tuple(reported[: usage_findings.MAX_UNATTRIBUTED])


def _next_unattributed(
    former: UnattributedState | None, gpu: GpuUse, processes: Sequence[SeenProcess], counted_s: float, now: datetime
) -> UnattributedState:
    known = former.seen_s if former is not None else {}
    foreign = [each for each in processes if each.command[:15] not in _DRIVER_COMMANDS]
    seen_s = {each.pid: known[each.pid] + counted_s if each.pid in known else 0.0 for each in foreign}
    lasting = [each for each in foreign if seen_s[each.pid] >= UNATTRIBUTED_CONFIRM_S]
    if not lasting:
        return UnattributedState(seen_s=seen_s)
    before = former.reported if former is not None else None
    longest_s = max(seen_s[each.pid] for each in lasting)
    fresh = _report_unattributed(gpu, lasting, before.since if before is not None else began(now, longest_s))
    return UnattributedState(seen_s=seen_s, reported=_steady(before, fresh))


def _report_unattributed(gpu: GpuUse, lasting: Sequence[SeenProcess], since: datetime) -> usage_findings.Unattributed:
    by_size = sorted(lasting, key=lambda each: (-(each.memory_bytes or 0), each.pid))
    commands = dict.fromkeys(each.command[: usage_findings.MAX_COMMAND] for each in by_size if each.command)
    return usage_findings.Unattributed(
        gpu_uuid=gpu.gpu_uuid,
        device=gpu.device,
        processes=len(lasting),
        bytes=total(each.memory_bytes for each in lasting),
        since=since,
        commands=tuple(commands)[: usage_findings.MAX_COMMANDS],
    )


def _steady(
    before: usage_findings.Unattributed | None, fresh: usage_findings.Unattributed
) -> usage_findings.Unattributed:
    """Memory that changed by less than a tenth is reported as before."""
    if before is None or before.bytes is None or fresh.bytes is None:
        return fresh
    low, high = sorted((before.bytes, fresh.bytes))
    return replace(fresh, bytes=before.bytes) if high <= low * GROWTH else fresh


class ClaimUse(Struct, frozen=True, kw_only=True):
    """The use of any of a claim's devices since the last sample; None if unknown.

    ``after_min`` are minutes without use after which it counts as idle: the longest of its devices' policies, None for
    never.
    """

    claim: ClaimRef
    used: bool | None
    after_min: int | None = None


class IdleWatched(Struct, frozen=True, kw_only=True):
    """Seconds without observed use of a claim, and the start of its finding."""

    idle_s: float
    since: datetime | None = None


IdleState = Mapping[str, IdleWatched]
"""By claim UID, without claims of unknown use."""


def used_any(devices: Iterable[bool | None]) -> bool | None:
    """True if one device is used, None if one is unknown or there is none, False if none is used."""
    found = list(devices)
    if not found or (None in found and True not in found):
        return None
    return True in found


def device_used(use: DeviceUse) -> bool | None:
    """Return whether the claim used any engine of the device since the last sample; None if unknown."""
    if use.shared_processes or use.busy_percent is None:
        return None
    return True if use.busy_percent else None if use.processes is None else False


def claim_uses(joined: JoinedUsage) -> list[ClaimUse]:
    """The use of each claim, without claims that have only admin access."""
    rules = joined.rules
    claims: dict[ClaimRef, list[DeviceUse]] = {}
    for use in joined.devices:
        if not use.assigned.admin_access:
            claims.setdefault(use.claim, []).append(use)
    return [
        ClaimUse(
            claim=claim,
            used=used_any(device_used(use) for use in uses),
            after_min=idle_after_min([rules.get(use.assigned.gpu_uuid, DEFAULT_USAGE) for use in uses]),
        )
        for claim, uses in claims.items()
    ]


def watch_idle(
    state: IdleState, uses: Iterable[ClaimUse], elapsed_s: float, now: datetime
) -> tuple[IdleState, tuple[usage_findings.IdleClaim, ...]]:
    """The next state, and the idle claims in the order of names. ``elapsed_s`` and ``now`` are as for `watch`. Claims
    that are not in ``uses`` have ended."""
    counted_s = step_s(elapsed_s)
    found: dict[str, IdleWatched] = {}
    idle: list[usage_findings.IdleClaim] = []
    for use in uses:
        if use.used is not False:
            continue  # used or unknown
        former = state.get(use.claim.uid)
        idle_s = former.idle_s + counted_s if former is not None else 0.0
        since = former.since if former is not None else None
        if use.after_min is not None and idle_s >= use.after_min * 60:
            since = since or began(now, idle_s)
            claim = use.claim
            found_idle = usage_findings.IdleClaim(
                claim_uid=claim.uid, namespace=claim.namespace, claim=claim.name, since=since
            )
            idle.append(found_idle)
        found[use.claim.uid] = IdleWatched(idle_s=idle_s, since=since)
    idle.sort(key=lambda each: (each.namespace, each.claim))
    return found, tuple(idle[: usage_findings.MAX_IDLE])


def idle_s(state: IdleState, uid: str, used: bool | None) -> float | None:
    """Seconds without use for the metric; 0 in use, None if unknown."""
    if used is None:
        return None
    watched = state.get(uid)
    return watched.idle_s if watched is not None else 0.0
