"""Compute the status of each GpuPolicy from the GpuNodes of all nodes. No I/O.

Each GPU that a policy selects counts once: as in force, waiting, conflicting, refused or outranked. One exception:
where a policy conflicts with a newer one and stays in force until that is resolved, the GPU counts as both. A node that
has not read the newest spec of a policy yet counts with its result for the previous one; ``observedGeneration`` shows
it. Of a node only its results for policies that are objects are kept: a fleet may have thousands of nodes.

The condition ``InForce`` is True where every selected GPU has the policy or is left to one of higher priority on
purpose. ``kubectl wait --for=condition=InForce`` works, ``kubectl get -o wide`` shows its message.
"""

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Final

from msgspec import Struct, field

from dra_driver.config.status import node_status_of
from dra_driver.core.model.gpu_node import (
    MAX_NAMES,
    NodePolicy,
    PolicyCount,
    PolicyOrigin,
    PolicyPlace,
    PolicyState,
    PolicyStatus,
)
from dra_driver.core.text import counted, printable
from dra_driver.core.time import rfc3339
from dra_driver.core.wire import from_wire, to_wire
from dra_driver.kube.objects.meta import ObjectMeta


class PolicyView(Struct, frozen=True, kw_only=True):
    """One GpuPolicy. ``written`` is the object as it was read, which a write of its status sends back."""

    name: str
    uid: str
    generation: int
    written: Mapping[str, object]

    @property
    def status(self) -> Mapping[str, object]:
        status = self.written.get("status")
        return status if isinstance(status, Mapping) else {}


class NodePolicies(Struct, frozen=True, kw_only=True):
    """What one node says of the policies that are objects, by name."""

    name: str
    policies: Mapping[str, NodePolicy]


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
    found = {policy.name: policy for policy in status.policies if policy.origin is PolicyOrigin.OBJECT}
    return NodePolicies(name=str(metadata.get("name") or ""), policies=found)


class _Count(Struct):
    """A `PolicyCount` in the making. Nodes come in the order of their names."""

    nodes: int = 0
    gpus: int = 0
    places: list[PolicyPlace] = field(default_factory=list)

    def add(self, place: PolicyPlace, gpus: int) -> None:
        self.nodes += 1
        self.gpus += gpus
        if len(self.places) < MAX_NAMES:
            self.places.append(place)

    def made(self) -> PolicyCount:
        return PolicyCount(nodes=self.nodes, gpus=self.gpus, places=tuple(self.places))


def totals(policies: Sequence[PolicyView], nodes: Iterable[NodePolicies]) -> Mapping[str, PolicyStatus]:
    said: dict[str, list[tuple[str, NodePolicy]]] = {policy.name: [] for policy in policies}
    for node in sorted(nodes, key=lambda node: node.name):
        for name, found in node.policies.items():
            if name in said:
                said[name].append((node.name, found))
    return {policy.name: _status(policy, said[policy.name]) for policy in policies}


def _status(policy: PolicyView, said: list[tuple[str, NodePolicy]]) -> PolicyStatus:
    selected, in_force, waiting = _Count(), _Count(), _Count()
    refused, conflicting, outranked = _Count(), _Count(), _Count()
    for node, found in said:
        if found.gpus:
            selected.add(PolicyPlace(node=node, gpus=found.gpus), len(found.gpus))
        if found.state is PolicyState.REFUSED:
            refused.add(PolicyPlace(node=node, gpus=found.gpus, message=found.message), len(found.gpus))
            continue
        if found.in_force:
            in_force.add(PolicyPlace(node=node, gpus=found.in_force), len(found.in_force))
        if found.waiting:
            place = PolicyPlace(
                node=node, gpus=found.waiting, claims=found.waiting_for, message=_said(found, "waiting")
            )
            waiting.add(place, len(found.waiting))
        if found.conflicting:
            message = _said(found, "conflicting")
            place = PolicyPlace(node=node, gpus=found.conflicting, policies=found.conflicts_with, message=message)
            conflicting.add(place, len(found.conflicting))
        if others := _outranked(found):
            outranked.add(PolicyPlace(node=node, gpus=others), len(others))
    return PolicyStatus(
        observed_generation=_generation(policy, said),
        selected=selected.made(),
        in_force=in_force.made(),
        waiting=waiting.made(),
        refused=refused.made(),
        conflicting=conflicting.made(),
        outranked=outranked.made(),
    )


def _outranked(found: NodePolicy) -> tuple[str, ...]:
    other = {*found.in_force, *found.waiting, *found.conflicting}
    return tuple(gpu for gpu in found.gpus if gpu not in other)


def _said(found: NodePolicy, part: str) -> str | None:
    """A node gives one message, about its worst state."""
    worst = "conflicting" if found.conflicting else "waiting"
    return found.message if part == worst else None


def _generation(policy: PolicyView, said: list[tuple[str, NodePolicy]]) -> int | None:
    """The oldest spec that a node still has; the newest where no node has another."""
    return min([policy.generation, *(found.generation for _, found in said if found.generation is not None)])


CONDITION: Final = "InForce"
_LONGEST: Final = 1024
_SHOWN: Final = 3
_KEPT: Final = "so what applied before stays"


def status_of(policy: PolicyView, totals: PolicyStatus, now: datetime) -> dict[str, object] | None:
    """The new ``status`` of the object; None where the present one says the same already."""
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


def _condition(policy: PolicyView, totals: PolicyStatus) -> dict[str, object]:
    status, reason, message = _judged(policy, totals)
    return {
        "type": CONDITION,
        "status": status,
        "observedGeneration": totals.observed_generation or 0,
        "reason": reason,
        "message": printable(message)[:_LONGEST],
    }


def _judged(policy: PolicyView, totals: PolicyStatus) -> tuple[str, str, str]:
    """Status, reason and message; of several reasons the worst."""
    done = f"in force on {_of(totals.in_force, totals.selected)}"
    first = _first_message(totals)
    if totals.refused.nodes:
        # An object that a node cannot read selects nothing there.
        done = f"; {done}" if totals.selected.gpus else ""
        return "False", "Refused", f"refused by {counted(totals.refused.nodes, 'node')}{first}, {_KEPT}{done}"
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
        return "False", "NothingSelected", "selects no GPU of a node that tells its GPUs"
    if not totals.in_force.gpus:
        return "False", "Outranked", f"policies of higher priority apply to all of its {_gpus(totals.selected)}"
    left = f"; others of higher priority apply to {_gpus(totals.outranked)}" if totals.outranked.gpus else ""
    return "True", "InForce", f"{done}{left}"


def _first_message(totals: PolicyStatus) -> str:
    said = next((place.message for place in totals.refused.places if place.message), None)
    return f" ({said})" if said else ""


def _for_claims(waiting: PolicyCount) -> str:
    """`` for team/a, team/b and others to end``; the places name the first."""
    claims = sorted({claim for place in waiting.places for claim in place.claims})
    others = " and others" if len(claims) > _SHOWN else ""
    return f" for {', '.join(claims[:_SHOWN])}{others} to end" if claims else ""


def _of(part: PolicyCount, whole: PolicyCount) -> str:
    """``12 of 16 GPUs of 2 nodes``."""
    return f"{part.gpus} of {_gpus(whole)} of {counted(whole.nodes, 'node')}"


def _gpus(count: PolicyCount) -> str:
    return counted(count.gpus, "GPU")
