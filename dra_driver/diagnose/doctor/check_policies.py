"""Check DeviceClasses, GpuPolicies and the usage exporter: they exist, work, and are in force."""

from collections.abc import Iterator, Sequence
from typing import Final

from msgspec.structs import replace

from dra_driver.core.errors import CelEvaluationError, CelSyntaxError, SelectorBudgetError
from dra_driver.core.finding import Finding, Layer, Status, check, fail, finding, ok, warn
from dra_driver.core.model.gpu_node import NodePolicy, PolicyOrigin, PolicyState
from dra_driver.core.text import listed
from dra_driver.diagnose.doctor import facts as fact
from dra_driver.diagnose.doctor.facts import text
from dra_driver.diagnose.doctor.views import (
    PARTITIONS,
    WHOLE,
    expressions,
    is_for,
    used_classes,
)
from dra_driver.kube.published.mig_mode import mig_mode_off, unpublished_gpus, whole_only_gpus
from dra_driver.kube.published.names import TYPE_MIG
from dra_driver.kube.state import Wire
from dra_driver.scheduler.cel import DeviceView, compile_selector, selector_budget

MOST_DEVICES: Final = 5000
"""Number of devices to evaluate a class on; the nodes of a fleet repeat each other."""


@check("classes-present", Layer.CLASSES, "the DeviceClasses of the driver")
def _present(facts: fact.ClusterFacts) -> Iterator[Finding]:
    names = {fact.name_of(item) for item in facts.items("classes")}
    if not (facts.items_or_none(fact.DAEMONSETS) or facts.items_or_none("slices")):
        return
    for name, status, what in (
        (WHOLE, Status.FAIL, "whole GPUs"),
        (PARTITIONS, Status.WARN, "MIG partitions"),
    ):
        if name not in names:
            do = "kubectl apply -f deploy/base/deviceclasses.yaml, or helm upgrade."
            yield finding(status, "does not exist", f"the DeviceClass that claims for {what} name", do, f"class/{name}")
        else:
            yield ok("exists", f"class/{name}")


@check("classes-match", Layer.CLASSES, "the devices that DeviceClasses select")
def _match(facts: fact.ClusterFacts) -> Iterator[Finding]:
    views = device_views(facts.whole.own_slices)
    if not views and not unpublished_gpus(facts.whole.gpu_nodes):
        return
    used = used_classes(facts)
    drivers = facts.driver_names
    for item in facts.items("classes"):
        name = fact.name_of(item)
        if not is_for(item, drivers) and name not in (WHOLE, PARTITIONS):
            continue
        try:
            programs = [compile_selector(expression) for expression in expressions(item)]
            with selector_budget():
                matches = any(all(program.evaluate(view) for program in programs) for view in views)
        except SelectorBudgetError as error:
            yield warn(
                f"its selector is {' '.join(str(error).split())[:300]}",
                "selectors that the scheduler evaluates in time on every device",
                "Write a cheaper selector: each pod of the class evaluates it on each device.",
                f"class/{name}",
                reason="SelectorTooCostly",
            )
            continue
        except (CelSyntaxError, CelEvaluationError) as error:
            seen = f"its selector cannot be evaluated: {' '.join(str(error).split())[:300]}"
            do = "kubectl dra lint class.yaml names the place. A failing selector ends a pod's scheduling on all nodes."
            yield fail(seen, "selectors that evaluate on every device", do, f"class/{name}", reason="SelectorFails")
            continue
        if not matches and ((name == WHOLE and views) or name in used):
            found = _no_match(item, facts.whole, used.get(name, ()), drivers)
            if len(views) == MOST_DEVICES:
                seen = f"none of the first {MOST_DEVICES} published devices matches it"
                found = replace(found, status=Status.UNKNOWN, seen=seen, reason="NoneOfFirstDevicesMatch")
            yield found
        elif matches and name == WHOLE:
            yield ok("selects published devices", f"class/{name}")


def _no_match(item: Wire, facts: fact.ClusterFacts, users: Sequence[str], drivers: Sequence[str]) -> Finding:
    name = fact.name_of(item)
    asked = f"; {listed(list(users))} requests it" if users else ""
    reason = "NoDeviceMatches"
    if not is_for(item, drivers):
        reason = "ClassOfOtherDriver"
        seen = f"its selector is for another driver than {listed(list(drivers))}{asked}"
        do = "Apply deploy/base/deviceclasses.yaml again, or set driverName of the chart to the name in the selector."
    elif TYPE_MIG in " ".join(expressions(item)) or "profile" in " ".join(expressions(item)):
        reason, why, do = _why_no_partitions(item, facts)
        seen = f"no published device matches it{asked}: {why}"
    else:
        seen = f"no published device matches it{asked}"
        do = "kubectl dra explain claim/NAME shows which clause rejects which devices. Nodes publish GPUs that a "
        do += "policy divides in that form."
    status = Status.FAIL if name == WHOLE or users else Status.WARN
    return finding(status, seen, "a class that selects devices", do, f"class/{name}", reason=reason)


