"""Manifests, and the client through which examples and their expectations reach a cluster.

`StoreClient` is the embedded cluster's. Tests have one over REST, so the same examples run on real clusters.
"""

from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Protocol

import yaml

from dra_driver.core.errors import ConfigurationError, NotFoundError
from dra_driver.sim.apiserver.jsonvalue import Obj
from dra_driver.sim.apiserver.kind import ResourceKind
from dra_driver.sim.apiserver.kinds import ALL_KINDS
from dra_driver.sim.apiserver.store import DeleteOptions, Store

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
    return list(objects)[::-1]


class Client(Protocol):
    """Objects and logs of a cluster. ``namespace`` is "" for cluster-scoped kinds. Errors are those of the API."""

    def create(self, obj: Obj, namespace: str) -> Obj: ...
    def find(self, kind: ResourceKind, name: str, namespace: str) -> Obj | None: ...
    def list(self, kind: ResourceKind, namespace: str) -> list[Obj]: ...
    def delete(self, kind: ResourceKind, name: str, namespace: str) -> None: ...
    def log(self, namespace: str, pod: str, container: str) -> str: ...


class StoreClient:
    def __init__(self, store: Store) -> None:
        self._store = store

    def create(self, obj: Obj, namespace: str) -> Obj:
        kind = kind_of(obj)
        return self._store.create(kind, obj, namespace=namespace if kind.namespaced else "")

    def find(self, kind: ResourceKind, name: str, namespace: str) -> Obj | None:
        return self._store.find(kind, name, namespace)

    def list(self, kind: ResourceKind, namespace: str) -> list[Obj]:
        return self._store.list(kind, namespace).items

    def delete(self, kind: ResourceKind, name: str, namespace: str) -> None:
        """Delete the object and its dependents, as kubectl does. Does nothing if the object does not exist."""
        with suppress(NotFoundError):
            self._store.delete(kind, name, namespace, DeleteOptions(propagation="Background"))

    def log(self, namespace: str, pod: str, container: str) -> str:
        lines = self._store.logs.read(namespace, pod, container)
        return "".join(f"{text}\n" for _, text in lines)
