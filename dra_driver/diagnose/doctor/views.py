"""What nodes, pods, claims and classes say of GPUs: who offers them, who wants them, and whose a claim is. No I/O."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Final

from dra_driver.core.quantity import Quantity
from dra_driver.diagnose.doctor.facts import (
    ClusterFacts,
    dicts,
    labels_of,
    mapping,
    name_of,
    namespace_of,
    subject_of,
    text,
)
from dra_driver.kube.state import Wire

WHOLE: Final = "gpu.nvidia.com"
PARTITIONS: Final = "mig.nvidia.com"
GPU_LABELS: Final = (
    "nvidia.com/gpu.present",
    "feature.node.kubernetes.io/pci-10de.present",
    "feature.node.kubernetes.io/pci-0302_10de.present",
    "feature.node.kubernetes.io/pci-0300_10de.present",
)
"""Labels of Nodes with GPUs (deploy/chart/values.yaml, nodes.gpuLabels)."""
PLUGIN_RESOURCES: Final = ("nvidia.com/gpu", "nvidia.com/mig-")
"""What NVIDIA's device plugin offers; the prefix covers ``nvidia.com/gpu.shared``, too."""


def plugin_offers(node: Wire) -> list[str]:
    """What a device plugin offers on the node, as ``nvidia.com/gpu: 8``."""
    allocatable = mapping(node, "status", "allocatable")
    found = [(name, str(amount)) for name, amount in sorted(allocatable.items()) if name.startswith(PLUGIN_RESOURCES)]
    return [f"{name}: {amount}" for name, amount in found if _is_some(amount)]


def label_of(node: Wire) -> str:
    """The first GPU label of the node as KEY=VALUE, "" without one."""
    return next((f"{label}=true" for label in GPU_LABELS if labels_of(node).get(label) == "true"), "")


def _is_some(amount: str) -> bool:
    try:
        return Quantity.parse(amount).as_int() > 0
    except ValueError:
        return False


Key = tuple[str, str]
"""Namespace and name."""


def key_of(item: Wire) -> Key:
    return namespace_of(item), name_of(item)


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
        wanted = {(namespace_of(pod), name) for pod in facts.waiting_pods for name in template_names(pod)}
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
    own = facts.driver_names
    found: dict[tuple[str, str], bool | None] = {}
    for pod in facts.waiting_pods:
        said: list[bool | None] = [True for _ in extended_resources(pod)]
        said += [_of_claim(item, classes, own) for item in _claims_of(pod, claims, templates)]
        found[key_of(pod)] = True if True in said else None if None in said else False
    return found


def gpu_names(facts: ClusterFacts) -> set[tuple[str, str]]:
    """Kind and name of the claims and templates of any namespace that are for GPUs."""
    classes, own = _classes(facts), facts.driver_names
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
    own = facts.driver_names
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
