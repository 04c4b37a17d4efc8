"""Which claims have more memory of a shared GPU than they were granted. Pure.

A share is a promise per claim, and CUDA holds it per process at best: MPS limits each process
(CUDA_MPS_PINNED_DEVICE_MEM_LIMIT), time slices limit nothing. So the memory of all processes of a claim on a GPU is
added up and compared with the grant and what each process may have for its context (`UsageRules.overhead_bytes`).

A claim is told after it was over for `CONFIRM_S`, so that one allocation at the wrong moment is nothing, and forgotten
after it was not for `CALM_S`, so that one that goes up and down is told once. Memory that is not known, and processes
that cannot be attributed, never count against a claim: such a look ends what was found before.
"""

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from dra_driver.core.model.claim import ClaimRef
from dra_driver.core.model.terms import Form
from dra_driver.core.model.usage_findings import MAX_OVER_GRANT, MAX_PODS, OverGrant, UsingPod
from dra_driver.core.model.usage_rules import DEFAULT_USAGE, OverGrantAction, UsageRules
from dra_driver.node.usage.values import DeviceUse, JoinedUsage, SeenProcess, began, step_s, total

CONFIRM_S: Final = 10.0
CALM_S: Final = 30.0
GROWTH: Final = 1.1
"""Memory is told anew when it has grown by a tenth: each number that is told is written to the API server."""


class ShareUse(Struct, frozen=True, kw_only=True):
    """What one claim has of one shared GPU at a look.

    ``grant_bytes`` is the sum of the claim's shares of the device. ``used_bytes`` is the sum over ``processes``
    processes that were attributed to ``pods`` of the claim (most memory first), and None if the memory of one of them
    is unknown or may be another claim's.
    """

    claim: ClaimRef
    device: str
    grant_bytes: int
    used_bytes: int | None
    processes: int
    pods: tuple[UsingPod, ...] = ()
    rules: UsageRules = DEFAULT_USAGE

    @property
    def allowed_bytes(self) -> int:
        """What is tolerated: the grant, and the overhead of each process."""
        return self.grant_bytes + self.processes * self.rules.overhead_bytes

    @property
    def is_over(self) -> bool:
        """Whether the claim certainly has more than is tolerated."""
        return self.used_bytes is not None and bool(self.pods) and self.used_bytes > self.allowed_bytes


def share_uses(joined: JoinedUsage) -> list[ShareUse]:
    """Each claim's shares of each GPU together; shares without a grant of memory are not judged."""
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


def _pods(processes: Iterable[SeenProcess]) -> tuple[UsingPod, ...]:
    """The one with most memory first."""
    memory: dict[UsingPod, int] = {}
    for each in processes:
        if each.container is not None:
            pod = each.container.pod
            memory[pod] = memory.get(pod, 0) + (each.memory_bytes or 0)
    return tuple(sorted(memory, key=lambda pod: (-memory[pod], pod.namespace, pod.name)))


class Watched(Struct, frozen=True, kw_only=True):
    """One claim on one device: for how long it was over, and since then below. ``told`` is the finding, if any."""

    over_s: float = 0.0
    below_s: float = 0.0
    told: OverGrant | None = None


Key = tuple[str, str]
"""UID of the claim, name of the device."""
WatchdogState = Mapping[Key, Watched]


def watch(
    state: WatchdogState, uses: Iterable[ShareUse], elapsed_s: float, now: datetime
) -> tuple[WatchdogState, tuple[OverGrant, ...]]:
    """The next state, and all claims over their grant, in the order of names; at most `MAX_OVER_GRANT`.

    One that is not over at this very look is still told until `CALM_S` are over, with the action Report: nothing is
    done to a claim that keeps its grant.

    ``elapsed_s`` is the time since the last look by a clock that does not jump, ``now`` is UTC. Claims that are not in
    ``uses`` have ended.
    """
    counted_s = step_s(elapsed_s)
    found: dict[Key, Watched] = {}
    for use in uses:
        key = (use.claim.uid, use.device)
        watched = _next(state.get(key), use, counted_s, now)
        if watched is not None:
            found[key] = watched
    told = [watched.told for watched in found.values() if watched.told is not None]
    told.sort(key=lambda each: (each.claim.namespace, each.claim.name, each.device))
    return found, tuple(told[:MAX_OVER_GRANT])


def _next(former: Watched | None, use: ShareUse, counted_s: float, now: datetime) -> Watched | None:
    if use.used_bytes is None or not use.pods:
        return None  # unknown is never over
    if not use.is_over:
        return _below(former, counted_s)
    if former is None:
        return Watched()  # seen once; how long it has been so is not known
    over_s = former.over_s + counted_s
    told = former.told
    if told is not None:  # who it is follows immediately; how much, when it has grown
        fresh = _first_told(use, told.since)
        if fresh.used_bytes <= told.used_bytes * GROWTH:
            fresh = replace(fresh, used_bytes=told.used_bytes, processes=told.processes)
        told = fresh
    elif over_s >= CONFIRM_S:
        told = _first_told(use, began(now, over_s))
    return Watched(over_s=over_s, told=told)


def _below(former: Watched | None, counted_s: float) -> Watched | None:
    if former is None or former.told is None:
        return None
    below_s = former.below_s + counted_s
    if below_s >= CALM_S:
        return None
    return replace(former, below_s=below_s, told=replace(former.told, action=OverGrantAction.REPORT))


def _first_told(use: ShareUse, since: datetime) -> OverGrant:
    assert use.used_bytes is not None  # noqa: S101 - for the type checker; only known memory is over
    return OverGrant(
        claim=use.claim,
        device=use.device,
        pods=use.pods[:MAX_PODS],
        used_bytes=use.used_bytes,
        grant_bytes=use.grant_bytes,
        processes=use.processes,
        since=since,
        action=use.rules.over_grant,
    )
