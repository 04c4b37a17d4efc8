"""The cluster's objects that the scheduler uses, as raw dicts, read from the cluster or from a file; without secrets
(``state_parts.py``). A kind that is not served or forbidden becomes a gap. Source: kubernetes/kubernetes
pkg/scheduler/framework/plugins."""

import json
from collections.abc import Callable, Collection, Container, Iterable, Mapping, Sequence
from typing import Any, Final, Protocol

from msgspec import Struct
from msgspec.structs import replace

from dra_driver.core.errors import ForbiddenError, GoneError, KubernetesApiError, NotFoundError
from dra_driver.core.request_rights import missing_right
from dra_driver.kube.discovery import server_version
from dra_driver.kube.paths import CORE_API
from dra_driver.kube.state_parts import LAST_APPLIED, is_relevant_event, reduced

Wire = Mapping[str, Any]

MAX_EVENTS: Final = 20_000  # newest events that are kept; a cluster keeps an hour of them by default (``--event-ttl``)

TAINT_RULE_APIS: Final = tuple(f"/apis/resource.k8s.io/{version}" for version in ("v1", "v1beta2", "v1alpha3"))
"""DeviceTaintRule is v1alpha3 up to Kubernetes 1.35, v1beta2 in 1.36 (off by default), v1 from 1.37."""


class ClusterState(Struct, frozen=True, kw_only=True):
    """Objects by kind, in the order of the API server. Readers must not change them. ``gaps`` are sentences about
    unread kinds: an empty list of such a kind means unknown. ``server_version`` is ``v1.36.2`` or empty when unknown.
    ``source`` names the origin for people. ``workloads`` are Kueue's, which only `kubectl dra explain` reads.
    Only files have ``gpu_nodes`` and ``quotas``."""

    nodes: Sequence[Wire] = ()
    pods: Sequence[Wire] = ()
    namespaces: Sequence[Wire] = ()
    claims: Sequence[Wire] = ()
    templates: Sequence[Wire] = ()
    classes: Sequence[Wire] = ()
    slices: Sequence[Wire] = ()
    taint_rules: Sequence[Wire] = ()
    events: Sequence[Wire] = ()
    pvcs: Sequence[Wire] = ()
    storage_classes: Sequence[Wire] = ()
    workloads: Sequence[Wire] = ()
    gpu_nodes: Sequence[Wire] = ()
    quotas: Sequence[Wire] = ()
    gaps: Sequence[str] = ()
    server_version: str = ""
    source: str = ""


class StateKind(Struct, frozen=True):
    """One kind of a state: its field there, its name, and the version to write into files."""

    field: str
    kind: str
    api_version: str
    resource: str
    namespaced: bool = False

    @property
    def api(self) -> str:
        return CORE_API if self.api_version == "v1" else f"/apis/{self.api_version}"


KINDS: Final = (
    StateKind("nodes", "Node", "v1", "nodes"),
    StateKind("pods", "Pod", "v1", "pods", namespaced=True),
    StateKind("namespaces", "Namespace", "v1", "namespaces"),
    StateKind("claims", "ResourceClaim", "resource.k8s.io/v1", "resourceclaims", namespaced=True),
    StateKind("templates", "ResourceClaimTemplate", "resource.k8s.io/v1", "resourceclaimtemplates", namespaced=True),
    StateKind("classes", "DeviceClass", "resource.k8s.io/v1", "deviceclasses"),
    StateKind("slices", "ResourceSlice", "resource.k8s.io/v1", "resourceslices"),
    StateKind("taint_rules", "DeviceTaintRule", "resource.k8s.io/v1beta2", "devicetaintrules"),
    StateKind("events", "Event", "v1", "events", namespaced=True),
    StateKind("pvcs", "PersistentVolumeClaim", "v1", "persistentvolumeclaims", namespaced=True),
    StateKind("storage_classes", "StorageClass", "storage.k8s.io/v1", "storageclasses"),
)

GPU_NODES: Final = StateKind("gpu_nodes", "GpuNode", "gpu.dra-driver.io/v1alpha1", "gpunodes")
QUOTAS: Final = StateKind("quotas", "ResourceQuota", "v1", "resourcequotas", namespaced=True)
FILE_KINDS: Final = (*KINDS, GPU_NODES, QUOTAS)
"""Kinds of files. Commands read GpuNodes and ResourceQuotas of a live cluster separately: scheduling ignores them."""

# Without these a verdict about the whole cluster would be wrong, so they are read everywhere even for one namespace.
_EVERYWHERE: Final = ("pods", "claims")


class StateReader(Protocol):
    """The part of ``rest.RestClient`` that is needed here."""

    def get(self, path: str, query: Mapping[str, str] | None = None) -> dict[str, object]: ...
    def list(self, path: str, query: Mapping[str, str] | None = None) -> dict[str, Any]: ...


def read_cluster(
    rest: StateReader,
    namespace: str | None = None,
    *,
    only: Sequence[str] = (),
    notify: Callable[[str], None] = lambda _: None,
) -> ClusterState:
    """The state of a live cluster, each kind listed separately, so kinds differ by some moments.

    ``namespace`` limits templates, events and volume claims; pods and claims only with ``only``, or if other namespaces
    are forbidden. ``only`` names the kinds to read. A kind that is not served or forbidden becomes a gap. ``notify``
    gets the next kind. Raises KubernetesApiError when the server cannot be reached or refuses the credentials.
    """
    gaps: list[str] = []
    version = _version(rest, gaps)
    kinds = [kind for kind in KINDS if not only or kind.field in only]
    read: dict[str, Any] = {}
    for kind in kinds:
        notify(kind.field)
        read[kind.field] = read_kind(rest, kind, namespace, gaps, everywhere=() if only else _EVERYWHERE)
    return ClusterState(server_version=version, gaps=tuple(gaps), **read)


