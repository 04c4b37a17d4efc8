"""Evict pods of claims over their grant and of idle claims, as nodes request in their GpuNodes, in a separate thread.

Each case is announced on its pods. It is acted on after its wait if its node has renewed it since: a GpuNode stays when
its node dies. The wait counts from the announcement by this process' clock: a new leader announces again, and no clock
of a node can shorten it. One pod is evicted at a time, with the pace of all evictions and a brake; then the claim is
read again.
"""

import logging
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Final, Protocol

from msgspec import Struct, field

from dra_driver.controller import eviction_api, usage_requests
from dra_driver.controller.election import Leadership
from dra_driver.controller.pending_evictions import PodRef
from dra_driver.core.backoff import Backoff
from dra_driver.core.errors import KubernetesApiError
from dra_driver.core.telemetry import controller_metrics as metrics
from dra_driver.core.worker import Worker
from dra_driver.kube.evictions import NO_EVICTION

log = logging.getLogger(__name__)

THREAD_NAME: Final = "usage-evictions"
SETTLE_S: Final = 0.5
IDLE_S: Final = 30.0


class GpuNodeCopies(Protocol):
    @property
    def problem(self) -> str | None: ...
    def nodes(self) -> Sequence[usage_requests.NodeUse]: ...


class UsageEvictionRules(Struct, frozen=True, kw_only=True):
    """The enabled kinds, and the brake. ``driver`` is this driver's name."""

    driver: str
    over_grant: bool
    idle: bool
    brake: eviction_api.BrakeRules


class UsageEvictionEvents(eviction_api.PodEvents):
    def announced(self, case: usage_requests.UsageEvictionRequest, pods: Iterable[PodRef]) -> None:
        what = "Free memory" if case.kind == "over-grant" else "Use the GPU"
        keep = f', or keep the pod with the annotation {NO_EVICTION}: "true"'
        text = (
            f"{case.why[:1].upper()}{case.why[1:]}. Pod will be evicted in {case.wait_s:.0f} s unless this changes."
            f" {what}{'' if case.past_protection else keep}"
        )
        for pod in pods:
            self._about(pod, "Warning", eviction_api.ANNOUNCED, text)

    def outcome(
        self, case: usage_requests.UsageEvictionRequest, pod: PodRef, outcome: eviction_api.EvictionOutcome
    ) -> None:
        self._record_outcome(
            pod,
            outcome.result,
            f"Evicted: {case.why}, {case.wait_s:.0f} s after it was announced",
            f"{case.why}: {outcome.reason}",
            f"although {case.why}: {outcome.reason}",
        )

    def brake(self, is_on: bool, *, waiting: int) -> None:
        braked = (
            f"Usage evictions paused: {waiting} claims exceed their grant or are idle at the same time. Check for a"
            " common cause, such as a policy or driver change. See docs/usage-limits.md"
        )
        self._record_brake(is_on, braked, "Usage evictions resumed")


class _Open(Struct):
    """A case announced at ``announced_s`` to these pod UIDs; the next attempt is due at ``not_before_s``; the API
    server first confirmed it at ``verified_s`` (monotonic)."""

    announced_s: float
    not_before_s: float
    verified_s: float | None = None
    reported: set[str] = field(default_factory=set)
    backoff: Backoff = field(default_factory=eviction_api.retries)


