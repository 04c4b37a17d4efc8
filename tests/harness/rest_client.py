"""The client of examples and expectations (`dra_driver.sim.loop.Client`) for a real cluster."""

from urllib.parse import quote

from dra_driver.core.errors import NotFoundError
from dra_driver.kube.rest import RestClient
from dra_driver.sim.apiserver.jsonvalue import Obj
from dra_driver.sim.apiserver.kind import ResourceKind
from dra_driver.sim.loop import kind_of


class RestClusterClient:
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
        items: list[Obj] = self._rest.list(_path(kind, namespace))["items"]
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
