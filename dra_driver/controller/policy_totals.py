"""Add up what all nodes say of a policy. Pure.

Each GPU that a policy selects counts once: as in force, waiting, conflicting, refused or outranked. One exception:
where a policy conflicts with a newer one and stays in force until that is mended, the GPU counts as both. A node that
has not read the newest spec of a policy yet counts with what it made of the one before; ``observedGeneration`` says so.
"""

from collections.abc import Iterable, Mapping, Sequence

from msgspec import Struct, field

from dra_driver.controller.policy_views import NodePolicies, PolicyView
from dra_driver.core.model.gpu_node import MAX_NAMES, NodePolicy, PolicyCount, PolicyPlace, PolicyState, PolicyStatus


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
    """The status of each policy by its name."""
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
