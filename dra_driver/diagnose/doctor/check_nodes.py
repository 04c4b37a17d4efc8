"""Check Nodes and GpuNodes: labels, readiness, runtimes; problems, GPU health, driver versions."""

import re
from collections.abc import Iterator
from typing import Final

from dra_driver.core.finding import Finding, Layer, Status, check, fail, finding, ok, warn
from dra_driver.core.model.gpu_node import HealthWord, NodeProblem
from dra_driver.core.model.mig import parent_name
from dra_driver.core.text import listed
from dra_driver.diagnose.doctor import facts as fact
from dra_driver.diagnose.doctor.views import (
    label_of,
    layer_of,
    node_of_claim,
    plugin_offers,
)
from dra_driver.kube.devices import HeldClaim, attribute_shown, held_claim, newest_slices, unhealthy_by
from dra_driver.kube.published.names import PARENT_UUID, UUID
from dra_driver.kube.state import Wire
from dra_driver.scheduler.allocation import node_matches, untolerated

_RUNTIME: Final = re.compile(r"([a-z-]+)://v?(\d{1,4})\.(\d{1,4})(?:\.(\d{1,4}))?")


@check("node-labels", Layer.NODE, "the nodes with GPUs that the DaemonSet selects")
def _selected(facts: fact.ClusterFacts) -> Iterator[Finding]:
    daemonsets, nodes = facts.node_daemonsets, list(facts.items("nodes"))
    for item in daemonsets:
        matched = [node for node in nodes if why_left_out(item, node) == ""]
        if not matched:
            seen = f"selects none of {len(nodes)} nodes: {_why_none(item, nodes)}"
            do = (
                "Label the nodes that have GPUs: kubectl label node NAME nvidia.com/gpu.present=true; or install Node "
                "Feature Discovery; or set nodes.gpuLabels of the chart."
            )
            yield fail(
                seen, f"nodes with {_wanted(item)}", do, fact.subject_of("daemonset", item), reason="NoNodeSelected"
            )
    if not daemonsets:
        return
    left = []
    for node in nodes:
        reasons = [why_left_out(item, node) for item in daemonsets]
        if (label_of(node) or plugin_offers(node)) and all(reasons):
            left.append((node, reasons[0]))
    for node, why in left:
        status = Status.WARN if plugin_offers(node) else Status.FAIL
        yield finding(
            status,
            f"has NVIDIA GPUs ({label_of(node) or ', '.join(plugin_offers(node))}), but the DaemonSet does not "
            f"select it: {why}",
            "a node process on each node with GPUs",
            "Change the node's labels or taints, or nodes.gpuLabels, nodes.selector and nodes.tolerations of the "
            "chart. No action if another driver serves this node.",
            fact.subject_of("node", node),
            reason="NodeNotSelected",
        )
    if not left and nodes:
        count = sum(any(why_left_out(item, node) == "" for item in daemonsets) for node in nodes)
        yield ok(f"the DaemonSet selects {count} of {len(nodes)} nodes", "cluster")


def why_left_out(daemonset: Wire, node: Wire) -> str:
    """The reason for which the DaemonSet has no pod on the node; empty if it has one."""
    labels = fact.labels_of(node)
    for key, value in fact.mapping(daemonset, "spec", "nodeSelector").items():
        if labels.get(key) != value:
            return f"it has {key}={labels.get(key, '<none>')}, wanted {value}"
    affinity = fact.mapping(daemonset, "spec", "nodeAffinity")
    if affinity and not node_matches(affinity, node):
        return f"it has none of the labels {_wanted(daemonset)}"
    taint = untolerated(
        fact.dicts(node, "spec", "taints"), [*fact.dicts(daemonset, "spec", "tolerations"), *_DAEMON_TOLERATIONS]
    )
    return f"its taint {taint.key} ({taint.effect}) is not tolerated" if taint is not None else ""


_DAEMON_TOLERATIONS: Final = tuple(
    {"key": f"node.kubernetes.io/{name}", "operator": "Exists"}
    for name in ("not-ready", "unreachable", "disk-pressure", "memory-pressure", "pid-pressure", "unschedulable")
)
"""The DaemonSet controller adds them to each pod (kubernetes/kubernetes pkg/controller/daemon/util)."""


def _why_none(daemonset: Wire, nodes: list[Wire]) -> str:
    if not nodes:
        return "the cluster has no nodes"
    reasons: dict[str, int] = {}
    for node in nodes:
        why = why_left_out(daemonset, node)
        reasons[why] = reasons.get(why, 0) + 1
    most = max(reasons, key=lambda why: reasons[why])
    return f"of {reasons[most]}, {most}" if most.startswith("it ") else most


