"""GPU-related facts of nodes, pods, claims and classes, and the layer that a message or log line is about. No I/O.

Messages come from node processes (`kubelet.plugin.Plugin.ready`), Kubernetes and containerd; tests contain them.
"""

import json
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Final

from dra_driver.core.finding import Layer
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
"""Resources of NVIDIA's device plugin; the prefix covers ``nvidia.com/gpu.shared``, too."""


def plugin_offers(node: Wire) -> list[str]:
    """A device plugin's resources on the node, as ``nvidia.com/gpu: 8``."""
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
    """The node of the claim's first device, "" if its pool is not that of a node.

    This driver's pools are named ``node/driver``, NVIDIA's by one of the ``nodes``.
    """
    results = dicts(claim, "status", "allocation", "devices", "results")
    pool, driver = (text(results[0], name) for name in ("pool", "driver")) if results else ("", "")
    node = pool.removesuffix(f"/{driver}")
    return node if node != pool or node in nodes else ""


def extended_resources(pod: Wire) -> Iterator[str]:
    """NVIDIA's extended resources that the pod's containers request, each once."""
    seen: set[str] = set()
    for container in (*dicts(pod, "spec", "initContainers"), *dicts(pod, "spec", "containers")):
        for part in ("limits", "requests"):
            for name in mapping(container, "resources", part):
                if str(name).startswith("nvidia.com/") and name not in seen:
                    seen.add(str(name))
                    yield str(name)


def concerns(facts: ClusterFacts) -> Mapping[tuple[str, str], bool | None]:
    """Waiting pods by namespace and name: whether one of their claims is for GPUs, None if unknown."""
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
    """Kind and name of all claims and templates that are for GPUs."""
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
    """By class name: True if it is for GPUs, None for a class without selectors, which matches any device."""
    own = facts.driver_names
    found: dict[str, bool | None] = {}
    for item in facts.items_or_none("classes"):
        found[name_of(item)] = is_for(item, own) if expressions(item) else None
    return {**found, WHOLE: True, PARTITIONS: True}


def _claims_of(
    pod: Wire, claims: Mapping[tuple[str, str], Wire], templates: Mapping[tuple[str, str], Wire]
) -> Iterator[Wire | None]:
    """The pod's claims, and templates as claims; None for a missing one."""
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


_RULES: Final = tuple(
    (re.compile(pattern, re.IGNORECASE), layer)
    for pattern, layer in (
        (r"second publisher|devices are withdrawn", Layer.SECOND_PUBLISHER),
        (r"feature gates? (are|is) off", Layer.KUBERNETES),
        (r"unresolvable CDI devices?|CDI device injection|CDI (file|spec|folder|directory)", Layer.CDI),
        (r"not registered|registered this driver|refused to register|registr(y|ar)", Layer.REGISTRATION),
        (r"nvidia-uvm|\bUVM\b", Layer.UVM),
        (r"/dev/|device nodes?\b", Layer.DEVICE_NODES),
        (r"libnvidia-ml|\bNVML|nvmlInit", Layer.NVML),
        (r"driver root|NVIDIA driver|driver's files|kernel module|driver/library version mismatch", Layer.DRIVER),
        (r"CDI hook|nvidia-cdi-hook|toolkit", Layer.TOOLKIT),
        (r"\b(forbidden|403|ClusterRole)\b", Layer.RIGHTS),
        (r"socket", Layer.SOCKETS),
        (r"ResourceSlices?|not published", Layer.SLICES),
        (r"\bpolic(y|ies)\b", Layer.POLICIES),
        (r"\bGPU\b|\bXID\b|fabric|MIG", Layer.GPUS),
        (r"disk|journal|storage|read-only file system", Layer.PREPARE),
    )
)
_LEVELS: Final = frozenset({"warning", "error", "critical"})
_WORDS: Final = ("reason", "error", "problem")
_PASSING: Final = ("starting", "stopping")


def layer_of(sentence: str, otherwise: Layer) -> Layer:
    """The first layer, by the order of the rules, that the message names; ``otherwise`` if no rule matches."""
    return next((layer for pattern, layer in _RULES if pattern.search(sentence)), otherwise)


def last_warning(lines: Sequence[str]) -> str:
    """The message of the newest warning or error in a log, with its reason; empty without one.

    Lines have the form of `telemetry.logs`, JSON or text, or are the last line of a traceback.
    """
    return next((said for line in reversed(lines) if (said := _warning(line))), "")


def _warning(line: str) -> str:
    found = _json(line)
    if found is not None:
        if str(found.get("level", "")).lower() not in _LEVELS:
            return ""
        reasons = [str(found[name]) for name in _WORDS if found.get(name)]
        return ": ".join([str(found.get("message", "")), *reasons])
    match = _TEXT_LINE.match(line)
    if match is not None:
        return match["said"].strip()
    return line.strip() if line.startswith("dra-driver") else ""


_TEXT_LINE: Final = re.compile(r"^\S+Z\s+(?:WARN\w*|ERROR)\s+\S+\s+(?P<said>.+)$")


def _json(line: str) -> dict[str, object] | None:
    if not line.startswith("{"):
        return None
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None
