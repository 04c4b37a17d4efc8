"""YAML files as lists of objects, and which kind of the registry each object is.

Owns reading and the order of deletion. Refuses to know what is done with the objects.
"""

from collections.abc import Iterable
from pathlib import Path

import yaml

from dra_driver.errors import ConfigurationError
from dra_driver.sim.apiserver.jsonvalue import Obj
from dra_driver.sim.apiserver.kind import ResourceKind
from dra_driver.sim.apiserver.kinds import ALL_KINDS

_BY_TYPE = {(kind.api_version, kind.kind): kind for kind in ALL_KINDS}


def load(path: Path) -> list[Obj]:
    """The objects of a YAML file, in order. Raises ConfigurationError that names the file."""
    try:
        documents = list(yaml.safe_load_all(path.read_text(encoding="utf-8")))
    except (OSError, yaml.YAMLError) as error:
        raise ConfigurationError(f"cannot read {path}: {error}") from error
    objects = [document for document in documents if document is not None]
    for obj in objects:
        if not isinstance(obj, dict):
            raise ConfigurationError(f"{path}: expected Kubernetes objects, found a {type(obj).__name__}")
        kind_of(obj)
    return objects


def kind_of(obj: Obj) -> ResourceKind:
    """The registry's kind of an object. Raises ConfigurationError for one that the embedded cluster does not have."""
    wanted = (str(obj.get("apiVersion")), str(obj.get("kind")))
    kind = _BY_TYPE.get(wanted)
    if kind is None:
        raise ConfigurationError(f"the embedded cluster has no kind {wanted[1]} in {wanted[0]}")
    return kind


def split_namespace(objects: Iterable[Obj], namespace: str) -> tuple[Obj, list[Obj]]:
    """The Namespace object that the others live in, and the others: the objects' own if they bring one, else a plain
    one called ``namespace``."""
    everything = list(objects)
    own = next((obj for obj in everything if obj.get("kind") == "Namespace"), None)
    plain = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}}
    return own or plain, [obj for obj in everything if obj is not own]


def deletion_order(objects: Iterable[Obj]) -> list[Obj]:
    """Users before what they use: the reverse of how manifests are written."""
    return list(objects)[::-1]
