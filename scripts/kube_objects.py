"""Generate ``dra_driver/kube/objects/``: structs of the Kubernetes objects that this project reads and writes.

Fields come from ``dra_driver/sim/apiserver/schema.json``, Kubernetes' OpenAPI document as distilled by
``distill_openapi.py``. datamodel-code-generator was not taken: it emits every field of every type that it reaches (some
280 types, of which these are 90), and needs a document of 4 MB in the repository.
"""

import json
import keyword
import re
from pathlib import Path
from typing import Final

SCHEMA: Final = Path("dra_driver/sim/apiserver/schema.json")
FOLDER: Final = Path("dra_driver/kube/objects")
ROOTS: Final = {
    "resource": ("resource.v1.ResourceClaim", "resource.v1.ResourceClaimTemplate", "resource.v1.DeviceClass",
                 "resource.v1.ResourceSlice", "resource.v1beta2.DeviceTaintRule"),
    "core": ("core.v1.Node", "core.v1.Pod", "core.v1.Namespace", "core.v1.Event", "core.v1.PersistentVolumeClaim",
             "storage.v1.StorageClass", "coordination.v1.LeaseSpec"),
}  # fmt: skip
"""The kinds of each module; what they refer to follows. ``meta`` has the types of both."""
FIELDS: Final = {
    "meta.v1.ObjectMeta": "name generateName namespace uid resourceVersion generation creationTimestamp"
    " deletionTimestamp labels annotations ownerReferences finalizers",
    "meta.v1.OwnerReference": "apiVersion kind name uid controller",
    "meta.v1.Condition": "type status reason message observedGeneration lastTransitionTime",
    "core.v1.Node": "apiVersion kind metadata spec status",
    "core.v1.NodeSpec": "unschedulable taints",
    "core.v1.NodeStatus": "allocatable conditions nodeInfo",
    "core.v1.NodeCondition": "type status reason message",
    "core.v1.NodeSystemInfo": "kubeletVersion containerRuntimeVersion kernelVersion",
    "core.v1.Taint": "key value effect",
    "core.v1.PodSpec": "nodeName nodeSelector affinity tolerations topologySpreadConstraints schedulerName"
    " schedulingGates resourceClaims containers initContainers volumes overhead resources priority",
    "core.v1.TopologySpreadConstraint": "whenUnsatisfiable topologyKey",
    "core.v1.NodeAffinity": "requiredDuringSchedulingIgnoredDuringExecution",
    "core.v1.PodAffinity": "requiredDuringSchedulingIgnoredDuringExecution",
    "core.v1.PodAntiAffinity": "requiredDuringSchedulingIgnoredDuringExecution",
    "core.v1.PodAffinityTerm": "topologyKey",
    "core.v1.Container": "name resources restartPolicy ports",
    "core.v1.ContainerPort": "hostPort protocol hostIP",
    "core.v1.ResourceRequirements": "requests limits claims",
    "core.v1.Volume": "name persistentVolumeClaim",
    "core.v1.PersistentVolumeClaimVolumeSource": "claimName",
    "core.v1.PodStatus": "phase nominatedNodeName conditions resourceClaimStatuses extendedResourceClaimStatus",
    "core.v1.PodCondition": "type status reason message",
    "core.v1.PodExtendedResourceClaimStatus": "resourceClaimName",
    "core.v1.Namespace": "apiVersion kind metadata",
    "core.v1.Event": "apiVersion kind metadata reason message involvedObject source eventTime lastTimestamp"
    " firstTimestamp count type",
    "core.v1.ObjectReference": "apiVersion kind name namespace uid",
    "core.v1.EventSource": "component",
    "core.v1.PersistentVolumeClaim": "apiVersion kind metadata spec status",
    "core.v1.PersistentVolumeClaimSpec": "storageClassName",
    "core.v1.PersistentVolumeClaimStatus": "phase",
    "storage.v1.StorageClass": "apiVersion kind metadata volumeBindingMode",
    "resource.v1beta2.DeviceTaintRule": "apiVersion kind metadata spec",
    "resource.v1.CounterSet": "name counters",
    "resource.v1.DeviceTaint": "key effect value timeAdded",
    "resource.v1.Device": "name attributes capacity taints consumesCounters allowMultipleAllocations allNodes"
    " bindingConditions bindingFailureConditions bindsToNode nodeAllocatableResourceMappings nodeAllocatableResources"
    " nodeName nodeSelector",
    "resource.v1.ResourceSliceSpec": "driver pool nodeName devices sharedCounters allNodes nodeSelector"
    " perDeviceNodeSelection",
}
"""The fields that are used of a type, in the order in which they are written; of others all."""
ADDED: Final = {
    "resource.v1.Device": {"nodeAllocatableResources": "{}resource.v1.NodeAllocatableResource"},
    "resource.v1.NodeAllocatableResource": {"overhead": "resource.v1.NodeAllocatableOverhead"},
    "resource.v1.NodeAllocatableOverhead": {"perPod": "Quantity"},
}
"""Fields of Kubernetes 1.37, which the OpenAPI document of 1.36 lacks (kubernetes/api resource/v1/types.go)."""
RELAXED: Final = {
    "core.v1.PodSpec": "containers",
    "core.v1.NodeSystemInfo": "kubeletVersion containerRuntimeVersion kernelVersion",
    "core.v1.Event": "involvedObject",
    "meta.v1.OwnerReference": "apiVersion",
    "resource.v1.ResourcePool": "generation resourceSliceCount",
}
"""Required fields that snapshots and files written by hand may lack."""
NULLABLE: Final = {"resource.v1.DeviceAttribute"}
"""Types whose absent fields differ from empty ones."""
SCALARS: Final = {
    "string": "str",
    "integer": "int",
    "number": "float",
    "boolean": "bool",
    "Quantity": "Quantity",
    "Time": "str",
    "MicroTime": "str",
    "IntOrString": "int | str",
    "any": "Json",
}
DEFAULTS: Final = {"str": '""', "bool": "False"}
NAMES: Final = {"resource.v1beta2.DeviceTaint": "RuleTaint", "core.v1.ResourceClaim": "ContainerClaim"}
"""Types that need another name, because one of the same name is made, too."""
HEAD: Final = '"""Generated by scripts/gen.py: Kubernetes objects, the fields that scripts/kube_objects.py lists."""\n'
META_HEAD: Final = '''
Json = object
"""A value of any form, checked where it is used."""
Quantity = str | int | float
'''


