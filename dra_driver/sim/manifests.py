"""Reads manifests: YAML files with Kubernetes objects of the kinds that the embedded cluster serves."""

from collections.abc import Iterable
from pathlib import Path

import yaml

from dra_driver.core.errors import ConfigurationError
from dra_driver.sim.apiserver.jsonvalue import Obj
from dra_driver.sim.apiserver.kind import ResourceKind
from dra_driver.sim.apiserver.kinds import ALL_KINDS

_BY_TYPE = {(kind.api_version, kind.kind): kind for kind in ALL_KINDS}


def load(path: Path) -> list[Obj]:
    """The objects of a YAML file, in order. Raises ConfigurationError that names the file."""
    try:
        documents = list(yaml.safe_load_all(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, RecursionError, yaml.YAMLError) as error:
        raise ConfigurationError(f"cannot read {path}: {error}") from error
    objects = [document for document in documents if document is not None]
    for obj in objects:
        if not isinstance(obj, dict):
            raise ConfigurationError(f"{path}: expected a Kubernetes object, found a {type(obj).__name__}")
        kind_of(obj)
    return objects


def kind_of(obj: Obj) -> ResourceKind:
    """The kind of an object. Raises ConfigurationError for a kind that the embedded cluster does not serve."""
    wanted = (str(obj.get("apiVersion")), str(obj.get("kind")))
    kind = _BY_TYPE.get(wanted)
    if kind is None:
        raise ConfigurationError(f"the embedded cluster does not serve kind {wanted[1]} in {wanted[0]}")
    return kind


def split_namespace(objects: Iterable[Obj], namespace: str) -> tuple[Obj, list[Obj]]:
    """The Namespace object, by default a new one called ``namespace``, and the other objects."""
    everything = list(objects)
    own = next((obj for obj in everything if obj.get("kind") == "Namespace"), None)
    plain = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}}
    return own or plain, [obj for obj in everything if obj is not own]


def deletion_order(objects: Iterable[Obj]) -> list[Obj]:
    """The objects in reverse order: manifests list what is used before its users."""
    return list(objects)[::-1]
