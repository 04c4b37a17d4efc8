"""The driver as its objects show it: DaemonSets, pods by node, GpuNodes, slices, and the nodes that have to do with it.

Pure over facts. Each property raises UnansweredError where its facts are missing.
"""

from collections.abc import Mapping, Sequence
from typing import Final

from dra_driver.config.status import node_status_of
from dra_driver.core.model.gpu_node import GpuNodeStatus
from dra_driver.core.quantity import Quantity
from dra_driver.diagnose.doctor import facts as fact
from dra_driver.diagnose.doctor.facts import ClusterFacts
from dra_driver.diagnose.doctor.wire import Wire, dicts, is_ready, labels_of, mapping, name_of, namespace_of, text

GPU_LABELS: Final = (
    "nvidia.com/gpu.present",
    "feature.node.kubernetes.io/pci-10de.present",
    "feature.node.kubernetes.io/pci-0302_10de.present",
    "feature.node.kubernetes.io/pci-0300_10de.present",
)
"""Labels of Nodes with GPUs (deploy/chart/values.yaml, nodes.gpuLabels)."""
_GPU_NODES: Final = "status of GpuNodes"
_DEVICES: Final = "devices by node"
PLUGIN_RESOURCES: Final = ("nvidia.com/gpu", "nvidia.com/mig-")
"""What NVIDIA's device plugin offers; the prefix covers ``nvidia.com/gpu.shared``, too."""


def node_daemonsets(facts: ClusterFacts) -> list[Wire]:
    """The DaemonSets of node processes; one, unless the driver is installed twice."""
    return [item for item in facts.items(fact.DAEMONSETS) if name_of(item) == fact.NODE_DAEMONSET]


def setting(daemonset: Wire, name: str) -> str:
    """A setting of the node process as the DaemonSet has it; empty where it has none."""
    return text(daemonset, "spec", "settings", name)


def driver_name(daemonset: Wire) -> str:
    """What slices and classes call the driver."""
    return setting(daemonset, "DRIVER_NAME") or fact.DRIVER_NAME


def driver_names(facts: ClusterFacts) -> list[str]:
    """Names of all installed drivers of this kind; the default one where none is known."""
    listed = facts.items_or_none(fact.DAEMONSETS)
    found = [driver_name(item) for item in listed if name_of(item) == fact.NODE_DAEMONSET]
    told = [found.driver_name for found in gpu_nodes(facts).values()]
    return list(dict.fromkeys([*found, *told])) or [fact.DRIVER_NAME]


def node_pods(facts: ClusterFacts) -> list[Wire]:
    """Pods of the node processes, those of a rolling update twice per node."""
    return [pod for pod in facts.items(fact.DRIVER_PODS) if labels_of(pod).get("app.kubernetes.io/component") == "node"]


def nodes_with_ready_pods(facts: ClusterFacts) -> set[str]:
    """Nodes on which a node process is ready."""
    return {text(pod, "spec", "nodeName") for pod in node_pods(facts) if is_ready(pod)}


def gpu_nodes(facts: ClusterFacts) -> Mapping[str, GpuNodeStatus]:
    """What node processes say, by node; empty where it is not known."""
    if _GPU_NODES not in facts.derived:
        found = {name_of(item): node_status_of(item) for item in facts.items_or_none(fact.GPU_NODES)}
        facts.derived[_GPU_NODES] = {name: status for name, status in found.items() if status is not None}
    known: Mapping[str, GpuNodeStatus] = facts.derived[_GPU_NODES]
    return known


def own_slices(facts: ClusterFacts) -> list[Wire]:
    """ResourceSlices of the driver."""
    names = driver_names(facts)
    return [item for item in facts.items("slices") if text(item, "spec", "driver") in names]


def own_devices(facts: ClusterFacts) -> Mapping[str, list[Wire]]:
    """Devices that the driver publishes, by the node of their slice."""
    if _DEVICES not in facts.derived:
        found: dict[str, list[Wire]] = {}
        for item in own_slices(facts):
            found.setdefault(text(item, "spec", "nodeName"), []).extend(dicts(item, "spec", "devices"))
        facts.derived[_DEVICES] = found
    known: Mapping[str, list[Wire]] = facts.derived[_DEVICES]
    return known


def plugin_offers(node: Wire) -> list[str]:
    """What a device plugin offers on the node, as ``nvidia.com/gpu: 8``."""
    allocatable = mapping(node, "status", "allocatable")
    found = [(name, str(amount)) for name, amount in sorted(allocatable.items()) if name.startswith(PLUGIN_RESOURCES)]
    return [f"{name}: {amount}" for name, amount in found if _is_some(amount)]


def has_gpu_label(node: Wire) -> bool:
    """Whether a label says that the node has NVIDIA GPUs."""
    return any(labels_of(node).get(label) == "true" for label in GPU_LABELS)


def label_of(node: Wire) -> str:
    """The first GPU label of the node as KEY=VALUE."""
    return next((f"{label}=true" for label in GPU_LABELS if labels_of(node).get(label) == "true"), "")


def driver_nodes(facts: ClusterFacts) -> set[str]:
    """Nodes on which the driver runs or has run: with a pod, a GpuNode or slices; as far as these are known."""
    pods = facts.items_or_none(fact.DRIVER_PODS)
    found = {
        text(pod, "spec", "nodeName") for pod in pods if labels_of(pod).get("app.kubernetes.io/component") == "node"
    }
    found |= set(gpu_nodes(facts))
    if facts.knows("slices"):
        found |= {text(item, "spec", "nodeName") for item in own_slices(facts)}
    return found - {""}


def shown(names: Sequence[str], most: int = 4) -> str:
    """The first names, and how many more."""
    rest = len(names) - most
    return ", ".join(names[:most]) + (f" and {rest} more" if rest > 0 else "")


def driver_namespaces(facts: ClusterFacts) -> list[str]:
    """Namespaces with a DaemonSet of node processes."""
    return list(dict.fromkeys(namespace_of(item) for item in node_daemonsets(facts)))


def _is_some(amount: str) -> bool:
    try:
        return Quantity.parse(amount).as_int() > 0
    except ValueError:
        return False