def _wanted(daemonset: Wire) -> str:
    """The labels of the affinity as ``KEY=VALUE or KEY=VALUE``."""
    found: list[str] = []
    for term in fact.dicts(daemonset, "spec", "nodeAffinity", "nodeSelectorTerms"):
        parts = []
        for item in fact.dicts(term, "matchExpressions"):
            values = item.get("values")
            shown_values = ",".join(map(str, values)) if isinstance(values, list) else ""
            parts.append(
                f"{fact.text(item, 'key')}={shown_values}"
                if shown_values
                else f"{fact.text(item, 'key')} ({fact.text(item, 'operator')})"
            )
        found.append(" and ".join(parts))
    return " or ".join(found) or "the labels of its nodeSelector"


@check("node-ready", Layer.NODE, "the readiness of nodes with GPUs")
def _readiness(facts: fact.ClusterFacts) -> Iterator[Finding]:
    wanted = facts.driver_nodes
    for node in facts.items("nodes"):
        if fact.name_of(node) not in wanted:
            continue
        subject = fact.subject_of("node", node)
        if not fact.is_ready(node) and fact.condition_of(node, "Ready"):
            message = fact.text(fact.condition_of(node, "Ready"), "message")
            seen = f"is not ready: {message or 'no message'}"
            do = "Check the kubelet of the node first."
            yield fail(seen, "a node that is ready", do, subject, reason="NodeNotReady")
        elif fact.mapping(node, "spec").get("unschedulable") is True:
            seen = "is cordoned, so no new pod gets its GPUs"
            do = f"After maintenance: kubectl uncordon {fact.name_of(node)}"
            yield warn(seen, "a node that takes pods", do, subject, reason="NodeCordoned")


@check("node-exists", Layer.NODE, "the node of the pod or claim")
def _existence(facts: fact.ClusterFacts) -> Iterator[Finding]:
    """Check the node of a pod or claim. The question names no node, so this check finds it."""
    if not facts.about_workload:
        return
    there = {fact.name_of(node) for node in facts.items("nodes")}
    wanted = {fact.text(pod, "spec", "nodeName") for pod in facts.items_or_none("pods")}
    wanted |= {node_of_claim(claim, there) for claim in facts.items_or_none("claims")}
    for node in sorted(wanted - there - {""}):
        do = (
            "Delete the pod if Kubernetes does not do so within minutes. This releases the claim, and the new pod gets "
            "another node."
        )
        yield fail("is deleted, but the pod or its claim still names it", "a Node of this name", do, f"node/{node}")


def runtime_problem(version: str) -> tuple[Status, str, str, str] | None:
    """Status, reason, observation and next step for a runtime such as ``containerd://1.7.24``; None if it works.

    containerd has the CRI field for CDI devices from 1.7.2 on, disabled by default before 2.0; without it a pod
    starts without its GPU and without an error. CRI-O uses it from 1.28 on. Measured with containerd 1.6.20, 1.7.24
    and 2.1.9; from the sources otherwise.
    """
    found = _RUNTIME.match(version)
    if found is None:
        return None
    name, number_of, shown = found[1], (int(found[2]), int(found[3]), int(found[4] or 0)), version.partition("://")[2]
    if name == "containerd" and number_of < (1, 7, 2):
        seen = f"containerd {shown} does not support CDI devices: containers silently get no GPU"
        return Status.FAIL, "OldRuntime", seen, "Upgrade to containerd 2.0 or newer, where CDI is on."
    if name == "containerd" and number_of < (2, 0, 0):
        seen = f"containerd {shown} has CDI disabled unless its configuration enables it"
        do = 'Set enable_cdi = true under [plugins."io.containerd.grpc.v1.cri"] and restart containerd, or use 2.0; '
        return Status.WARN, "CdiDisabled", seen, do + "kubectl dra doctor node/NAME --on-node reads the setting."
    if name == "cri-o" and number_of < (1, 28, 0):
        seen = f"CRI-O {shown} ignores CDI devices of the kubelet"
        return Status.FAIL, "OldRuntime", seen, "Upgrade to CRI-O 1.28 or newer."
    if name == "docker":
        seen = "the container runtime is Docker (cri-dockerd), which ignores CDI devices of the kubelet"
        return Status.FAIL, "CriDockerd", seen, "Use containerd 2.0 or newer, or CRI-O."
    return None


