"""Checks of GpuPolicies and of the usage exporter that they need."""

from collections.abc import Iterator
from typing import Final

from dra_driver.core.finding import Finding, Layer, Status, check, finding, ok, warn
from dra_driver.core.model.gpu_node import NodePolicy, PolicyOrigin, PolicyState
from dra_driver.diagnose.doctor import facts as fact
from dra_driver.diagnose.doctor.check_daemonset import COMPONENT
from dra_driver.diagnose.doctor.facts import ClusterFacts, Wire, condition_of, dicts, name_of, number, text
from dra_driver.diagnose.doctor.views import gpu_nodes, node_daemonsets, setting, shown

_JUDGED: Final = {
    "Refused": (
        Status.FAIL,
        "Correct the policy: the message names the field; kubectl dra policy explain shows it.",
    ),
    "Conflicting": (Status.FAIL, "Give one of the policies a higher priority, or narrow its selector."),
    "Waiting": (Status.WARN, "It comes into force when the claims that it waits for have ended."),
    "NothingSelected": (
        Status.WARN,
        "Compare its nodeSelector and GPU selector with kubectl get gpunodes -o wide and the nodes' labels.",
    ),
    "RollingOut": (Status.WARN, "Wait for the nodes; one that stays behind is in kubectl get gpunodes."),
}
"""Reasons of the condition InForce (controller.policy_conditions)."""
_STATES: Final = {
    PolicyState.REFUSED: "Refused",
    PolicyState.CONFLICTING: "Conflicting",
    PolicyState.WAITING: "Waiting",
}
_EXPECTED: Final = "a policy that is in force on all GPUs that it selects"


@check("policy-status", Layer.POLICIES, "what became of GpuPolicies")
def _status(facts: ClusterFacts) -> Iterator[Finding]:
    nodes = _by_policy(facts)
    for policy in facts.items(fact.GPU_POLICIES):
        condition = condition_of(policy, "InForce")
        is_current = number(condition, "observedGeneration") >= number(policy, "metadata", "generation")
        if condition and is_current:
            yield from _of_condition(policy, condition)
        else:
            yield from _of_nodes(policy, nodes.get(name_of(policy), []), facts)


def _of_condition(policy: Wire, condition: Wire) -> Iterator[Finding]:
    subject, message = f"policy/{name_of(policy)}", text(condition, "message")
    judged = _JUDGED.get(text(condition, "reason"))
    if judged is None or text(condition, "status") == "True":
        yield ok(message or "in force", subject)
        return
    status, do = judged
    yield finding(status, message, _EXPECTED, do, subject)


def _of_nodes(policy: Wire, told: list[tuple[str, NodePolicy]], facts: ClusterFacts) -> Iterator[Finding]:
    """Without a current status: the controller does not run, or has not come to it."""
    subject = f"policy/{name_of(policy)}"
    if not told:
        facts.items(fact.GPU_NODES)
        yield warn(
            "no node reports it, and its status is not current: it selects no GPU, or the nodes do not see it",
            _EXPECTED,
            _JUDGED["NothingSelected"][1] + " The controller (chart value controller.enabled) writes its status.",
            subject,
        )
        return
    for state, reason in _STATES.items():
        found = [(node, each) for node, each in told if each.state is state]
        if found:
            status, do = _JUDGED[reason]
            message = next((each.message for _, each in found if each.message), "") or reason.lower()
            where = shown(sorted(node for node, _ in found))
            yield finding(status, f"on {where}: {message}", _EXPECTED, do, subject)


@check("policy-files", Layer.POLICIES, "what became of policies in files")
def _files(facts: ClusterFacts) -> Iterator[Finding]:
    """Policies of files (chart value policies) have no object with a status."""
    for (name, state), nodes in sorted(_files_by_state(facts).items()):
        status, do = _JUDGED[_STATES[state]]
        policy = nodes[0][1]
        yield finding(
            status,
            f"of a file, on {shown([each for each, _ in nodes])}: {policy.message or state.value}",
            _EXPECTED,
            do,
            f"policy/{name}",
        )


def _files_by_state(facts: ClusterFacts) -> dict[tuple[str, PolicyState], list[tuple[str, NodePolicy]]]:
    found: dict[tuple[str, PolicyState], list[tuple[str, NodePolicy]]] = {}
    for node, status in gpu_nodes(facts).items():
        for policy in status.policies:
            if policy.origin is PolicyOrigin.FILE and policy.state in _STATES:
                found.setdefault((policy.name, policy.state), []).append((node, policy))
    return found


def _by_policy(facts: ClusterFacts) -> dict[str, list[tuple[str, NodePolicy]]]:
    found: dict[str, list[tuple[str, NodePolicy]]] = {}
    for node, status in gpu_nodes(facts).items():
        for policy in status.policies:
            if policy.origin is PolicyOrigin.OBJECT:
                found.setdefault(policy.name, []).append((node, policy))
    return found


EXPORTER: Final = "exporter"
_ACTIONS: Final = (("overGrant", "Evict"), ("idle", "Reclaim"))


@check("usage-watched", Layer.POLICIES, "the exporter that policies need")
def _watched(facts: ClusterFacts) -> Iterator[Finding]:
    """A policy that evicts needs the exporter, which the chart leaves out by default."""
    acting = [(name_of(policy), actions) for policy in facts.items(fact.GPU_POLICIES) if (actions := _acts(policy))]
    if not acting:
        return
    lacks = _lacks(facts)
    for name, actions in acting if lacks else ():
        yield warn(
            f"asks for {' and '.join(actions)}, and {lacks}: nothing finds out what claims use",
            "a usage exporter beside each node process",
            "Set exporter.enabled=true of the chart (docs/usage.md), or take the action out of the policy.",
            f"policy/{name}",
        )


def _acts(policy: Wire) -> list[str]:
    """The actions that the policy asks for, for any of its GPUs."""
    places = [policy.get("spec") or {}, *dicts(policy, "spec", "gpus")]
    return [
        action for field, action in _ACTIONS if any(text(place, "usage", field, "action") == action for place in places)
    ]


def _lacks(facts: ClusterFacts) -> str:
    daemonsets = node_daemonsets(facts)
    if daemonsets and not any(setting(each, "USAGE").lower() == "true" for each in daemonsets):
        return "node processes run without USAGE"
    pods = [pod for pod in facts.items(fact.DRIVER_PODS) if text(pod, "metadata", "labels", COMPONENT) == EXPORTER]
    return "" if pods else "no usage exporter runs"


@check("processes-without-claim", Layer.GPUS, "processes of no claim on GPUs")
def _foreign(facts: ClusterFacts) -> Iterator[Finding]:
    """Processes of no claim on GPUs that claims get."""
    facts.items(fact.GPU_NODES)
    for node, status in gpu_nodes(facts).items():
        for told in status.usage.unattributed:
            commands = f" ({shown(told.commands)})" if told.commands else ""
            memory = f" with {told.memory}" if told.memory is not None else ""
            yield warn(
                f"{told.processes} processes{memory} belong to no claim{commands}, since {told.since}",
                "processes of pods with a claim",
                "End them, or take the GPU out of use: kubectl dra drain NODE --gpu UUID. Programs of the host use "
                "GPUs without a claim, and so do containers with NVIDIA_VISIBLE_DEVICES.",
                f"gpu/{node}/{told.gpu}",
            )


CHECKS: Final = (_status, _files, _watched, _foreign)