def generate(root: Path, target: Path) -> None:
    """Write the modules below ``target``."""
    (target / FOLDER).mkdir(parents=True, exist_ok=True)
    for path, text in modules(root).items():
        (target / path).write_text(text)


def outputs(root: Path) -> list[Path]:
    """The generated files."""
    return sorted((root / FOLDER).glob("[a-z]*.py"))


def modules(root: Path) -> dict[Path, str]:
    """The text of each module by its path."""
    types: dict[str, dict[str, str]] = json.loads((root / SCHEMA).read_text(encoding="utf-8"))["types"]
    types |= {name: {**types.get(name, {}), **fields} for name, fields in ADDED.items()}
    reached = {module: _reached(kinds, types) for module, kinds in ROOTS.items()}
    shared = sorted(set(reached["resource"]) & set(reached["core"]))
    meta = [name for name in reached["resource"] if name in shared]
    texts = {"meta": _module("meta", meta, types, {})}
    for module, names in reached.items():
        own = [name for name in names if name not in meta]
        texts[module] = _module(module, own, types, dict.fromkeys(meta, "meta"))
    return {FOLDER / f"{module}.py": text for module, text in texts.items()}


def _reached(kinds: tuple[str, ...], types: dict[str, dict[str, str]]) -> list[str]:
    """The types, each behind those that it refers to."""
    found: list[str] = []

    def visit(name: str) -> None:
        for text in _selected(name, types).values():
            inner = _item(text)
            if inner in types and inner != name and inner not in found:
                visit(inner)
        if name not in found:
            found.append(name)

    for kind in kinds:
        visit(kind)
    return found


def _selected(name: str, types: dict[str, dict[str, str]]) -> dict[str, str]:
    fields = types[name]
    wanted = FIELDS[name].split() if name in FIELDS else [*(key for key in fields)]
    return {key: fields[key] for key in wanted if key != "managedFields"}


def _item(text: str) -> str:
    return re.sub(r"^(\[\]|\{\})+", "", text.split(maxsplit=1)[0])


def _module(module: str, names: list[str], types: dict[str, dict[str, str]], elsewhere: dict[str, str]) -> str:
    classes = "".join(_struct(name, types) for name in names)
    imported = sorted({_name(name) for name in elsewhere if re.search(rf"\b{_name(name)}\b", classes)})
    imported += [word for word in ("Json", "Quantity") if module != "meta" and re.search(rf"\b{word}\b", classes)]
    lines = [HEAD, "\nfrom msgspec import Struct, field\n" if "field(" in classes else "\nfrom msgspec import Struct\n"]
    lines += [f"\nfrom dra_driver.kube.objects.meta import {', '.join(sorted(imported))}\n"] if imported else []
    return "".join([*lines, META_HEAD if module == "meta" else "", classes])


def _name(name: str) -> str:
    return NAMES.get(name, name.rpartition(".")[2])


def _struct(name: str, types: dict[str, dict[str, str]]) -> str:
    selected = {key: _required(name, key, text) for key, text in _selected(name, types).items()}
    fields = sorted(selected.items(), key=lambda item: "required=true" not in item[1])
    lines = [_field(key, text, types, nullable=name in NULLABLE) for key, text in fields]
    kind = f'\n\nclass {_name(name)}(Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel"):\n'
    return kind + "".join(f"    {line}\n" for line in lines)


def _required(name: str, key: str, text: str) -> str:
    """``metadata`` of a kind and ``spec`` of a pod are always there; the table has the API's other required fields."""
    if key in RELAXED.get(name, "").split():
        return text.replace(" required=true", "")
    is_kind = any(name in kinds for kinds in ROOTS.values())
    always = (is_kind and key == "metadata") or (name, key) == ("core.v1.Pod", "spec")
    return f"{text} required=true" if always else text


def _field(key: str, text: str, types: dict[str, dict[str, str]], *, nullable: bool) -> str:
    wraps, inner = re.match(r"((?:\[\]|\{\})*)(\S+)", text).groups()  # type: ignore[union-attr]
    of = _name(inner) if inner in types else SCALARS[inner]
    for wrap in reversed(re.findall(r"\[\]|\{\}", wraps)):
        of = f"tuple[{of}, ...]" if wrap == "[]" else f"dict[str, {of}]"
    snake = re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", key).lower()
    snake = f"{snake}_" if keyword.iskeyword(snake) or snake in ("int", "bool") else snake
    first, *rest = snake.split("_")
    renamed = snake.endswith("_") or first + "".join(part.capitalize() for part in rest) != key
    default = None
    if "required=true" not in text:
        default = "()" if of.startswith("tuple") else "{}" if of.startswith("dict") else DEFAULTS.get(of)
        default = None if nullable else default
        if default is None:
            of, default = f"{of} | None", "None"
    if renamed:
        inner_default = "default_factory=dict, " if default == "{}" else f"default={default}, " if default else ""
        return f'{snake}: {of} = field({inner_default}name="{key}")'
    return f"{snake}: {of} = {default}" if default else f"{snake}: {of}"
