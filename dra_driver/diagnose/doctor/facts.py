"""The facts of a cluster: the answer to each question, or why it failed; and readers for fields of any object.

A missing fact ends only the check that needs it. Facts are API objects, reduced to the fields that checks need and
without secrets, so that a support bundle can contain them."""

from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from dra_driver.config.status import node_status_of
from dra_driver.core.finding import UnansweredError
from dra_driver.core.model.gpu_node import GpuNodeStatus
from dra_driver.kube.state import KINDS, ClusterState, Wire


def at(item: object, *path: str) -> object:
    """The value at a path of names; None if it is missing."""
    for name in path:
        if not isinstance(item, Mapping):
            return None
        item = item.get(name)
    return item


def text(item: object, *path: str) -> str:
    """The text at a path, else empty."""
    value = at(item, *path)
    return value if isinstance(value, str) else ""


def number(item: object, *path: str) -> int:
    value = at(item, *path)
    return value if isinstance(value, int) and not isinstance(value, bool) else 0


def mapping(item: object, *path: str) -> Wire:
    """The object at a path, else an empty one."""
    value = at(item, *path)
    return value if isinstance(value, Mapping) else {}


def dicts(item: object, *path: str) -> list[Wire]:
    """The objects of the list at a path; slices of large snapshots have lists of another type."""
    value = at(item, *path)
    if not isinstance(value, Sequence) or isinstance(value, str | bytes):
        return []
    return [each for each in value if isinstance(each, Mapping)]


def name_of(item: object) -> str:
    return text(item, "metadata", "name")


def statuses_of(gpu_nodes: Iterable[object]) -> dict[str, GpuNodeStatus]:
    """Return the status of each GpuNode with one, by node."""
    return {name_of(item): status for item in gpu_nodes if (status := node_status_of(item)) is not None}


def namespace_of(item: object) -> str:
    return text(item, "metadata", "namespace")


def labels_of(item: object) -> Wire:
    return mapping(item, "metadata", "labels")


def subject_of(kind: str, item: object) -> str:
    """``pod/team-a/train``, ``node/gpu-a``."""
    return "/".join(part for part in (kind, namespace_of(item), name_of(item)) if part)


def is_ready(item: object) -> bool:
    """Return whether the condition Ready of a pod or node is True."""
    return condition_of(item, "Ready").get("status") == "True"


def condition_of(item: object, kind: str) -> Wire:
    """The condition of that type in ``status.conditions``, else an empty object."""
    return next((each for each in dicts(item, "status", "conditions") if each.get("type") == kind), {})


STATE_KINDS: Final = tuple(kind.field for kind in KINDS)
"""Facts with the objects of a cluster state, by its field names."""

VERSION: Final = "version"
"""``{"gitVersion": "v1.36.2", ...}``"""
SERVER: Final = "server"
"""``{"address": "https://...", "source": "kubeconfig ..."}``"""
RESOURCE_API: Final = "resource-api"
"""Discovery of the group resource.k8s.io: ``{"versions": [{"version": "v1"}, ...]}``, empty where it is not served."""
GPU_API: Final = "gpu-api"
"""Discovery of gpu.dra-driver.io/v1alpha1: ``{"resources": [{"name": "gpunodes"}, ...]}``, empty where not served."""
GATES: Final = "gates"
"""Feature gates of the API server by name, true or false, for device allocation only."""
DRIVER_RIGHTS: Final = "driver-rights"
"""Permissions of the driver's accounts: ``[{"account": ..., "right": ..., "allowed": bool}]``"""
DAEMONSETS: Final = "daemonsets"
DRIVER_PODS: Final = "driver-pods"
"""Pods in the driver's namespaces, with the states of their containers."""
GPU_NODES: Final = "gpu-nodes"
GPU_POLICIES: Final = "gpu-policies"
VISIBLE_DEVICES: Final = "visible-devices"
"""Pods whose containers set NVIDIA_VISIBLE_DEVICES: ``[{"metadata": ..., "value": "all", "claims": false}]``"""
DRIVER_LOGS: Final = "driver-logs"
"""The newest log lines of pods of the driver that are not ready: ``[{"metadata": ..., "lines": [...]}]``"""
PARTLY_READ: Final = "partly-read"
"""Collections that this user could read in one namespace only: ``[{"seen": ..., "path": ...}]``"""
EXTRA: Final = {
    VERSION: "version of Kubernetes",
    SERVER: "address of the API server",
    RESOURCE_API: "list of API versions",
    GPU_API: "list of CustomResourceDefinitions",
    GATES: "feature gates",
    DRIVER_RIGHTS: "permissions of the driver's accounts",
    DAEMONSETS: "DaemonSets",
    DRIVER_PODS: "pods of the driver with the states of their containers",
    GPU_NODES: "GpuNodes",
    GPU_POLICIES: "GpuPolicies",
    VISIBLE_DEVICES: "environment of pods",
    DRIVER_LOGS: "logs of the driver's pods",
    PARTLY_READ: "partly read collections",
}
"""Facts beyond the cluster state, with their names for users."""