def with_objects(state: ClusterState, objects: Iterable[Wire]) -> ClusterState:
    """The state with these objects applied by kind, namespace and name; objects of other kinds are ignored. An object
    without a status keeps that of the one it replaces, as with ``kubectl apply``."""
    by_kind: dict[str, list[Wire]] = {}
    for item in objects:
        by_kind.setdefault(str(item.get("kind")), []).append(item)
    changed: dict[str, object] = {}
    for kind in KINDS:
        new = {identity(item): reduced(kind.kind, item) for item in by_kind.get(kind.kind, ())}
        if new:
            known: Sequence[Wire] = getattr(state, kind.field)
            kept = [item for item in known if identity(item) not in new]
            for item in known:
                applied: Wire = new.get(identity(item), item)
                if applied is not item and item.get("status") and not applied.get("status"):
                    metadata = {**item["metadata"], **applied["metadata"]}
                    new[identity(item)] = {**applied, "metadata": metadata, "status": item["status"]}
            changed[kind.field] = (*kept, *new.values())
    return replace(state, **changed)


def identity(item: Wire) -> tuple[str, str]:
    metadata = item.get("metadata") or {}
    return str(metadata.get("namespace") or ""), str(metadata.get("name") or "")


def _version(rest: StateReader, gaps: list[str]) -> str:
    try:
        return str(server_version(rest))
    except (ForbiddenError, NotFoundError) as error:
        gaps.append(f"the server's version: {missing_right(error)}")
        return ""


def read_kind(
    rest: StateReader, kind: StateKind, namespace: str | None, gaps: list[str], *,
    everywhere: Container[str] = _EVERYWHERE,
) -> tuple[Wire, ...]:  # fmt: skip
    """The objects of one kind, reduced; ``gaps`` gets a kind that is not served or forbidden. ``namespace`` limits
    kinds that are not in ``everywhere``. Raises KubernetesApiError for other failures."""
    if kind.field == "taint_rules":
        return _taint_rules(rest, kind, gaps)
    local = f"{kind.api}/namespaces/{namespace}/{kind.resource}" if namespace and kind.namespaced else ""
    first = local if local and kind.field not in everywhere else f"{kind.api}/{kind.resource}"
    try:
        items = _listed(rest, first, kind)
    except NotFoundError:
        gaps.append(f"{kind.resource}: not served by this cluster at {kind.api}")
        return ()
    except ForbiddenError as error:
        gaps.append(f"{kind.resource}: {missing_right(error)}")
        return (read_in_namespace(rest, kind, namespace) or ()) if namespace and local not in ("", first) else ()
    return items[-MAX_EVENTS:] if kind.field == "events" else items


def read_in_namespace(rest: StateReader, kind: StateKind, namespace: str) -> tuple[Wire, ...] | None:
    """The objects of one namespace; None where they may not be listed there either, or are not served."""
    try:
        return _listed(rest, f"{kind.api}/namespaces/{namespace}/{kind.resource}", kind)
    except (ForbiddenError, NotFoundError):
        return None


def _taint_rules(rest: StateReader, kind: StateKind, gaps: list[str]) -> tuple[Wire, ...]:
    """Rules of the newest API version that is served. None being served is normal: the feature is off by default."""
    for api in TAINT_RULE_APIS:
        try:
            return _listed(rest, f"{api}/{kind.resource}", kind)
        except NotFoundError:
            continue
        except ForbiddenError as error:
            gaps.append(f"{kind.resource}: {missing_right(error)}")
            return ()
    return ()


def _listed(rest: StateReader, path: str, kind: StateKind) -> tuple[Wire, ...]:
    is_events = kind.field == "events"
    query = {"fieldSelector": "type=Warning"} if is_events else None
    try:
        answer = rest.list(path, query)
    except GoneError:
        # Paging took longer than the server keeps old versions (five minutes by default); the second try begins again.
        answer = rest.list(path, query)
    items = answer["items"]
    if not all(isinstance(item, dict) and isinstance(item.get("metadata"), dict) for item in items):
        raise KubernetesApiError(f"GET {path}: an item of the list is not an object with metadata")
    return tuple(reduced(kind.kind, item) for item in items if not is_events or is_relevant_event(item))


def without_foreign_parameters(value: object, own: Collection[str]) -> Any:
    """An object with empty opaque parameters, and empty data of claimed devices, of drivers that are not ``own``."""
    if isinstance(value, list | tuple):
        return [without_foreign_parameters(each, own) for each in value]
    if not isinstance(value, Mapping):
        return value
    is_foreign = "driver" in value and value["driver"] not in own
    return {
        name: {} if is_foreign and name in ("parameters", "data") else _kept(name, each, own)
        for name, each in value.items()
    }


def shareable(state: ClusterState, own: Collection[str]) -> ClusterState:
    return replace(
        state,
        claims=tuple(without_foreign_parameters(item, own) for item in state.claims),
        templates=tuple(without_foreign_parameters(item, own) for item in state.templates),
        classes=tuple(without_foreign_parameters(item, own) for item in state.classes),
    )


def _kept(name: str, value: Any, own: Collection[str]) -> object:
    if name != LAST_APPLIED:
        return without_foreign_parameters(value, own)
    try:
        return json.dumps(without_foreign_parameters(json.loads(value), own))
    except (ValueError, TypeError, RecursionError):
        return "{}"
