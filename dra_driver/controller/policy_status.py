"""Writes the status of GpuPolicies from what nodes say in their GpuNodes, in a thread of its own.

Nodes never wait for it: they apply policies without the controller. One turn adds everything up from the watches'
copies (`policy_totals`) and writes the statuses that would change, and no other. While hundreds of nodes roll out a
policy the copies change all the time: a turn begins at most every `PERIOD_S` and writes at most `MOST_WRITES`, those
first that were written longest ago. It acts only while this replica leads and both copies are current; a write by a
second leader would say the same, and one by a stale copy fails by its resourceVersion.
"""

import logging
import random
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from typing import Final, Protocol

from msgspec import Struct, field

from dra_driver.controller.election import Leadership
from dra_driver.controller.policy_totals import NodePolicies, PolicyView, status_of, totals
from dra_driver.core.backoff import Backoff
from dra_driver.core.errors import ConflictError, KubernetesApiError, NotFoundError
from dra_driver.core.telemetry import controller_metrics as metrics
from dra_driver.core.worker import Worker
from dra_driver.kube import paths

log = logging.getLogger(__name__)

THREAD_NAME: Final = "policy-status"
PERIOD_S: Final = 5.0
MOST_WRITES: Final = 20
SETTLE_S: Final = 0.5
IDLE_S: Final = 30.0
FIRST_RETRY_S, LONGEST_RETRY_S = 5.0, 300.0


class StatusApi(Protocol):
    """The part of ``rest.RestClient`` that is needed here. Its requests must end within ``LeaseTimes.request_s``."""

    def update(self, path: str, body: Mapping[str, object]) -> dict[str, object]: ...


class PolicyCopies(Protocol):
    @property
    def problem(self) -> str | None: ...
    def policies(self) -> Sequence[PolicyView]: ...
    def nodes(self) -> Sequence[NodePolicies]: ...


class _Tries(Struct):
    """Of one policy: when it was written last and may be written next (s, monotonic), and the pauses after failures."""

    last_s: float = float("-inf")
    not_before_s: float = 0.0
    backoff: Backoff = field(
        default_factory=lambda: Backoff(first_s=FIRST_RETRY_S, longest_s=LONGEST_RETRY_S, rand=random.random)
    )


class PolicyStatusWriter:
    def __init__(
        self,
        api: StatusApi,
        copies: PolicyCopies,
        leadership: Leadership,
        *,
        clock: Callable[[], float],
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._api, self._copies, self._leadership = api, copies, leadership
        self._clock, self._now = clock, now
        self._tries: dict[str, _Tries] = {}  # by UID of the policy; of the thread alone
        self.worker = Worker(
            THREAD_NAME,
            self.step,
            on_error=partial(metrics.internal_error, THREAD_NAME),
            after_error_s=IDLE_S,
            settle_s=SETTLE_S,
            period_s=PERIOD_S,
            clock=clock,
        )

    def step(self) -> float:
        """Write what changed, as far as the limits allow. Returns seconds until the next look."""
        if not self._leadership.leads():
            self._tries = {}
            metrics.policies.set(0)
            return PERIOD_S  # a Lease that is renewed late lapses for a moment, which wakes nothing
        if self._copies.problem is not None:
            return PERIOD_S
        policies = self._copies.policies()
        metrics.policies.set(len(policies))
        alive = {policy.uid for policy in policies}
        self._tries = {uid: tries for uid, tries in self._tries.items() if uid in alive}
        return self._write_changes(policies)

    def _write_changes(self, policies: Sequence[PolicyView]) -> float:
        found, now = totals(policies, self._copies.nodes()), self._now()
        changed = [(policy, status) for policy in policies if (status := status_of(policy, found[policy.name], now))]
        changed.sort(key=lambda item: (self._tries_of(item[0]).last_s, item[0].name))
        ready = [item for item in changed if self._tries_of(item[0]).not_before_s <= self._clock()]
        for policy, status in ready[:MOST_WRITES]:
            if self.worker.is_stopping or not self._leadership.leads():
                return 0.0
            self._write(policy, status)
        return PERIOD_S if changed else IDLE_S

    def _write(self, policy: PolicyView, status: dict[str, object]) -> None:
        self.worker.beat()
        tries = self._tries.setdefault(policy.uid, _Tries())
        tries.last_s = self._clock()
        try:
            self._api.update(f"{paths.gpu_policies(policy.name)}/status", {**policy.written, "status": status})
        except ConflictError:
            metrics.policy_status_writes_total.labels("outdated").inc()  # the watch brings the newer object
            tries.not_before_s = self._clock() + PERIOD_S
        except NotFoundError:
            # The watch tells that the policy was deleted; a definition without the subresource answers so for ever.
            metrics.policy_status_writes_total.labels("outdated").inc()
            tries.not_before_s = self._clock() + tries.backoff.next_s()
        except KubernetesApiError as error:
            metrics.policy_status_writes_total.labels("failed").inc()
            tries.not_before_s = self._clock() + tries.backoff.next_s()
            log.warning("status of a policy not written", extra={"policy": policy.name, "reason": str(error)})
        else:
            metrics.policy_status_writes_total.labels("written").inc()
            tries.backoff.reset()
            tries.not_before_s = self._clock() + PERIOD_S  # until the watch has brought what was written

    def _tries_of(self, policy: PolicyView) -> _Tries:
        return self._tries.get(policy.uid) or _NEVER


_NEVER: Final = _Tries()