@check("container-runtime", Layer.RUNTIME, "the container runtimes")
def _runtimes(facts: fact.ClusterFacts) -> Iterator[Finding]:
    wanted = facts.driver_nodes
    nodes = [node for node in facts.items("nodes") if fact.name_of(node) in wanted]
    good: dict[str, int] = {}
    for node in nodes:
        version = fact.text(node, "status", "nodeInfo", "containerRuntimeVersion")
        problem = runtime_problem(version)
        if problem is None:
            good[version] = good.get(version, 0) + 1
            continue
        status, reason, seen, do = problem
        expected = "containerd 2.0 or newer, 1.7 with enable_cdi = true, or CRI-O 1.28 or newer"
        yield finding(status, seen, expected, do, fact.subject_of("node", node), reason=reason)
    known = [version for version in sorted(good) if version]
    if known and len(nodes) == sum(good.values()):
        yield ok(f"container runtimes take CDI devices: {listed(known)}", "cluster")


@check("default-runtime", Layer.RUNTIME, "the ways to get GPUs without claims")
def _default_runtime(facts: fact.ClusterFacts) -> Iterator[Finding]:
    """Report NVIDIA's runtime as default: it gives GPUs without a claim to pods that set a variable."""
    for item in facts.items(fact.DAEMONSETS):
        if "container-toolkit" not in fact.name_of(item) or fact.number(item, "status", "desiredNumberScheduled") == 0:
            continue
        if fact.text(item, "spec", "settings", "CONTAINERD_SET_AS_DEFAULT") == "false":
            continue
        yield warn(
            "may make NVIDIA's runtime the default of its nodes (CONTAINERD_SET_AS_DEFAULT is not false)",
            "runc or crun as the default runtime",
            "Set toolkit.env CONTAINERD_SET_AS_DEFAULT=false in the ClusterPolicy. Otherwise any pod can get all GPUs "
            "with the variable NVIDIA_VISIBLE_DEVICES (docs/security.md).",
            fact.subject_of("daemonset", item),
            reason="NvidiaRuntimeDefault",
        )
    wanted = facts.driver_nodes
    for pod in facts.items(fact.VISIBLE_DEVICES):
        is_of_driver = (
            fact.text(pod, "metadata", "labels", fact.COMPONENT) == "node" or fact.text(pod, "owner") == "DaemonSet"
        )
        if fact.text(pod, "spec", "nodeName") not in wanted or pod.get("claims") is True or is_of_driver:
            continue
        seen = (
            f"sets NVIDIA_VISIBLE_DEVICES={fact.text(pod, 'value')} and has no claim, on node "
            f"{fact.text(pod, 'spec', 'nodeName')}"
        )
        do = "Use a claim: if NVIDIA's runtime is the node's default, this pod has GPUs that are allocated to others."
        yield warn(seen, "GPUs only by claims", do, fact.subject_of("pod", pod), reason="VisibleDevicesSet")


_GPU_LEFT_OUT: Final = "GpuLeftOut"
_NOT_READY: Final = "NotReady"


@check("gpu-node-written", Layer.GPUS, "the GpuNodes of nodes")
def _reported(facts: fact.ClusterFacts) -> Iterator[Finding]:
    """Report nodes with a ready node process and without a GpuNode."""
    served = {fact.text(item, "name") for item in fact.dicts(facts.value(fact.GPU_API), "resources")}
    if "gpunodes" not in served:
        return
    there = {fact.name_of(item) for item in facts.items(fact.GPU_NODES)}
    silent = sorted(facts.nodes_with_ready_pods - there)
    for node in silent:
        do = (
            "Read events GpuNodeNotWritten: kubectl get events -n default. Check the chart value gpuNodes.enabled. "
            "Claims work without it."
        )
        yield warn("its node process is ready and has written no GpuNode", "a GpuNode of this name", do, f"node/{node}")


@check("gpu-node-problems", Layer.GPUS, "the problems in GpuNodes")
def _problems(facts: fact.ClusterFacts) -> Iterator[Finding]:
    facts.items(fact.GPU_NODES)
    for node, status in facts.gpu_nodes.items():
        reported = [gpu.message for gpu in status.gpus if gpu.health is HealthWord.UNHEALTHY and gpu.message]
        for problem in status.problems:
            if not any(message in problem.message for message in reported):  # gpu-health reports these
                yield _judged(node, problem)
        if not status.gpus and not any(problem.reason == _NOT_READY for problem in status.problems):
            yield fail(
                "its node process found no GPU",
                "at least one GPU, or no node process on this node",
                "Run nvidia-smi -L on the node; if it shows GPUs, run dra-driver doctor there. If it has none, take "
                "the GPU labels from the node.",
                f"node/{node}",
                layer=Layer.NVML,
                reason="NoGpuFound",
            )

    good = {node: len(status.gpus) for node, status in facts.gpu_nodes.items() if status.gpus and not status.problems}
    if good:
        subject = f"node/{next(iter(good))}" if len(good) == 1 else "cluster"
        seen = f"{sum(good.values())} GPUs of {len(good)} nodes without a problem"
        yield ok(seen, subject)


