"""Compute the status of each GpuPolicy from the GpuNodes of all nodes, and write it, in a separate thread.

Each GPU that a policy selects counts once. Exception: a policy that conflicts with a newer one and stays in force
counts as both. A node that has not read the newest spec counts with its previous result; ``observedGeneration`` shows
it. The condition ``InForce`` is True where every selected GPU has the policy or is left to one of higher priority.

While hundreds of nodes roll out a policy the copies change all the time: an iteration begins at most every `PERIOD_S`
and writes at most `MOST_WRITES`, oldest first. It acts only while this replica leads and both copies are current. A
second leader would write the same; a write from a stale copy fails by its resourceVersion.
"""

import logging
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from typing import Final, Protocol

from msgspec import Struct, field

from dra_driver.config.status import node_status_of
from dra_driver.controller.election import Leadership
from dra_driver.core.backoff import Backoff
from dra_driver.core.errors import ConflictError, KubernetesApiError, NotFoundError
from dra_driver.core.model import gpu_node
from dra_driver.core.telemetry import controller_metrics as metrics
from dra_driver.core.text import counted, printable
from dra_driver.core.time import rfc3339
from dra_driver.core.wire import from_wire, to_wire
from dra_driver.core.worker import Worker
from dra_driver.kube import paths
from dra_driver.kube.objects.meta import ObjectMeta

log = logging.getLogger(__name__)


class PolicyView(Struct, frozen=True, kw_only=True):
    """One GpuPolicy. ``written`` is the object as read, which a write of its status sends back."""

    name: str
    uid: str
    generation: int
    written: Mapping[str, object]

    @property
    def status(self) -> Mapping[str, object]:
        status = self.written.get("status")
        return status if isinstance(status, Mapping) else {}


class NodePolicies(Struct, frozen=True, kw_only=True):
    """One node's results for policies that are objects, by name."""

    name: str
    policies: Mapping[str, gpu_node.NodePolicy]


def policy_view(item: Mapping[str, object]) -> PolicyView | None:
    metadata = item.get("metadata")
    found = from_wire(ObjectMeta, metadata) if isinstance(metadata, Mapping) else ObjectMeta()
    if not found.name or not isinstance(metadata, Mapping):
        return None
    kept = {key: value for key, value in metadata.items() if key != "managedFields"}
    return PolicyView(
        name=found.name, uid=found.uid, generation=found.generation or 0, written={**item, "metadata": kept}
    )


def node_view(item: Mapping[str, object]) -> NodePolicies | None:
    metadata, status = item.get("metadata"), node_status_of(item)
    if status is None or not isinstance(metadata, Mapping):
        return None
    found = {policy.name: policy for policy in status.policies if policy.origin is gpu_node.PolicyOrigin.OBJECT}
    return NodePolicies(name=str(metadata.get("name") or ""), policies=found)


class _Count(Struct):
    nodes: int = 0
    gpus: int = 0
    places: list[gpu_node.PolicyPlace] = field(default_factory=list)

    def add(self, place: gpu_node.PolicyPlace) -> None:
        self.nodes += 1
        self.gpus += len(place.gpus)
        if len(self.places) < gpu_node.MAX_NAMES:
            self.places.append(place)

    def made(self) -> gpu_node.PolicyCount:
        return gpu_node.PolicyCount(nodes=self.nodes, gpus=self.gpus, places=tuple(self.places))


def totals(policies: Sequence[PolicyView], nodes: Iterable[NodePolicies]) -> Mapping[str, gpu_node.PolicyStatus]:
    said: dict[str, list[tuple[str, gpu_node.NodePolicy]]] = {policy.name: [] for policy in policies}
    for node in sorted(nodes, key=lambda node: node.name):
        for name, found in node.policies.items():
            if name in said:
                said[name].append((node.name, found))
    return {policy.name: _status(policy, said[policy.name]) for policy in policies}


def _status(policy: PolicyView, said: list[tuple[str, gpu_node.NodePolicy]]) -> gpu_node.PolicyStatus:
    selected, in_force, waiting = _Count(), _Count(), _Count()
    refused, conflicting, outranked = _Count(), _Count(), _Count()
    for node, found in said:
        if found.gpus:
            selected.add(gpu_node.PolicyPlace(node=node, gpus=found.gpus))
        if found.state is gpu_node.PolicyState.REFUSED:
            refused.add(gpu_node.PolicyPlace(node=node, gpus=found.gpus, message=found.message))
            continue
        if found.in_force:
            in_force.add(gpu_node.PolicyPlace(node=node, gpus=found.in_force))
        if found.waiting:
            # A node gives one message, about its worst state.
            message = None if found.conflicting else found.message
            waiting.add(gpu_node.PolicyPlace(node=node, gpus=found.waiting, claims=found.waiting_for, message=message))
        if found.conflicting:
            policies, message = found.conflicts_with, found.message
            conflicting.add(gpu_node.PolicyPlace(node=node, gpus=found.conflicting, policies=policies, message=message))
        applied = {*found.in_force, *found.waiting, *found.conflicting}
        if left := tuple(gpu for gpu in found.gpus if gpu not in applied):
            outranked.add(gpu_node.PolicyPlace(node=node, gpus=left))
    # The oldest spec that a node still has; the newest where no node has another.
    generations = (found.generation for _, found in said if found.generation is not None)
    return gpu_node.PolicyStatus(
        observed_generation=min([policy.generation, *generations]),
        selected=selected.made(),
        in_force=in_force.made(),
        waiting=waiting.made(),
        refused=refused.made(),
        conflicting=conflicting.made(),
        outranked=outranked.made(),
    )


