"""Evict pods that request an extended resource from devices with a NoExecute taint, in a separate thread.

Kubernetes 1.36 misses these pods (`pending_evictions`). The thread applies the eviction limit and the pace (`brake`)
and evicts one pod at a time, only while this replica leads and both copies are current.
"""

import logging
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from functools import partial
from typing import Final, Protocol

from msgspec import Struct, field

from dra_driver.controller import eviction_api, pending_evictions
from dra_driver.controller.election import Leadership
from dra_driver.core.backoff import Backoff
from dra_driver.core.errors import KubernetesApiError
from dra_driver.core.telemetry import controller_metrics as metrics
from dra_driver.core.time import rfc3339
from dra_driver.core.worker import Worker
from dra_driver.kube.evictions import NO_EVICTION

log = logging.getLogger(__name__)

THREAD_NAME: Final = "evictions"
# Changes come in groups: a GPU has up to 50 devices. The copies are read once per group.
SETTLE_S: Final = 0.5
IDLE_S: Final = 30.0


class Copies(Protocol):
    @property
    def problem(self) -> str | None: ...
    def slices(self) -> Sequence[pending_evictions.SliceView]: ...
    def claims(self) -> Sequence[pending_evictions.SpecialClaim]: ...


class EvictionRules(Struct, frozen=True, kw_only=True):
    """``grace_s`` begins with the taint."""

    grace_s: float
    brake: eviction_api.BrakeRules


class EvictionEvents(eviction_api.PodEvents):
    def outcome(self, case: pending_evictions.PendingEviction, outcome: eviction_api.EvictionOutcome) -> None:
        why = f"device {case.device.name} of pool {case.device.pool} has the taint {case.taint}"
        since = f"since {rfc3339(case.taint.added)}"
        self._record_outcome(
            case.pod,
            outcome.result,
            f"Evicted: {why} {since}. Pods that request extended resources cannot tolerate device taints.",
            f"{why}: {outcome.reason}",
            f"because of the pod's annotation {NO_EVICTION}, although {why}",
        )

    def brake(self, state: eviction_api.BrakeState, *, waiting: int) -> None:
        """An event when the brake changes; ``waiting`` is the number of pods that it holds back."""
        braked = (
            f"Evictions paused: {state.recent} of {state.fleet} GPUs became tainted within a short time, which is more"
            f" than broken hardware explains. {waiting} pods wait. See docs/eviction.md"
        )
        self._record_brake(state.on, braked, "Pods with extended resources are evicted again")


class _Tries(Struct):
    """Time of the next attempt for one pod (s, monotonic), and the pauses between attempts."""

    not_before_s: float = 0.0
    backoff: Backoff = field(default_factory=eviction_api.retries)


class Evictions:
    def __init__(
        self,
        api: eviction_api.EvictionRequests,
        copies: Copies,
        leadership: Leadership,
        rules: EvictionRules,
        events: EvictionEvents,
        *,
        pace: eviction_api.Pace,
        clock: Callable[[], float],
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._api, self._copies, self._leadership = api, copies, leadership
        self._rules, self._events = rules, events
        self._pace, self._clock, self._now = pace, clock, now
        self._tries: dict[str, _Tries] = {}  # by pod UID; of the thread alone
        self.worker = Worker(
            THREAD_NAME,
            self.step,
            on_error=partial(metrics.internal_error, THREAD_NAME),
            after_error_s=IDLE_S,
            settle_s=SETTLE_S,
            period_s=SETTLE_S,
            clock=clock,
        )

    def step(self) -> float:
        """Evict due pods within brake and pace. Returns seconds until the next call."""
        if not self._leadership.leads():
            self._tries = {}
            self._pace.forget()
            metrics.not_leading()
            return IDLE_S
        if self._copies.problem is not None:
            return 1.0
        now, fleet = self._now(), pending_evictions.fleet_of(self._copies.slices())
        cases = pending_evictions.pending_evictions(fleet, self._copies.claims(), self._rules.grace_s)
        brake = eviction_api.brake_state(fleet, self._rules.brake, now)
        self._publish(cases, brake)
        if brake.on:
            return min(IDLE_S, (brake.until - now).total_seconds()) if brake.until is not None else IDLE_S
        return self._evict_due(cases, now)

    def _publish(self, cases: Sequence[pending_evictions.PendingEviction], brake: eviction_api.BrakeState) -> None:
        metrics.fleet_gpus.set(brake.fleet)
        metrics.fleet_gpus_tainted.set(brake.recent)
        metrics.eviction_brake.set(brake.on)
        metrics.pods_endangered.set(len(cases))
        self._events.brake(brake, waiting=len(cases))
        alive = {case.pod.uid for case in cases}
        self._tries = {uid: tries for uid, tries in self._tries.items() if uid in alive}

    def _evict_due(self, cases: Sequence[pending_evictions.PendingEviction], now: datetime) -> float:
        wait_s = IDLE_S
        for case in cases:
            left_s = max((case.due - now).total_seconds(), self._pause_s(case))
            if left_s <= 0 and (left_s := self._pace.left_s()) <= 0:
                if self.worker.is_stopping or not self._leadership.leads():
                    return 0.0
                self._try(case)
                left_s = self._pause_s(case)
            wait_s = min(wait_s, left_s)
        return wait_s

    def _try(self, case: pending_evictions.PendingEviction) -> None:
        self.worker.beat()
        try:
            outcome = eviction_api.look(self._api, case) or self._evict(case)
        except KubernetesApiError as error:
            outcome = eviction_api.EvictionOutcome(result="failed", reason=str(error))
        metrics.evictions_total.labels(outcome.result).inc()
        log.info(
            "pod evicted" if outcome.result == "evicted" else "pod not evicted",
            extra={"pod": str(case.pod), "result": outcome.result, "taint": str(case.taint), "reason": outcome.reason},
        )
        self._events.outcome(case, outcome)
        self._plan_next(case, outcome)

    def _evict(self, case: pending_evictions.PendingEviction) -> eviction_api.EvictionOutcome:
        """Checks the leadership once more, because the last read may have taken seconds."""
        if not self._leadership.leads():
            return eviction_api.EvictionOutcome(result="failed", reason="this replica does not lead any more")
        return eviction_api.evict(self._api, case.pod)

    def _plan_next(self, case: pending_evictions.PendingEviction, outcome: eviction_api.EvictionOutcome) -> None:
        tries = self._tries.setdefault(case.pod.uid, _Tries())
        pause_s = eviction_api.OPTED_OUT_S if outcome.result == "opted-out" else tries.backoff.next_s()
        tries.not_before_s = self._clock() + max(pause_s, outcome.retry_after_s)
        if outcome.result == "evicted" or outcome.unknown:
            self._pace.note()

    def _pause_s(self, case: pending_evictions.PendingEviction) -> float:
        tries = self._tries.get(case.pod.uid)
        return 0.0 if tries is None else tries.not_before_s - self._clock()
