"""One look after another: everything is read, joined, judged and kept for those who ask."""

import time
from collections.abc import Callable
from datetime import UTC, datetime

from msgspec import Struct

from dra_driver.core.model.usage_findings import UsageFindings
from dra_driver.node.exporter.node_process import AssignmentsReader, UsageGpus
from dra_driver.node.exporter.sources import LogLinks, PodResourcesReader, ProcReader, since_boot_s
from dra_driver.node.usage.answers import Judged
from dra_driver.node.usage.join import join
from dra_driver.node.usage.ledger import UsageLedger, fold
from dra_driver.node.usage.sources import Look, Unread
from dra_driver.node.usage.values import JoinedUsage
from dra_driver.node.usage.watchdog import (
    ForeignState,
    IdleState,
    WatchdogState,
    claim_uses,
    idle_s,
    share_uses,
    watch,
    watch_foreign,
    watch_idle,
)


class Sources(Struct, frozen=True, kw_only=True):
    """What is read at each look."""

    assignments: AssignmentsReader
    gpus: UsageGpus
    processes: ProcReader
    logs: LogLinks
    pods: PodResourcesReader


class LookResult(Struct, frozen=True, kw_only=True):
    """The result of one look. ``window_s`` is how much of the window was seen."""

    joined: JoinedUsage
    ledger: UsageLedger
    judged: Judged
    findings: UsageFindings
    window_s: float


class Observer:
    """Of one thread. Times are in seconds; ``clock`` does not jump, ``now`` is UTC."""

    def __init__(
        self,
        sources: Sources,
        node: str,
        *,
        window_s: float,
        keep_ended_s: float,
        clock: Callable[[], float] = time.monotonic,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._sources, self._node = sources, node
        self._window_s, self._keep_ended_s = window_s, keep_ended_s
        self._clock, self._now = clock, now
        self._last_s: float | None = None
        self._ledger = UsageLedger()
        self._watchdog: WatchdogState = {}
        self._foreign: ForeignState = {}
        self._idle: IdleState = {}

    def look(self) -> LookResult:
        """One look; takes as long as the driver, /proc and the kubelet do."""
        now_s = self._clock()
        joined = join(self._read(now_s))
        self._ledger = fold(
            self._ledger, joined, now_s, window_s=self._window_s, keep_ended_s=self._keep_ended_s
        )  # fmt: skip
        judged, findings = self._judge(joined)
        return LookResult(
            joined=joined,
            ledger=self._ledger,
            judged=judged,
            findings=findings,
            window_s=self._ledger.covered_s(now_s, self._window_s),
        )

    def _read(self, now_s: float) -> Look:
        elapsed_s = 0.0 if self._last_s is None else max(0.0, now_s - self._last_s)
        self._last_s = now_s
        assignments = self._sources.assignments.read()
        listed_s = since_boot_s()
        readings = self._sources.gpus.read(assignments)
        pids = (
            []
            if isinstance(readings, Unread)
            else [process.pid for each in readings for process in each.processes or ()]
        )
        return Look(
            at=self._now(),
            elapsed_s=elapsed_s,
            assignments=assignments,
            readings=readings,
            processes=self._sources.processes.read(pids, listed_s),
            logs=self._sources.logs.read(),
            pods=self._sources.pods.read(),
            node=self._node,
        )

    def _judge(self, joined: JoinedUsage) -> tuple[Judged, UsageFindings]:
        shares, claims = share_uses(joined), claim_uses(joined)
        elapsed_s, at = joined.elapsed_s, joined.at
        self._watchdog, over = watch(self._watchdog, shares, elapsed_s, at)
        self._foreign, unattributed = watch_foreign(self._foreign, joined.gpus, elapsed_s, at)
        self._idle, idle = watch_idle(self._idle, claims, elapsed_s, at)
        known = {use.claim.uid: idle_s(self._idle, use.claim.uid, use.used) for use in claims}
        judged = Judged(
            idle_s={uid: seconds for uid, seconds in known.items() if seconds is not None},
            over_bytes={
                (use.claim.uid, use.device): max(0, use.used_bytes - use.allowed_bytes)
                for use in shares
                if use.used_bytes is not None
            },
        )
        return judged, UsageFindings(written=at, over_grant=over, unattributed=unattributed, idle=idle)