CONDITION: Final = "InForce"
_LONGEST: Final = 1024
_SHOWN: Final = 3
_KEPT: Final = "so what applied before stays"


def status_of(policy: PolicyView, totals: gpu_node.PolicyStatus, now: datetime) -> dict[str, object] | None:
    """The new ``status`` of the object; None if it is unchanged."""
    wanted = to_wire(totals)
    condition = _condition(policy, totals)
    listed = policy.status.get("conditions")
    conditions = [item for item in listed if isinstance(item, Mapping)] if isinstance(listed, list) else []
    present = next((item for item in conditions if item.get("type") == CONDITION), {})
    since = present.get("lastTransitionTime") if present.get("status") == condition["status"] else None
    stamp = since if isinstance(since, str) else rfc3339(now)
    others = [item for item in conditions if item.get("type") != CONDITION]  # of other writers
    wanted["conditions"] = [*others, {**condition, "lastTransitionTime": stamp}]
    return None if wanted == dict(policy.status) else wanted


def _condition(policy: PolicyView, totals: gpu_node.PolicyStatus) -> dict[str, object]:
    status, reason, message = _judged(policy, totals)
    return {
        "type": CONDITION,
        "status": status,
        "observedGeneration": totals.observed_generation or 0,
        "reason": reason,
        "message": printable(message)[:_LONGEST],
    }


def _judged(policy: PolicyView, totals: gpu_node.PolicyStatus) -> tuple[str, str, str]:
    """Status, reason and message; of several reasons the worst."""
    done = f"in force on {_of(totals.in_force, totals.selected)}"
    said = next((f" ({place.message})" for place in totals.refused.places if place.message), "")
    if totals.refused.nodes:
        # An object selects no GPU on a node that cannot read it.
        done = f"; {done}" if totals.selected.gpus else ""
        return "False", "Refused", f"refused by {counted(totals.refused.nodes, 'node')}{said}, {_KEPT}{done}"
    if totals.conflicting.gpus:
        others = sorted({name for place in totals.conflicting.places for name in place.policies})
        with_ = f" with {', '.join(others)}" if others else ""
        return "False", "Conflicting", f"conflicts on {_gpus(totals.conflicting)}{with_}, {_KEPT}; {done}"
    if (totals.observed_generation or 0) < policy.generation:
        return "Unknown", "RollingOut", f"some nodes have not applied the newest spec yet; {done}"
    if totals.waiting.gpus:
        verb = "waits" if totals.waiting.gpus == 1 else "wait"
        return "False", "Waiting", f"{_gpus(totals.waiting)} {verb}{_for_claims(totals.waiting)}; {done}"
    if not totals.selected.gpus:
        return "False", "NothingSelected", "selects no GPU of a node that reports its GPUs"
    if not totals.in_force.gpus:
        return "False", "Outranked", f"policies of higher priority apply to all of its {_gpus(totals.selected)}"
    left = f"; others of higher priority apply to {_gpus(totals.outranked)}" if totals.outranked.gpus else ""
    return "True", "InForce", f"{done}{left}"


def _for_claims(waiting: gpu_node.PolicyCount) -> str:
    """`` for team/a, team/b and others to end``"""
    claims = sorted({claim for place in waiting.places for claim in place.claims})
    others = " and others" if len(claims) > _SHOWN else ""
    return f" for {', '.join(claims[:_SHOWN])}{others} to end" if claims else ""


def _of(part: gpu_node.PolicyCount, whole: gpu_node.PolicyCount) -> str:
    """``12 of 16 GPUs of 2 nodes``"""
    return f"{part.gpus} of {_gpus(whole)} of {counted(whole.nodes, 'node')}"


def _gpus(count: gpu_node.PolicyCount) -> str:
    return counted(count.gpus, "GPU")


THREAD_NAME: Final = "policy-status"
PERIOD_S: Final = 5.0
MOST_WRITES: Final = 20
SETTLE_S: Final = 0.5
IDLE_S: Final = 30.0
FIRST_RETRY_S, LONGEST_RETRY_S = 5.0, 300.0


class StatusApi(Protocol):
    """Subset of ``rest.RestClient`` that this module uses. Requests must end within ``LeaseTimes.request_s``."""

    def update(self, path: str, body: Mapping[str, object]) -> dict[str, object]: ...


class PolicyCopies(Protocol):
    @property
    def problem(self) -> str | None: ...
    def policies(self) -> Sequence[PolicyView]: ...
    def nodes(self) -> Sequence[NodePolicies]: ...


class _Tries(Struct):
    """Times of one policy's last write and next possible write (s, monotonic), and the pauses after failures."""

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
        """Write changed statuses within the limits. Returns seconds until the next call."""
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
            # The watch reports a deleted policy; a definition without the subresource gives this answer permanently.
            metrics.policy_status_writes_total.labels("outdated").inc()
            tries.not_before_s = self._clock() + tries.backoff.next_s()
        except KubernetesApiError as error:
            metrics.policy_status_writes_total.labels("failed").inc()
            tries.not_before_s = self._clock() + tries.backoff.next_s()
            log.warning("status of a policy not written", extra={"policy": policy.name, "reason": str(error)})
        else:
            metrics.policy_status_writes_total.labels("written").inc()
            tries.backoff.reset()
            tries.not_before_s = self._clock() + PERIOD_S  # until the watch has delivered the write

    def _tries_of(self, policy: PolicyView) -> _Tries:
        return self._tries.get(policy.uid) or _NEVER


_NEVER: Final = _Tries()