def _why_no_partitions(item: Wire, facts: fact.ClusterFacts) -> tuple[str, str, str]:
    """Reason, cause and next step for no matching partition. A gate that the API server omits is unknown."""
    do = "kubectl dra devices shows the published profiles; docs/mig.md lists the conditions."
    if facts.knows(fact.GATES) and facts.value(fact.GATES).get("DRAPartitionableDevices") is False:
        return (
            "FeatureGateOff",
            "the feature gate DRAPartitionableDevices is off, so partitions that do not exist yet are not published",
            "Turn it on in the API server, scheduler and kubelets, or request whole GPUs.",
        )
    programs = [compile_selector(expression) for expression in expressions(item)]
    gpus = [
        gpu
        for gpu in (*whole_only_gpus(facts.own_slices), *unpublished_gpus(facts.gpu_nodes))
        if any(
            all(program.evaluate(DeviceView(gpu.driver, dict(device), lists=True)) for program in programs)
            for device in gpu.as_partitions()
        )
    ]
    reported = {gpu.uuid: gpu for status in facts.gpu_nodes.values() for gpu in status.gpus}
    if gpus:
        seen, do = mig_mode_off(gpus, {uuid: gpu.policy for uuid, gpu in reported.items()})
        problems = [each.message for status in facts.gpu_nodes.values() for each in status.problems]
        obstacle = next((text for text in problems if gpus[0].uuid in text and "MIG mode" in text), None)
        return "MigModeOff", f"{seen}. Its node reports: {obstacle}" if obstacle else seen, do
    if reported and all("Partitions" not in gpu.offered_as for gpu in reported.values()):
        seen = "no node publishes partitions: its GPUs do not support MIG, or a policy does not allow them"
        return "NoPartitions", seen, do
    return "NoSuchPartition", "no node publishes a partition of this kind", do


@check("extended-resources", Layer.CLASSES, "extended resources of DeviceClasses")
def _extended(facts: fact.ClusterFacts) -> Iterator[Finding]:
    by_resource: dict[str, list[str]] = {}
    for item in facts.items("classes"):
        if resource := text(item, "spec", "extendedResourceName"):
            by_resource.setdefault(resource, []).append(fact.name_of(item))
    for resource, names in sorted(by_resource.items()):
        if len(names) > 1:
            seen = f"several classes have the extended resource {resource}: {listed(sorted(names))}"
            do = "Remove extendedResourceName from all classes but one: the scheduler uses the newest."
            yield warn(seen, "one class for an extended resource", do, f"class/{names[0]}")


def device_views(slices: Sequence[Wire]) -> list[DeviceView]:
    """The first devices of all slices, in the form that selectors evaluate."""
    found: list[DeviceView] = []
    for item in slices:
        driver = text(item, "spec", "driver")
        found += [DeviceView(driver, dict(device), lists=True) for device in fact.dicts(item, "spec", "devices")]
        if len(found) >= MOST_DEVICES:
            break
    return found[:MOST_DEVICES]


_JUDGED: Final = {
    "Refused": (
        Status.FAIL,
        "Correct the policy: the message names the field; kubectl dra policy explain shows it.",
    ),
    "Conflicting": (Status.FAIL, "Give one of the policies a higher priority, or narrow its selector."),
    "Waiting": (Status.WARN, "It comes into force when the claims that block it end."),
    "NothingSelected": (
        Status.WARN,
        "Compare its nodeSelector and GPU selector with kubectl get gpunodes -o wide and the nodes' labels.",
    ),
    "RollingOut": (Status.WARN, "Wait for the nodes; kubectl get gpunodes shows a node that stays behind."),
}
"""Reasons of the condition InForce (controller.policy_conditions)."""
_STATES: Final = {
    PolicyState.REFUSED: "Refused",
    PolicyState.CONFLICTING: "Conflicting",
    PolicyState.WAITING: "Waiting",
}
_EXPECTED: Final = "a policy that is in force on all GPUs that it selects"


@check("policy-status", Layer.POLICIES, "the states of GpuPolicies")
def _status(facts: fact.ClusterFacts) -> Iterator[Finding]:
    nodes: dict[str, list[tuple[str, NodePolicy]]] = {}
    for node, reported in _reported(facts, PolicyOrigin.OBJECT):
        nodes.setdefault(reported.name, []).append((node, reported))
    for policy in facts.items(fact.GPU_POLICIES):
        condition = fact.condition_of(policy, "InForce")
        is_current = fact.number(condition, "observedGeneration") >= fact.number(policy, "metadata", "generation")
        if condition and is_current:
            yield from _of_condition(policy, condition)
        else:
            yield from _of_nodes(policy, nodes.get(fact.name_of(policy), []), facts)


