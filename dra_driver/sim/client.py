"""A client with two implementations: the embedded cluster through its store, a real cluster through REST.

Examples and their expectations use only this interface, so the same ones run on both clusters.
"""

from typing import Any, Protocol
from urllib.parse import quote

from dra_driver.core.errors import NotFoundError
from dra_driver.kube.rest import RestClient
from dra_driver.sim.apiserver.jsonvalue import Obj
from dra_driver.sim.apiserver.kind import ResourceKind
from dra_driver.sim.apiserver.store import DeleteOptions, Store
from dra_driver.sim.manifests import kind_of


class Client(Protocol):
    """Objects and logs of a cluster. ``namespace`` is "" for cluster-scoped kinds. Errors are those of the API."""

    def create(self, obj: Obj, namespace: str) -> Obj: ...
    def find(self, kind: ResourceKind, name: str, namespace: str) -> Obj | None: ...
    def list(self, kind: ResourceKind, namespace: str) -> list[Obj]: ...
    def delete(self, kind: ResourceKind, name: str, namespace: str) -> None: ...
    def log(self, namespace: str, pod: str, container: str) -> str: ...


class StoreClient:
    """The client of the embedded cluster, without HTTP."""

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
        try:
            self._store.delete(kind, name, namespace, DeleteOptions(propagation="Background"))
        except NotFoundError:
            return

    def log(self, namespace: str, pod: str, container: str) -> str:
        lines = self._store.logs.read(namespace, pod, container)
        return "".join(f"{text}\n" for _, text in lines)


class RestClusterClient:
    """The client of any cluster, over REST."""

    def __init__(self, rest: RestClient) -> None:
        self._rest = rest

    def create(self, obj: Obj, namespace: str) -> Obj:
        kind = kind_of(obj)
        return self._rest.create(_path(kind, namespace), obj)

    def find(self, kind: ResourceKind, name: str, namespace: str) -> Obj | None:
        try:
            return self._rest.get(_path(kind, namespace, name))
        except NotFoundError:
            return None

    def list(self, kind: ResourceKind, namespace: str) -> list[Obj]:
        items: list[Any] = self._rest.list(_path(kind, namespace))["items"]
        return items

    def delete(self, kind: ResourceKind, name: str, namespace: str) -> None:
        """Delete the object and its dependents, as kubectl does. Does nothing if the object does not exist."""
        try:
            self._rest.delete(_path(kind, namespace, name), propagation="Background")
        except NotFoundError:
            return

    def log(self, namespace: str, pod: str, container: str) -> str:
        path = f"/api/v1/namespaces/{quote(namespace, safe='')}/pods/{quote(pod, safe='')}/log"
        return self._rest.get_text(path, {"container": container})


def _path(kind: ResourceKind, namespace: str, name: str = "") -> str:
    root = f"/apis/{kind.api_version}" if kind.group else f"/api/{kind.version}"
    inside = f"/namespaces/{quote(namespace, safe='')}" if kind.namespaced and namespace else ""
    return f"{root}{inside}/{kind.plural}" + (f"/{quote(name, safe='')}" if name else "")
