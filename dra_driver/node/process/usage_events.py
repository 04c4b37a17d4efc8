"""Events and metrics of what the usage exporter found: on the Node, and on claims and their pods where that is allowed.

Each finding is told once when it begins, and again at most every `QUIET_S`, however often it comes and goes.
"""

import time
from collections.abc import Callable, Iterator
from typing import Final

from msgspec import Struct

from dra_driver.core.model.claim import ClaimRef
from dra_driver.core.model.gpu_node import ToldForeign, ToldIdle, ToldOverGrant, ToldUsage
from dra_driver.core.model.ids import ClaimUid
from dra_driver.core.model.usage_rules import IdleAction, OverGrantAction
from dra_driver.core.telemetry import metrics
from dra_driver.node.process.node_events import Kind, Tell

OVER_GRANT: Final = "GpuMemoryOverGrant"
UNATTRIBUTED: Final = "GpuUsedByOthers"
IDLE: Final = "GpuClaimIdle"
QUIET_S: Final = 600.0


class ClaimNotice(Struct, frozen=True, kw_only=True):
    """An event about one claim and its pods."""

    claim: ClaimRef
    reason: str
    message: str
    kind: Kind = "Warning"


class UsageEvents:
    """Of one thread. ``tell`` records an event on the Node; ``notify`` hears of those about claims."""

    def __init__(
        self,
        tell: Tell,
        *,
        notify: Callable[[ClaimNotice], None] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._tell, self._notify, self._clock = tell, notify, clock
        self._told: dict[tuple[str, ...], float] = {}

    def update(self, told: ToldUsage) -> None:
        """Tell what is new."""
        metrics.usage_findings.labels("over-grant").set(len(told.over_grant))
        metrics.usage_findings.labels("idle").set(len(told.idle))
        metrics.usage_findings.labels("unattributed").set(len(told.unattributed))
        now, found = self._clock(), dict(_sentences(told))
        for key, notice in found.items():
            if key not in self._told:
                self._report(key, notice)
                self._told[key] = now
        self._told = {key: at for key, at in self._told.items() if key in found or now - at < QUIET_S}

    def _report(self, key: tuple[str, ...], notice: ClaimNotice) -> None:
        named = f"claim {notice.claim.namespace}/{notice.claim.name}: " if notice.claim.uid else ""
        self._tell("Warning", key[0], f"{named}{notice.message}")
        if self._notify is not None and notice.claim.uid:
            self._notify(notice)


def _sentences(told: ToldUsage) -> Iterator[tuple[tuple[str, ...], ClaimNotice]]:
    for over in told.over_grant:
        claim = ClaimRef(namespace=over.namespace, name=over.claim, uid=ClaimUid(over.claim_uid))
        notice = ClaimNotice(claim=claim, reason=OVER_GRANT, message=_over_grant(over))
        yield (OVER_GRANT, over.claim_uid, over.gpu, over.action), notice
    for idle in told.idle:
        claim = ClaimRef(namespace=idle.namespace, name=idle.claim, uid=ClaimUid(idle.claim_uid))
        yield (IDLE, idle.claim_uid), ClaimNotice(claim=claim, reason=IDLE, message=_idle(idle))
    for foreign in told.unattributed:
        nothing = ClaimRef(namespace="", name="", uid=ClaimUid(""))
        notice = ClaimNotice(claim=nothing, reason=UNATTRIBUTED, message=_foreign(foreign))
        yield (UNATTRIBUTED, foreign.gpu), notice


def _over_grant(told: ToldOverGrant) -> str:
    who = "its process has" if told.processes == 1 else f"its {told.processes} processes have"
    what = f"{who} {told.used} of {told.gpu}, and the claim was granted {told.granted}"
    then = "Other claims on the GPU may run out of memory"
    if told.action is OverGrantAction.EVICT:
        then = f"Pod {told.pods[0].name} is to be evicted if this lasts for {told.grace_s} s"
    return f"{what}. {then}. Ask for more memory in the claim, or limit what the program takes"


def _idle(told: ToldIdle) -> str:
    then = ""
    if told.action is IdleAction.RECLAIM:
        then = f" Its pods are to be evicted if it stays so for {told.after_min} minutes more."
    return f"it has not used its GPU since {told.since}.{then} Delete the pods that do not need it"


def _foreign(told: ToldForeign) -> str:
    memory = f" with {told.memory}" if told.memory is not None else ""
    named = f" ({', '.join(told.commands)})" if told.commands else ""
    return (
        f"{told.gpu} is used by {told.processes} processes{named}{memory} that belong to no claim of it, since"
        f" {told.since}: claims on it may run out of memory. Look for privileged pods, a device plugin and programs of"
        " the host"
    )
