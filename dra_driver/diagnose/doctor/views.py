"""The driver and the workloads as their objects show them: DaemonSets, pods, GpuNodes, slices, and who uses GPUs.

No I/O. Each function raises UnansweredError where its facts are missing."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Final

from dra_driver.config.status import node_status_of
from dra_driver.core.model.gpu_node import GpuNodeStatus
from dra_driver.core.quantity import Quantity
from dra_driver.diagnose.doctor import facts as fact
from dra_driver.diagnose.doctor.facts import (
    ClusterFacts,
    Wire,
    dicts,
    is_ready,
    labels_of,
    mapping,
    name_of,
    namespace_of,
    subject_of,
    text,
)

WHOLE: Final = "gpu.nvidia.com"
PARTITIONS: Final = "mig.nvidia.com"
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
    return {text(pod, "spec", "nodeName") for pod in node_pods(facts) if is_ready(pod)}


def gpu_nodes(facts: ClusterFacts) -> Mapping[str, GpuNodeStatus]:
    """What node processes say, by node; empty where it is not known."""
    if _GPU_NODES not in facts.derived:
        found = {name_of(item): node_status_of(item) for item in facts.items_or_none(fact.GPU_NODES)}
        facts.derived[_GPU_NODES] = {name: status for name, status in found.items() if status is not None}
    known: Mapping[str, GpuNodeStatus] = facts.derived[_GPU_NODES]
    return known


def own_slices(facts: ClusterFacts) -> list[Wire]:
    names = driver_names(facts)
    return [item for item in facts.items("slices") if text(item, "spec", "driver") in names]


def own_devices(facts: ClusterFacts) -> Mapping[str, list[Wire]]:
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


def _is_some(amount: str) -> bool:
    try:
        return Quantity.parse(amount).as_int() > 0
    except ValueError:
        return False


Key = tuple[str, str]
"""Namespace and name."""


def key_of(item: Wire) -> Key:
    return namespace_of(item), name_of(item)


def waiting_pods(facts: ClusterFacts) -> list[Wire]:
    """Pods that have not begun to run and are not being deleted."""
    return [
        pod
        for pod in facts.items("pods")
        if text(pod, "status", "phase") in ("", "Pending") and not text(pod, "metadata", "deletionTimestamp")
    ]


def classes_in(spec: object) -> list[str]:
    found = []
    for request in dicts(spec, "devices", "requests"):
        for part in (request, mapping(request, "exactly"), *dicts(request, "firstAvailable")):
            if name := text(part, "deviceClassName"):
                found.append(name)
    return found


def used_classes(facts: ClusterFacts) -> Mapping[str, list[str]]:
    """Claims without an allocation, and templates of waiting pods, by the class that they name."""
    found: dict[str, list[str]] = {}
    for claim in facts.items_or_none("claims"):
        if not mapping(claim, "status", "allocation"):
            for name in classes_in(mapping(claim, "spec")):
                found.setdefault(name, []).append(subject_of("claim", claim))
    if facts.knows("pods") and facts.knows("templates"):
        wanted = {(namespace_of(pod), name) for pod in waiting_pods(facts) for name in template_names(pod)}
        for template in facts.items("templates"):
            if key_of(template) in wanted:
                for name in classes_in(mapping(template, "spec", "spec")):
                    found.setdefault(name, []).append(subject_of("template", template))
    return found


def template_names(pod: Wire) -> list[str]:
    return [name for item in dicts(pod, "spec", "resourceClaims") if (name := text(item, "resourceClaimTemplateName"))]


def claim_names(pod: Wire) -> list[str]:
    """Claims that the pod names itself."""
    return [name for item in dicts(pod, "spec", "resourceClaims") if (name := text(item, "resourceClaimName"))]


def node_of_claim(claim: Wire, nodes: Collection[str]) -> str:
    """The node of the claim's first device, "" where its pool is of no node.

    This driver's pools are named ``node/driver``, NVIDIA's by one of the ``nodes``.
    """
    results = dicts(claim, "status", "allocation", "devices", "results")
    pool, driver = (text(results[0], name) for name in ("pool", "driver")) if results else ("", "")
    node = pool.removesuffix(f"/{driver}")
    return node if node != pool or node in nodes else ""


def extended_resources(pod: Wire) -> Iterator[str]:
    """NVIDIA's extended resources that the pod's containers ask for, each once."""
    seen: set[str] = set()
    for container in (*dicts(pod, "spec", "initContainers"), *dicts(pod, "spec", "containers")):
        for part in ("limits", "requests"):
            for name in mapping(container, "resources", part):
                if str(name).startswith("nvidia.com/") and name not in seen:
                    seen.add(str(name))
                    yield str(name)


def concerns(facts: ClusterFacts) -> Mapping[tuple[str, str], bool | None]:
    """Waiting pods by namespace and name: whether a claim of theirs is for GPUs, None where that is not known."""
    templates = {key_of(item): mapping(item, "spec", "spec") for item in facts.items_or_none("templates")}
    claims = {key_of(item): item for item in facts.items_or_none("claims")}
    classes = _classes(facts)
    own = driver_names(facts)
    found: dict[tuple[str, str], bool | None] = {}
    for pod in waiting_pods(facts):
        said: list[bool | None] = [True for _ in extended_resources(pod)]
        said += [_of_claim(item, classes, own) for item in _claims_of(pod, claims, templates)]
        found[key_of(pod)] = True if True in said else None if None in said else False
    return found


def gpu_names(facts: ClusterFacts) -> set[tuple[str, str]]:
    """Kind and name of the claims and templates of any namespace that are for GPUs."""
    classes, own = _classes(facts), driver_names(facts)
    found = {
        ("ResourceClaimTemplate", name_of(item))
        for item in facts.items_or_none("templates")
        if _of_claim({"spec": mapping(item, "spec", "spec")}, classes, own)
    }
    return found | {
        ("ResourceClaim", name_of(item)) for item in facts.items_or_none("claims") if _of_claim(item, classes, own)
    }


def _classes(facts: ClusterFacts) -> dict[str, bool | None]:
    """Whether a class is for GPUs, by its name; None for one without selectors, which takes any device."""
    own = driver_names(facts)
    found: dict[str, bool | None] = {}
    for item in facts.items_or_none("classes"):
        found[name_of(item)] = is_for(item, own) if expressions(item) else None
    return {**found, WHOLE: True, PARTITIONS: True}


def _claims_of(
    pod: Wire, claims: Mapping[tuple[str, str], Wire], templates: Mapping[tuple[str, str], Wire]
) -> Iterator[Wire | None]:
    """The pod's claims, and templates as claims; None for one that is not there."""
    place = namespace_of(pod)
    for name in claim_names(pod):
        yield claims.get((place, name))
    for name in template_names(pod):
        spec = templates.get((place, name))
        yield None if spec is None else {"spec": spec}
    for status in dicts(pod, "status", "resourceClaimStatuses"):
        if item := claims.get((place, text(status, "resourceClaimName"))):
            yield item


def _of_claim(claim: Wire | None, classes: Mapping[str, bool | None], own: list[str]) -> bool | None:
    if claim is None:
        return None
    results = dicts(claim, "status", "allocation", "devices", "results")
    said = [classes.get(name) for name in classes_in(mapping(claim, "spec"))]
    if True in said or any(text(each, "driver") in own for each in results):
        return True
    return None if None in said and not results else False


def expressions(item: Wire) -> list[str]:
    return [found for selector in dicts(item, "spec", "selectors") if (found := text(selector, "cel", "expression"))]


def is_for(item: Wire, drivers: Sequence[str]) -> bool:
    joined = " ".join(expressions(item))
    return any(f'"{driver}"' in joined or f"'{driver}'" in joined for driver in drivers)
