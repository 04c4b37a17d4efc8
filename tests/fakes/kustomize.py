"""Renders the kustomizations in deploy/ without kubectl: the fields that they use, and an error for any other field.

Patches go through the embedded API server's strategic merge. tests/contract/deploy compares the result with ``kubectl
kustomize`` where there is a kubectl. Source: kustomize 5.5 (sigs.k8s.io/kustomize/api/krusty), whose order is
resources, generators, patches, namespace, labels, images, replacements.
"""

import re
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import yaml

from dra_driver.sim.apiserver.kinds import ALL_KINDS
from dra_driver.sim.apiserver.patch.strategicpatch import strategic_merge
from dra_driver.sim.apiserver.schema import FieldType, table

Obj = dict[str, Any]

DEPLOY = Path(__file__).parents[2] / "deploy"
CLUSTER_SCOPED = frozenset(kind.kind for kind in ALL_KINDS if not kind.namespaced)
_HEADER = {"apiVersion", "kind"}


def render(folder: Path, onto: Iterable[Obj] = ()) -> list[Obj]:
    """All objects of a kustomization; for a component, after ``onto``, which it may change.

    Raises KeyError for a field that this renderer does not know.
    """
    kustomization = yaml.safe_load((folder / "kustomization.yaml").read_text())
    added = [obj for entry in kustomization.get("resources", ()) for obj in _resources(folder / entry)]
    objects = [*onto, *added]
    for field in kustomization.keys() - _HEADER - {"resources"} - _STEPS.keys():
        raise KeyError(f"{folder}/kustomization.yaml: this renderer does not know the field {field}")
    for field, step in _STEPS.items():
        if field in kustomization:
            step(folder, objects, kustomization[field])
    return objects


def _resources(path: Path) -> list[Obj]:
    return render(path) if path.is_dir() else list(yaml.safe_load_all(path.read_text()))


def _generate(_folder: Path, objects: list[Obj], generators: list[Obj]) -> None:
    for entry in generators:
        assert entry["options"] == {"disableNameSuffixHash": True}, "names with a hash are not rendered here"
        metadata = {"name": entry["name"], "namespace": entry["namespace"]}
        objects.append({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata})


def _components(folder: Path, objects: list[Obj], entries: list[str]) -> None:
    for entry in entries:
        objects[:] = render(folder / entry, objects)


def _patch(folder: Path, objects: list[Obj], entries: list[Obj]) -> None:
    for entry in entries:
        assert entry.keys() == {"path"}, "a patch is a file that names its target, never a list of positions"
        patch = yaml.safe_load((folder / entry["path"]).read_text())
        assert isinstance(patch, dict), f"{entry['path']}: not a strategic merge patch"
        (target,) = [obj for obj in objects if _identity(obj) == _identity(patch)]
        kind = FieldType(name=table()["kinds"][f"{patch['apiVersion']}/{patch['kind']}"])
        strategic_merge(target, patch, kind)


def _identity(obj: Obj) -> tuple[str, str, str]:
    return obj["kind"], obj["metadata"].get("namespace", ""), obj["metadata"]["name"]


def _namespace(_folder: Path, objects: list[Obj], namespace: str) -> None:
    for obj in objects:
        if obj["kind"] == "Namespace":
            obj["metadata"]["name"] = namespace
        elif obj["kind"] not in CLUSTER_SCOPED:
            obj["metadata"]["namespace"] = namespace
        # A RoleBinding's subject follows only where the binding was in the account's namespace before.
        if obj["kind"] == "ClusterRoleBinding":
            for subject in obj["subjects"]:
                subject["namespace"] = namespace


def _label(_folder: Path, objects: list[Obj], entries: list[Obj]) -> None:
    for entry in entries:
        for obj in objects:
            obj["metadata"].setdefault("labels", {}).update(entry["pairs"])


def _image(_folder: Path, objects: list[Obj], entries: list[Obj]) -> None:
    for entry in entries:
        for obj in objects:
            for container in _at(obj, ["spec", "template", "spec", "containers"]) or ():
                if container["image"] == entry["name"]:
                    container["image"] = f"{entry['name']}:{entry['newTag']}"


def _replace(_folder: Path, objects: list[Obj], entries: list[Obj]) -> None:
    for entry in entries:
        (source,) = _selected(objects, entry["source"])
        value = _at(source, _path(entry["source"]["fieldPath"]))
        for target in entry["targets"]:
            for obj in _selected(objects, target["select"]):
                for field in target["fieldPaths"]:
                    *parents, last = _path(field)
                    _at(obj, parents)[last] = value


def _selected(objects: list[Obj], by: Obj) -> Iterator[Obj]:
    return (obj for obj in objects if (obj["kind"], obj["metadata"]["name"]) == (by["kind"], by["name"]))


def _path(text: str) -> list[str]:
    return [part.strip("[]") for part in re.findall(r"\[[^]]+\]|[^.\[\]]+", text)]


def _at(obj: Any, path: list[str]) -> Any:
    for part in path:
        if isinstance(obj, list):
            key, _, value = part.partition("=")
            (obj,) = [item for item in obj if item[key] == value]
        elif isinstance(obj, dict):
            obj = obj.get(part)
    return obj


_STEPS: dict[str, Callable[[Path, list[Obj], Any], None]] = {
    "configMapGenerator": _generate,
    "components": _components,
    "patches": _patch,
    "namespace": _namespace,
    "labels": _label,
    "images": _image,
    "replacements": _replace,
}