def _of_condition(policy: Wire, condition: Wire) -> Iterator[Finding]:
    subject, message = f"policy/{fact.name_of(policy)}", text(condition, "message")
    judged = _JUDGED.get(text(condition, "reason"))
    if judged is None or text(condition, "status") == "True":
        yield ok(message or "in force", subject)
        return
    status, do = judged
    yield finding(status, message, _EXPECTED, do, subject, reason=text(condition, "reason"))


def _of_nodes(policy: Wire, reported: list[tuple[str, NodePolicy]], facts: fact.ClusterFacts) -> Iterator[Finding]:
    """Report a policy without a current status, because the controller does not run or has not processed it yet."""
    subject = f"policy/{fact.name_of(policy)}"
    if not reported:
        facts.items(fact.GPU_NODES)
        seen = "no node reports it, and its status is not current: it selects no GPU, or the nodes cannot read it"
        do = _JUDGED["NothingSelected"][1] + " The controller (chart value controller.enabled) writes its status."
        yield warn(seen, _EXPECTED, do, subject, reason="PolicyNotReported")
        return
    for state, reason in _STATES.items():
        found = [(node, each) for node, each in reported if each.state is state]
        if found:
            status, do = _JUDGED[reason]
            message = next((each.message for _, each in found if each.message), "") or reason.lower()
            where = listed(sorted(node for node, _ in found))
            yield finding(status, f"on {where}: {message}", _EXPECTED, do, subject, reason=reason)


@check("policy-files", Layer.POLICIES, "the states of policies in files")
def _files(facts: fact.ClusterFacts) -> Iterator[Finding]:
    """Check policies of files (chart value policies): they have no object with a status."""
    found: dict[tuple[str, PolicyState], list[tuple[str, NodePolicy]]] = {}
    for node, each in _reported(facts, PolicyOrigin.FILE):
        if each.state in _STATES:
            found.setdefault((each.name, each.state), []).append((node, each))
    for (name, state), nodes in sorted(found.items()):
        status, do = _JUDGED[_STATES[state]]
        policy = nodes[0][1]
        seen = f"from a file, on {listed([each for each, _ in nodes])}: {policy.message or state.value}"
        yield finding(status, seen, _EXPECTED, do, f"policy/{name}", reason=_STATES[state])


def _reported(facts: fact.ClusterFacts, origin: PolicyOrigin) -> Iterator[tuple[str, NodePolicy]]:
    """The reports of each node about policies of this origin."""
    for node, status in facts.gpu_nodes.items():
        for policy in status.policies:
            if policy.origin is origin:
                yield node, policy


EXPORTER: Final = "exporter"
_ACTIONS: Final = (("overGrant", "Evict"), ("idle", "Reclaim"))


@check("usage-watched", Layer.POLICIES, "the exporter that policies need")
def _watched(facts: fact.ClusterFacts) -> Iterator[Finding]:
    """Report policies that evict without the exporter, which the chart disables by default."""
    acting = [
        (fact.name_of(policy), actions) for policy in facts.items(fact.GPU_POLICIES) if (actions := _acts(policy))
    ]
    if not acting:
        return
    lacks = _lacks(facts)
    for name, actions in acting if lacks else ():
        seen = f"requests {' and '.join(actions)}, and {lacks}, so nothing measures the use of claims"
        do = "Set exporter.enabled=true of the chart (docs/usage.md), or remove the action from the policy."
        yield warn(seen, "a usage exporter on each node with a node process", do, f"policy/{name}")


def _acts(policy: Wire) -> list[str]:
    places = [policy.get("spec") or {}, *fact.dicts(policy, "spec", "gpus")]
    return [
        action for field, action in _ACTIONS if any(text(place, "usage", field, "action") == action for place in places)
    ]


def _lacks(facts: fact.ClusterFacts) -> str:
    daemonsets = facts.node_daemonsets
    if daemonsets and not any(fact.setting(each, "USAGE").lower() == "true" for each in daemonsets):
        return "node processes run without USAGE"
    pods = [pod for pod in facts.items(fact.DRIVER_PODS) if text(pod, "metadata", "labels", fact.COMPONENT) == EXPORTER]
    return "" if pods else "no usage exporter runs"


@check("processes-without-claim", Layer.GPUS, "processes without a claim on GPUs")
def _unattributed(facts: fact.ClusterFacts) -> Iterator[Finding]:
    """Report processes without a claim on GPUs that claims can get."""
    facts.items(fact.GPU_NODES)
    for node, status in facts.gpu_nodes.items():
        for reported in status.usage.unattributed:
            commands = f" ({listed(reported.commands)})" if reported.commands else ""
            memory = f" with {reported.memory}" if reported.memory is not None else ""
            seen = f"{reported.processes} processes{memory} have no claim{commands}, since {reported.since}"
            do = (
                "End them, or drain the GPU: kubectl dra drain NODE --gpu UUID. Programs of the host and containers "
                "with NVIDIA_VISIBLE_DEVICES use GPUs without a claim."
            )
            yield warn(seen, "processes of pods with a claim", do, f"gpu/{node}/{reported.gpu}")