DRIVER_NAME: Final = "gpu.nvidia.com"
NODE_DAEMONSET: Final = "dra-driver-node"
"""The chart's objects have fixed names (deploy/chart/values.yaml)."""
NAMESPACE: Final = "dra-driver"
COMPONENT: Final = "app.kubernetes.io/component"


class Unanswered(Struct, frozen=True, kw_only=True):
    """The reason for a missing answer: ``seen`` as a phrase, ``fix`` as a sentence."""

    seen: str
    fix: str


class ClusterFacts(Struct, frozen=True, kw_only=True, dict=True):
    """Answers by name of the fact: a list of objects, an object, or `Unanswered`. ``source`` is for users.
    Properties describe the driver, and raise UnansweredError if their facts are missing."""

    answers: Mapping[str, object]
    source: str = ""
    about_workload: bool = False
    """True if the scope is a pod or claim: then a missing object is a failure, whichever driver it belongs to."""
    cluster: "ClusterFacts | None" = None
    """The facts before narrowing, for questions about the whole cluster."""

    @property
    def whole(self) -> "ClusterFacts":
        return self.cluster or self

    def items(self, name: str) -> Sequence[Wire]:
        found = self._known(name)
        return [item for item in found if isinstance(item, Mapping)] if isinstance(found, list | tuple) else []

    def value(self, name: str) -> Wire:
        """The fact that is a single object. Raises UnansweredError."""
        found = self._known(name)
        return found if isinstance(found, Mapping) else {}

    def knows(self, name: str) -> bool:
        return name in self.answers and not isinstance(self.answers[name], Unanswered)

    def items_or_none(self, name: str) -> Sequence[Wire]:
        """The objects of a fact; none without an answer. For optional details of a finding."""
        return self.items(name) if self.knows(name) else ()

    @property
    def unanswered(self) -> Mapping[str, Unanswered]:
        return {name: found for name, found in self.answers.items() if isinstance(found, Unanswered)}

    def state(self) -> ClusterState:
        """The cluster state for `explain` and `capacity`; unanswered questions become gaps."""
        lists = {name: tuple(self.items_or_none(name)) for name in STATE_KINDS}
        resources = {kind.field: kind.resource for kind in KINDS}
        gaps = [f"{resources[name]}: {why.seen}" for name, why in self.unanswered.items() if name in resources]
        version = text(self.value(VERSION), "gitVersion") if self.knows(VERSION) else ""
        gpu_nodes = self.items_or_none(GPU_NODES)
        return ClusterState(**lists, gpu_nodes=gpu_nodes, gaps=tuple(gaps), server_version=version, source=self.source)

    def with_items(self, **changed: Sequence[Wire]) -> "ClusterFacts":
        """The facts with other objects; underscores in the names stand for hyphens of the facts."""
        named = {
            name if name in STATE_KINDS else name.replace("_", "-"): list(items) for name, items in changed.items()
        }
        return replace(self, answers={**self.answers, **named})

    @property
    def node_daemonsets(self) -> list[Wire]:
        """The DaemonSets of node processes; more than one if the driver is installed twice."""
        return [item for item in self.items(DAEMONSETS) if name_of(item) == NODE_DAEMONSET]

    @property
    def driver_names(self) -> list[str]:
        """Names of all installed drivers of this kind; the default name without any."""
        daemonsets = self.node_daemonsets if self.knows(DAEMONSETS) else []
        reported = [status.driver_name for status in self.gpu_nodes.values()]
        return list(dict.fromkeys([*map(driver_name, daemonsets), *reported])) or [DRIVER_NAME]

    @property
    def node_pods(self) -> list[Wire]:
        """Pods of the node processes; during a rolling update two per node."""
        return [pod for pod in self.items(DRIVER_PODS) if text(pod, "metadata", "labels", COMPONENT) == "node"]

    @property
    def nodes_with_ready_pods(self) -> set[str]:
        return {text(pod, "spec", "nodeName") for pod in self.node_pods if is_ready(pod)}

    @cached_property
    def gpu_nodes(self) -> Mapping[str, GpuNodeStatus]:
        """The reports of node processes, by node; empty if the GpuNodes are unreadable."""
        return statuses_of(self.items_or_none(GPU_NODES))

    @property
    def own_slices(self) -> list[Wire]:
        names = self.driver_names
        return [item for item in self.items("slices") if text(item, "spec", "driver") in names]

    @cached_property
    def own_devices(self) -> Mapping[str, list[Wire]]:
        found: dict[str, list[Wire]] = {}
        for item in self.own_slices:
            found.setdefault(text(item, "spec", "nodeName"), []).extend(dicts(item, "spec", "devices"))
        return found

    @property
    def driver_nodes(self) -> set[str]:
        """Nodes with a pod, a GpuNode or slices of the driver. Ignores unreadable facts."""
        pods = self.node_pods if self.knows(DRIVER_PODS) else []
        slices = self.own_slices if self.knows("slices") else []
        return {text(item, "spec", "nodeName") for item in (*pods, *slices)} - {""} | set(self.gpu_nodes)

    @property
    def waiting_pods(self) -> list[Wire]:
        """Pods that have not started and are not being deleted."""
        return [
            pod
            for pod in self.items("pods")
            if text(pod, "status", "phase") in ("", "Pending") and not text(pod, "metadata", "deletionTimestamp")
        ]

    def _known(self, name: str) -> object:
        found = self.answers.get(name, _NOT_READ)
        if isinstance(found, Unanswered):
            raise UnansweredError(found.seen, found.fix)
        return found


