"""Every taint that the driver puts on devices, as users tolerate it: its key and effect, spelled out."""

from typing import Any

from dra_driver.core.model.drain import DRAIN_ANNOTATION
from dra_driver.core.model.fabric import Fabric, FabricState
from dra_driver.core.model.health import HealthCause, HealthCondition, Severity
from dra_driver.core.model.terms import GpuTerms, Taint
from dra_driver.kube.own_node import OwnNode
from dra_driver.node.policy.resolve import resolve
from dra_driver.node.process.gpu_conditions import GRACE_S, FabricHistory
from dra_driver.node.process.gpu_conditions import TAINT as WITHHELD
from dra_driver.node.process.gpu_conditions import taint_of as fabric_taint
from dra_driver.node.process.health_conditions import amended, taint_of
from dra_driver.node.process.missing_gpus import MissingGpu
from dra_driver.node.process.node_follower import DrainTaint
from dra_driver.node.process.terms_resolver import DetachTaint
from tests.unit.node.policy.hardware import NODE, node, policy, uuid, whole

PROBING, FAILED = Fabric(state=FabricState.IN_PROGRESS), Fabric(state=FabricState.COMPLETED, status=3)
NO_NEW_CLAIMS = {
    "gpu.nvidia.com/xid": "NoSchedule",
    "gpu.nvidia.com/gpu-lost": "NoSchedule",
    "gpu.nvidia.com/unmonitored": "None",
    "gpu.dra-driver.io/ecc": "NoSchedule",
    "gpu.dra-driver.io/hung": "NoSchedule",
    "gpu.dra-driver.io/row-remap": "NoSchedule",
    "gpu.dra-driver.io/retired-pages": "NoSchedule",
    "gpu.dra-driver.io/recovery-action": "NoSchedule",
    "gpu.dra-driver.io/nvlink": "NoSchedule",
    "gpu.dra-driver.io/fabric-unhealthy": "NoSchedule",
}


def health(severity: Severity) -> dict[str, str]:
    found: dict[str, str] = {}
    for cause in HealthCause:
        at = HealthCondition(cause=cause, gpu_uuid=uuid(0), severity=severity, value="", since=1.0, message="")
        taint = taint_of(at)
        assert taint is not None
        found[taint.key] = taint.effect
    return found


def shown(*taints: Taint | None) -> list[tuple[str, str]]:
    return [(taint.key, taint.effect) for taint in taints if taint is not None]


def first(terms: Any) -> GpuTerms:
    found: GpuTerms = terms[uuid(0)]
    return found


def test_taints_of_health() -> None:
    """Pods are evicted only where the policy's severity is that, and never for a GPU that is merely not monitored."""
    assert health(Severity.NO_NEW_CLAIMS) == NO_NEW_CLAIMS
    assert health(Severity.EVICT) == {
        key: "None" if effect == "None" else "NoExecute" for key, effect in NO_NEW_CLAIMS.items()
    }
    missing = amended(node(1), {}, (), {uuid(0): MissingGpu(since=1.0)})
    assert shown(*first(missing).condition_taints) == [("gpu.nvidia.com/gpu-lost", "NoSchedule")]


def test_taints_of_policies_and_people_evict_no_pod() -> None:
    """An edit of a policy, a drain, a detach, or a GPU that cannot be partitioned keeps new claims away only."""
    reserved = policy(availability="Reserved", taints=[{"key": "example.com/team"}])
    drain = DrainTaint(lambda: OwnNode(name=NODE, annotations={DRAIN_ANNOTATION: "all"}), lambda *_: None)
    drain.look()
    detached = DetachTaint()
    detached.value = "requested"
    waited = FabricHistory(was_ready=True, not_ready_since=0.0)
    assert shown(
        *first(resolve([reserved], node(1), (), NODE)).taints,
        *first(resolve([policy(availability="Hidden")], node(1), [whole()], NODE)).taints,
        *first(drain.amend(node(1), {})).taints,
        *first(detached.amend(node(1), {})).taints,
        WITHHELD,
        fabric_taint(waited, FAILED, GRACE_S),
        fabric_taint(waited, PROBING, GRACE_S),
    ) == [
        ("gpu.dra-driver.io/reserved", "NoSchedule"),
        ("example.com/team", "NoSchedule"),
        ("gpu.dra-driver.io/draining", "NoSchedule"),
        ("gpu.dra-driver.io/drained", "NoSchedule"),
        ("gpu.dra-driver.io/detached", "NoSchedule"),
        ("gpu.dra-driver.io/creation-refused", "NoSchedule"),
        ("gpu.dra-driver.io/fabric-not-ready", "NoSchedule"),
        ("gpu.dra-driver.io/fabric-not-ready", "NoSchedule"),
    ]
