"""Checks of what node processes say in their GpuNodes: problems, GPUs and their health, versions."""

from collections.abc import Iterator
from typing import Final

from dra_driver.core.finding import Finding, Layer, Status, check, fail, finding, ok, warn
from dra_driver.core.model.gpu_node import HealthWord, NodeProblem
from dra_driver.diagnose.doctor import facts as fact
from dra_driver.diagnose.doctor.driver_view import gpu_nodes, nodes_with_ready_pods, shown
from dra_driver.diagnose.doctor.facts import ClusterFacts
from dra_driver.diagnose.doctor.sentences import layer_of
from dra_driver.diagnose.doctor.wire import dicts, name_of, text

_GPU_LEFT_OUT: Final = "GpuLeftOut"
_NOT_READY: Final = "NotReady"


@check("gpu-node-written", Layer.GPUS, "the GpuNodes of nodes")
def _told(facts: ClusterFacts) -> Iterator[Finding]:
    """Nodes with a ready node process that say nothing of their GPUs."""
    served = {text(item, "name") for item in dicts(facts.value(fact.GPU_API), "resources")}
    if "gpunodes" not in served:
        return
    there = {name_of(item) for item in facts.items(fact.GPU_NODES)}
    silent = sorted(nodes_with_ready_pods(facts) - there)
    for node in silent:
        yield warn(
            "its node process is ready and has written no GpuNode",
            "a GpuNode of this name",
            "Look for an event GpuNodeNotWritten: kubectl get events -n default; the chart value "
            "gpuNodes.enabled may "
            "have been changed. Claims work without it.",
            f"node/{node}",
        )


@check("gpu-node-problems", Layer.GPUS, "the problems in GpuNodes")
def _problems(facts: ClusterFacts) -> Iterator[Finding]:
    facts.items(fact.GPU_NODES)
    for node, status in gpu_nodes(facts).items():
        for problem in status.problems:
            yield _judged(node, problem)
        if not status.gpus and not any(problem.reason == _NOT_READY for problem in status.problems):
            yield fail(
                "its node process found no GPU",
                "at least one GPU, or no node process on this node",
                "Run nvidia-smi -L on the node; if it shows GPUs, run dra-driver doctor there. If it has "
                "none, take the "
                "GPU labels from the node.",
                f"node/{node}",
                layer=Layer.NVML,
            )

    good = {node: len(status.gpus) for node, status in gpu_nodes(facts).items() if status.gpus and not status.problems}
    if good:
        subject = f"node/{next(iter(good))}" if len(good) == 1 else "cluster"
        seen = f"{sum(good.values())} GPUs of {len(good)} nodes without a problem"
        yield ok(seen, subject)


def _judged(node: str, problem: NodeProblem) -> Finding:
    status = Status.WARN if problem.reason not in (_NOT_READY, _GPU_LEFT_OUT) else Status.FAIL
    return finding(
        status,
        f"its node process says: {problem.message}",
        "a node process without problems",
        "Follow the sentence; dra-driver doctor on the node looks at driver, devices, sockets and CDI files.",
        f"node/{node}",
        layer=Layer.GPUS if problem.reason == _GPU_LEFT_OUT else layer_of(problem.message, Layer.GPUS),
    )


@check("gpu-health", Layer.GPUS, "the health of GPUs")
def _health(facts: ClusterFacts) -> Iterator[Finding]:
    facts.items(fact.GPU_NODES)
    sick = [
        (node, gpu)
        for node, status in gpu_nodes(facts).items()
        for gpu in status.gpus
        if gpu.health is HealthWord.UNHEALTHY
    ]
    for node, gpu in sick:
        yield fail(
            f"is unhealthy ({', '.join(gpu.causes) or 'no cause'}): {gpu.message or 'no message'}",
            "a healthy GPU",
            "docs/health.md says what ends each cause; many XIDs need a reset (nvidia-smi -r) with the GPU drained: "
            f"kubectl dra drain {node} --gpu {gpu.uuid}.",
            f"gpu/{node}/{gpu.name}",
        )


@check("driver-versions", Layer.DRIVER, "the versions of NVIDIA's driver")
def _versions(facts: ClusterFacts) -> Iterator[Finding]:
    facts.items(fact.GPU_NODES)
    found: dict[str, list[str]] = {}
    for node, status in gpu_nodes(facts).items():
        if status.driver_version:
            found.setdefault(status.driver_version, []).append(node)
    if len(found) > 1:
        yield warn(
            "nodes differ in NVIDIA's driver: "
            + "; ".join(f"{version} on {shown(sorted(nodes))}" for version, nodes in sorted(found.items())),
            "one version, unless an upgrade is under way",
            "kubectl get gpunodes -o wide shows all versions; a claim can ask for driverVersion.",
            "cluster",
        )
    elif found:
        yield ok(f"NVIDIA driver {next(iter(found))}", "cluster")


@check("toolkit-versions", Layer.TOOLKIT, "NVIDIA Container Toolkit on nodes")
def _toolkit(facts: ClusterFacts) -> Iterator[Finding]:
    """The hook is not needed everywhere, so its absence on some nodes alone is what stands out."""
    facts.items(fact.GPU_NODES)
    with_hook = {node: status.toolkit_version for node, status in gpu_nodes(facts).items() if status.toolkit_version}
    without = sorted(set(gpu_nodes(facts)) - set(with_hook))
    if with_hook and without:
        yield warn(
            f"NVIDIA's CDI hook is found on {len(with_hook)} nodes, not on {shown(without)}",
            "NVIDIA Container Toolkit on all nodes with GPUs, or on none",
            "Install NVIDIA Container Toolkit on the others: some applications need its hooks (docs/driver-roots.md).",
            "cluster",
        )


CHECKS: Final = (_told, _problems, _health, _versions, _toolkit)