def setting(daemonset: Wire, name: str) -> str:
    """A setting of the node process in the DaemonSet; empty if it is not set."""
    return text(daemonset, "spec", "settings", name)


def driver_name(daemonset: Wire) -> str:
    """The driver's name in slices and classes."""
    return setting(daemonset, "DRIVER_NAME") or DRIVER_NAME


_NOT_READ: Final = Unanswered(
    seen="it was not read",
    fix="Run kubectl dra doctor against the cluster, or with a file of kubectl dra support-bundle.",
)


def facts_of_state(state: ClusterState) -> ClusterFacts:
    """The facts in a snapshot. A kind that is empty and has a gap is unanswered, and so are facts beyond a snapshot."""
    answers: dict[str, object] = {}
    for kind in KINDS:
        items = getattr(state, kind.field)
        gap = next((gap for gap in state.gaps if gap.startswith(f"{kind.resource}:")), "")
        if gap and not items:
            answers[kind.field] = Unanswered(seen=f"the snapshot has none: {gap}", fix=_NOT_READ.fix)
        else:
            answers[kind.field] = list(items)
    for name, words in EXTRA.items():
        answers[name] = Unanswered(seen=f"a snapshot has no {words}", fix=_NOT_READ.fix)
    answers[PARTLY_READ] = []
    if state.gpu_nodes:
        answers[GPU_NODES] = list(state.gpu_nodes)
    if state.server_version:
        answers[VERSION] = {"gitVersion": state.server_version}
    if state.slices or state.classes:
        answers[RESOURCE_API] = {"versions": [{"version": "v1"}]}
    return ClusterFacts(answers=answers, source=state.source)