def _judged(node: str, problem: NodeProblem) -> Finding:
    status = Status.WARN if problem.reason not in (_NOT_READY, _GPU_LEFT_OUT) else Status.FAIL
    return finding(
        status,
        f"its node process reports: {problem.message}",
        "a node process without problems",
        "Follow the message; dra-driver doctor on the node checks driver, devices, sockets and CDI files.",
        f"node/{node}",
        layer=Layer.GPUS if problem.reason == _GPU_LEFT_OUT else layer_of(problem.message, Layer.GPUS),
        reason=problem.reason,
    )


@check("gpu-health", Layer.GPUS, "the health of GPUs")
def _health(facts: fact.ClusterFacts) -> Iterator[Finding]:
    """Check GpuNodes and taints of slices: either may be newer. For a pod or claim only its GPUs are failures."""
    if not facts.knows("slices"):
        facts.items(fact.GPU_NODES)
    held = {
        (each.pool.removesuffix(f"/{each.driver}"), parent_name(each.device))
        for claim in facts.items_or_none("claims")
        for each in held_claim(HeldClaim, claim)[0].devices
    }
    tainted: dict[tuple[str, str], list[str]] = {}
    names: dict[tuple[str, str], str] = {}
    for item in newest_slices(facts.own_slices if facts.knows("slices") else ()):
        driver, node = fact.text(item, "spec", "driver"), fact.text(item, "spec", "nodeName")
        for device in fact.dicts(item, "spec", "devices"):
            if taints := unhealthy_by(device):
                found = [
                    attribute_shown(fact.mapping(device, "attributes"), driver, each) for each in (PARENT_UUID, UUID)
                ]
                name = parent_name(fact.text(device, "name"))
                gpu = (node, next(filter(None, found), name))
                names[gpu] = name
                tainted.setdefault(gpu, []).extend(taints)
    reported = {(node, gpu.uuid): gpu for node, status in facts.gpu_nodes.items() for gpu in status.gpus}
    unhealthy = [place for place, gpu in reported.items() if gpu.health is HealthWord.UNHEALTHY]
    for place in dict.fromkeys([*unhealthy, *tainted]):
        node, uuid = place
        said = reported.get(place)
        if said is not None and said.health is HealthWord.UNHEALTHY:
            seen = f"is unhealthy ({', '.join(said.causes) or 'no cause'}): {said.message or 'no message'}"
        else:
            seen = f"is unhealthy: its devices have the taint {listed(tainted[place], 8)}"
        name = said.name if said is not None else names[place]
        yield finding(
            Status.WARN if facts.about_workload and (node, name) not in held else Status.FAIL,
            seen,
            "a healthy GPU",
            "Follow the message; docs/health.md lists how each cause ends. Before a reset or reboot free the GPU: "
            f"kubectl dra drain {node} --gpu {uuid}.",
            f"gpu/{node}/{name}",
        )


@check("driver-versions", Layer.DRIVER, "the versions of NVIDIA's driver")
def _versions(facts: fact.ClusterFacts) -> Iterator[Finding]:
    facts.items(fact.GPU_NODES)
    found: dict[str, list[str]] = {}
    for node, status in facts.gpu_nodes.items():
        if status.driver_version:
            found.setdefault(status.driver_version, []).append(node)
    if len(found) > 1:
        seen = "nodes differ in NVIDIA's driver: " + "; ".join(
            f"{version} on {listed(sorted(nodes))}" for version, nodes in sorted(found.items())
        )
        do = "kubectl get gpunodes -o wide shows all versions; a claim can request a driverVersion."
        yield warn(seen, "one version, except during an upgrade", do, "cluster")
    elif found:
        yield ok(f"NVIDIA driver {next(iter(found))}", "cluster")


@check("toolkit-versions", Layer.TOOLKIT, "NVIDIA Container Toolkit on nodes")
def _toolkit(facts: fact.ClusterFacts) -> Iterator[Finding]:
    """Report nodes without the hook where other nodes have it: not every cluster needs the hook."""
    facts.items(fact.GPU_NODES)
    with_hook = {node: status.toolkit_version for node, status in facts.gpu_nodes.items() if status.toolkit_version}
    without = sorted(set(facts.gpu_nodes) - set(with_hook))
    if with_hook and without:
        seen = f"{len(with_hook)} nodes have NVIDIA's CDI hook, {listed(without)} have not"
        do = "Install NVIDIA Container Toolkit on these nodes: some applications need its hooks (docs/driver-roots.md)."
        yield warn(seen, "NVIDIA Container Toolkit on all nodes with GPUs, or on none", do, "cluster")
