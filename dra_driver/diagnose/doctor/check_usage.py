"""Checks of what watches the use of GPUs: the exporter where policies act on it, and what node processes tell of it."""

from collections.abc import Iterator
from typing import Final

from dra_driver.core.finding import Finding, Layer, check, warn
from dra_driver.diagnose.doctor import facts as fact
from dra_driver.diagnose.doctor.check_daemonset import COMPONENT
from dra_driver.diagnose.doctor.driver_view import gpu_nodes, node_daemonsets, setting, shown
from dra_driver.diagnose.doctor.facts import ClusterFacts
from dra_driver.diagnose.doctor.wire import Wire, dicts, name_of, text

EXPORTER: Final = "exporter"
_ACTIONS: Final = (("overGrant", "Evict"), ("idle", "Reclaim"))
_EXPECTED: Final = "a usage exporter beside each node process"


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
            _EXPECTED,
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


CHECKS: Final = (_watched, _foreign)
