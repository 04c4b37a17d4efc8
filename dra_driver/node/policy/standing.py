"""What became of each policy on the GPUs of a node: in force, waiting, refused, conflicting or outranked. Pure.

While the newest set cannot be applied, the last good one decides which policy is in force where: a policy that is in
both as it was stays in force, although it may conflict with a newer one there, and so does one that was deleted.
"""

from collections.abc import Iterable, Mapping, Sequence

from msgspec import Struct

from dra_driver.config.policy import GpuPolicy
from dra_driver.core.model.gpu import Gpu, Snapshot
from dra_driver.core.model.gpu_node import NodePolicy, PolicyOrigin, PolicyState
from dra_driver.core.model.ids import GpuUuid
from dra_driver.core.model.terms import Terms, terms_of
from dra_driver.node.policy.policy_set import PolicySet
from dra_driver.node.policy.resolve import agree, matches


class PolicySets(Struct, frozen=True, kw_only=True):
    """Sets of a node: the newest that is valid (None without one), the one in force, and why the newest is not.

    ``refused`` has the problem of single objects, by name.
    """

    newest: PolicySet | None
    in_force: PolicySet | None
    problem: str | None
    refused: Mapping[str, str]


def standing_of(
    found: PolicySets, snapshot: Snapshot, terms: Terms, node_name: str, claims: Mapping[GpuUuid, Sequence[str]]
) -> tuple[NodePolicy, ...]:
    """One entry for each policy that selects a GPU of the node or is refused by name, in order of names.

    ``terms`` are those in force; ``claims`` are names of the claims that have each GPU. On a GPU for which the newest
    policies conflict, one that is in force from before is in both lists.
    """
    good = found.in_force or PolicySet()
    newest = found.newest if found.newest is not None else good
    named = {policy.name for policy in newest.policies}
    generations = {name: value for name, value in (good.generations or {}).items() if name not in named}
    generations |= newest.generations or {}
    newest_ranks = _ranks(newest, snapshot, node_name)
    good_ranks = newest_ranks if newest == good else _ranks(good, snapshot, node_name)

    def entry(policy: GpuPolicy) -> NodePolicy:
        selected = [gpu for gpu in snapshot.gpus if matches(policy.select, gpu, node_name)]
        conflicting = [gpu for gpu in selected if newest_ranks[gpu.uuid].has(policy, agreed=False)]
        is_applied = found.in_force is not None and policy in found.in_force.policies
        applied = [gpu for gpu in selected if is_applied and good_ranks[gpu.uuid].has(policy, agreed=True)]
        waiting = [gpu for gpu in applied if terms_of(terms, gpu.uuid).waiting is not None]
        state, message = PolicyState.OUTRANKED, None
        if conflicting:
            state, message = PolicyState.CONFLICTING, found.problem
        elif not is_applied:
            state, message = PolicyState.REFUSED, found.problem
        elif waiting:
            state, message = PolicyState.WAITING, terms_of(terms, waiting[0].uuid).waiting
        elif applied:
            state = PolicyState.IN_FORCE
        others = {name for gpu in conflicting for name in newest_ranks[gpu.uuid].first} - {policy.name}
        return NodePolicy(
            name=policy.name,
            origin=PolicyOrigin.OBJECT if policy.name in generations else PolicyOrigin.FILE,
            state=state,
            generation=generations.get(policy.name),
            gpus=_names(selected),
            in_force=_names(gpu for gpu in applied if gpu not in waiting),
            waiting=_names(waiting),
            conflicting=_names(conflicting),
            conflicts_with=tuple(sorted(others)),
            waiting_for=tuple(dict.fromkeys(claim for gpu in waiting for claim in claims.get(gpu.uuid, ()))),
            message=message,
        )

    policies = {policy.name: policy for policy in (*good.policies, *newest.policies)}
    shown = [each for policy in policies.values() if (each := entry(policy)).gpus and each.name not in found.refused]
    refused = [
        NodePolicy(name=name, origin=PolicyOrigin.OBJECT, state=PolicyState.REFUSED, message=reason)
        for name, reason in found.refused.items()
    ]
    return tuple(sorted([*shown, *refused], key=lambda each: each.name))


class _Rank(Struct, frozen=True):
    """Of the policies that select one GPU those of the highest priority, and whether they agree."""

    first: tuple[str, ...]
    agree: bool

    def has(self, policy: GpuPolicy, *, agreed: bool) -> bool:
        return policy.name in self.first and self.agree is agreed


def _ranks(policies: PolicySet, snapshot: Snapshot, node_name: str) -> Mapping[GpuUuid, _Rank]:
    ranks = {}
    for gpu in snapshot.gpus:
        matching = [policy for policy in policies.policies if matches(policy.select, gpu, node_name)]
        highest = max((policy.priority for policy in matching), default=0)
        first = [policy for policy in matching if policy.priority == highest]
        ranks[gpu.uuid] = _Rank(tuple(sorted(policy.name for policy in first)), agree(first, gpu))
    return ranks


def _names(gpus: Iterable[Gpu]) -> tuple[str, ...]:
    return tuple(gpu.device_name for gpu in gpus)