class UsageEvictions:
    def __init__(
        self,
        api: eviction_api.EvictionRequests,
        copies: GpuNodeCopies,
        leadership: Leadership,
        rules: UsageEvictionRules,
        events: UsageEvictionEvents,
        *,
        pace: eviction_api.Pace,
        clock: Callable[[], float],
    ) -> None:
        self._api, self._copies, self._leadership = api, copies, leadership
        self._rules, self._events, self._pace, self._clock = rules, events, pace, clock
        self._open: dict[usage_requests.CaseKey, _Open] = {}  # of the thread alone, as the next
        self._renewed: dict[str, tuple[str | None, float]] = {}
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
        """Announce new cases, and evict due pods. Returns seconds until the next call."""
        if not self._leadership.leads():
            self._open, self._renewed = {}, {}
            self._pace.forget()
            metrics.no_usage_cases()
            return IDLE_S
        if self._copies.problem is not None:
            return 1.0
        nodes = self._copies.nodes()
        cases = self._current(nodes)
        self._announce(cases)
        verified = {key: case.verified_s for key, case in self._open.items() if case.verified_s is not None}
        braked = usage_requests.is_braked(
            cases, verified, {node.name: node.gpus for node in nodes}, self._rules.brake, self._clock()
        )
        self._publish(cases, braked)
        return IDLE_S if braked else self._evict_due(cases)

    def _current(self, nodes: Sequence[usage_requests.NodeUse]) -> list[usage_requests.UsageEvictionRequest]:
        """The cases of nodes that renew their requests; another node may have died."""
        now_s = self._clock()
        renewed = self._renewed
        self._renewed = {
            node.name: renewed[node.name]
            if node.name in renewed and renewed[node.name][0] == node.reported.checked_at
            else (node.reported.checked_at, now_s)
            for node in nodes
        }
        fresh = [
            node
            for node in nodes
            if now_s - self._renewed[node.name][1] <= usage_requests.FRESH_S and node.reported.checked_at
        ]
        cases = usage_requests.usage_cases(fresh, over_grant=self._rules.over_grant, idle=self._rules.idle)
        alive = {case.key for case in cases}
        self._open = {key: case for key, case in self._open.items() if key in alive}
        return cases

    def _announce(self, cases: Sequence[usage_requests.UsageEvictionRequest]) -> None:
        for case in cases:
            if case.key in self._open or self.worker.is_stopping:
                continue
            self.worker.beat()
            now_s = self._clock()
            self._open[case.key] = known = _Open(announced_s=now_s, not_before_s=now_s + case.wait_s)
            self._tell(case, known, self._candidates(case, known).pods)

    def _tell(self, case: usage_requests.UsageEvictionRequest, known: _Open, pods: Sequence[PodRef]) -> None:
        known.reported.update(pod.uid for pod in pods)
        self._events.announced(case, pods)

    def _publish(self, cases: Sequence[usage_requests.UsageEvictionRequest], braked: bool) -> None:
        metrics.usage_brake.set(braked)
        for kind in metrics.USAGE_KINDS:
            metrics.usage_cases.labels(kind).set(sum(case.kind == kind for case in cases))
        self._events.brake(braked, waiting=len(cases))

    def _evict_due(self, cases: Sequence[usage_requests.UsageEvictionRequest]) -> float:
        wait_s = IDLE_S
        for case in cases:
            known = self._open.get(case.key)
            if known is None or self._renewed[case.node][1] <= known.announced_s:
                continue
            left_s = known.not_before_s - self._clock()
            if left_s <= 0 and (left_s := self._pace.left_s()) <= 0:
                if self.worker.is_stopping or not self._leadership.leads():
                    return 0.0
                self._try(case, known)
                left_s = known.not_before_s - self._clock()
            wait_s = min(wait_s, max(left_s, SETTLE_S))
        return wait_s

    def _try(self, case: usage_requests.UsageEvictionRequest, known: _Open) -> None:
        self.worker.beat()
        pod, outcome = self._one(case, known)
        if outcome.result == "announced":
            known.not_before_s = self._clock() + case.wait_s
            return
        metrics.usage_evictions_total.labels(case.kind, outcome.result).inc()
        log.info(
            "pod evicted" if outcome.result == "evicted" else "pod not evicted",
            extra={"claim": f"{case.namespace}/{case.claim}", "node": case.node, "kind": case.kind}
            | {"pod": str(pod), "result": outcome.result, "reason": outcome.reason},
        )
        if pod is not None:
            self._events.outcome(case, pod, outcome)
        pause_s = eviction_api.OPTED_OUT_S if outcome.result == "opted-out" else known.backoff.next_s()
        if outcome.result == "evicted" and case.kind == "over-grant":
            pause_s = max(case.wait_s, eviction_api.OPTED_OUT_S)  # the exporter reports freed memory with a delay
        known.not_before_s = self._clock() + max(pause_s, outcome.retry_after_s)

    def _one(
        self, case: usage_requests.UsageEvictionRequest, known: _Open
    ) -> tuple[PodRef | None, eviction_api.EvictionOutcome]:
        """Evict the first pod that may be, after one more check of everything."""
        try:
            outcome = usage_requests.still_requested(self._api, case)
        except KubernetesApiError as error:
            outcome = eviction_api.EvictionOutcome(result="failed", reason=str(error))
        if outcome is not None:
            return None, outcome
        found = self._candidates(case, known)
        if found.outcome is not None:
            return (case.pods[0] if case.pods else None), found.outcome
        pod = found.pods[0]
        if pod.uid not in known.reported:  # it came later, or could not be read then
            self._tell(case, known, [pod])
            return pod, eviction_api.EvictionOutcome(result="announced")
        if not self._leadership.leads():
            return pod, eviction_api.EvictionOutcome(result="failed", reason="this replica does not lead any more")
        if not self._pace.take():
            return pod, eviction_api.EvictionOutcome(result="failed", reason="another pod was evicted at the same time")
        return pod, eviction_api.evict(self._api, pod, past_budgets=case.past_protection)

    def _candidates(self, case: usage_requests.UsageEvictionRequest, known: _Open) -> usage_requests.EvictionCandidates:
        try:
            found = usage_requests.candidates(self._api, case, self._rules.driver)
        except KubernetesApiError as error:
            return usage_requests.EvictionCandidates(
                outcome=eviction_api.EvictionOutcome(result="failed", reason=str(error))
            )
        except (AttributeError, TypeError) as error:
            return usage_requests.EvictionCandidates(
                outcome=usage_requests.gone(f"the claim or a pod of it is malformed: {error}")
            )
        if found.is_verified and known.verified_s is None:
            known.verified_s = self._clock()
        return found
