"""Index a cluster for a smoke test, and plan it: the devices of each node, free devices, and the attempts per node.

No I/O. The caller provides the function of `kubectl dra explain` that finds whether a device is free.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from typing import Final

from msgspec import Struct, field
from msgspec.structs import replace

from dra_driver.core.errors import ConfigurationError
from dra_driver.core.finding import Layer
from dra_driver.diagnose.smoke.report import Form, SmokeOptions, TryKind, TryResult, kinds_of
from dra_driver.kube.devices import newest_slices, results_of
from dra_driver.kube.state import ClusterState, Wire

FIELDS: Final = ("nodes", "pods", "claims", "classes", "slices", "taint_rules")
"""Objects to read of a cluster."""
PRESENT_LABEL: Final = "nvidia.com/gpu.present"
"""Label of nodes with GPUs, which the DaemonSet selects."""

_ROOMY: Final = {"cpu": "1k", "memory": "1Ti", "pods": "1k"}
"""For a node that the user has no permission to read: the scheduler will report its problem."""


class ClusterView:
    """One state, indexed by node. Like the scheduler, ignores slices of older generations of a pool."""

    def __init__(self, state: ClusterState, driver: str) -> None:
        self._state, self.driver = state, driver
        self._nodes = {str(item["metadata"]["name"]): item for item in state.nodes}
        self._slices: dict[str, list[Wire]] = defaultdict(list)
        for item in newest_slices(item for item in state.slices if item["spec"].get("driver") == driver):
            if name := item["spec"].get("nodeName"):
                self._slices[name].append(item)
        self._kinds: dict[str, dict[TryKind, Wire]] = {}
        self._pods: dict[str, list[Wire]] = defaultdict(list)
        for pod in state.pods:
            self._pods[(pod.get("spec") or {}).get("nodeName") or ""].append(pod)
        self._claims: dict[str, list[Wire]] = defaultdict(list)
        for claim in state.claims:
            for pool in {str(result.get("pool")) for result in results_of(claim) if result.get("driver") == driver}:
                self._claims[pool].append(claim)

    def nodes(self) -> list[str]:
        """Nodes that publish devices, and those with the label of GPU nodes, which should."""
        labelled = {
            name
            for name, item in self._nodes.items()
            if (item["metadata"].get("labels") or {}).get(PRESENT_LABEL) == "true"
        }
        return sorted({name for name, items in self._slices.items() if items} | labelled)

    def knows(self, node: str) -> bool:
        """Return whether the node exists; True if nodes are unreadable."""
        return node in self._nodes or not self._state.nodes or bool(self._slices.get(node))

    def kinds(self, node: str, forms: Sequence[Form]) -> dict[TryKind, Wire]:
        if node not in self._kinds:
            self._kinds[node] = kinds_of(self._slices.get(node, ()))
        return {kind: example for kind, example in self._kinds[node].items() if kind.form in forms}

    def slices(self, node: str) -> Sequence[Wire]:
        return self._slices.get(node, ())

    def is_ready(self, node: str) -> bool:
        """False if the Node object is not ready."""
        conditions = ((self._nodes.get(node) or {}).get("status") or {}).get("conditions") or ()
        return next((item.get("status") for item in conditions if item.get("type") == "Ready"), "True") == "True"

    def is_cordoned(self, node: str) -> bool:
        return bool(((self._nodes.get(node) or {}).get("spec") or {}).get("unschedulable"))

    def around(self, node: str, *, without: Wire) -> ClusterState:
        """The part of the state that decides about a pod on ``node``; without pods and claims with the labels
        ``without``. A search of the whole cluster's state for each attempt would be too slow."""
        slices = self._slices.get(node, ())
        pools = dict.fromkeys(item["spec"]["pool"]["name"] for item in slices)
        claims = [claim for pool in pools for claim in self._claims.get(pool, ())]
        own = self._nodes.get(node) or {"metadata": {"name": node}, "status": {"allocatable": _ROOMY}}
        return replace(
            self._state,
            nodes=(own,),
            slices=tuple(slices),
            pods=tuple(pod for pod in self._pods.get(node, ()) if not _has(pod, without)),
            claims=tuple(claim for claim in claims if not _has(claim, without)),
        )


def _has(item: Wire, labels: Wire) -> bool:
    own = item["metadata"].get("labels") or {}
    return all(own.get(name) == value for name, value in labels.items())


class Fit(Struct, frozen=True, kw_only=True):
    """``busy`` is why no device can be tested, "" if one is free; ``answer`` is `explain`'s."""

    fits: bool
    busy: str = ""
    answer: str = ""


FitsUnder = Callable[[ClusterState], Callable[[ClusterState, Wire, Wire, TryKind], Fit]]
"""Return `explain`'s answer from the state around one node, a pod, its claim and the kind."""


_MOST_ASKED: Final = 200
"""Number of nodes to search for a free device of each kind."""


class SmokePlan(Struct, kw_only=True):
    """``tries`` are kinds by node, ``settled`` results without an attempt, ``notes`` messages about skipped nodes."""

    tries: dict[str, list[TryKind]] = field(default_factory=dict)
    settled: list[TryResult] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def count(self) -> int:
        return sum(map(len, self.tries.values()))


def plan_of(view: ClusterView, options: SmokeOptions, fits: Callable[[str, TryKind], Fit]) -> SmokePlan:
    """The plan for these options. Raises ConfigurationError for a node that does not exist."""
    for node in options.nodes:
        if not view.knows(node):
            raise ConfigurationError(
                f"node {node!r} does not exist: kubectl get nodes lists all nodes", reason="NodeNotFound", node=node
            )
    if options.nodes or options.all_nodes:
        return _everything(view, options)
    return _one_of_each(view, options, fits)


def _everything(view: ClusterView, options: SmokeOptions) -> SmokePlan:
    plan = SmokePlan()
    nodes = list(dict.fromkeys(options.nodes)) or view.nodes()
    if options.most_nodes and len(nodes) > options.most_nodes:
        plan.notes.append(f"{options.most_nodes} of {len(nodes)} nodes (--max-nodes)")
        nodes = nodes[: options.most_nodes]
    for node in nodes:
        problem = _problem(view, node, options)
        if problem is not None:
            plan.settled.append(problem)
        else:
            plan.tries[node] = list(view.kinds(node, options.forms))
    return plan


def _one_of_each(view: ClusterView, options: SmokeOptions, fits: Callable[[str, TryKind], Fit]) -> SmokePlan:
    """Each kind on the first node with a free device of it."""
    plan, busy = SmokePlan(), dict[TryKind, tuple[str, str]]()
    done: set[TryKind] = set()
    nodes = view.nodes()
    for node, kind in _candidates(view, nodes[:_MOST_ASKED], options, done):
        fit = fits(node, kind)
        if fit.busy:
            busy.setdefault(kind, (node, fit.busy))
            continue
        done.add(kind)
        plan.tries.setdefault(node, []).append(kind)
    more = ", and none is free on other nodes" if len(nodes) > 1 else ""
    for kind, (node, why) in busy.items():
        if kind not in done:
            plan.settled.append(TryResult.skipped(node, kind, why + more))
    if not plan.tries and not busy:
        plan.settled += [problem for node in nodes if (problem := _problem(view, node, options)) is not None][:10]
    return plan


def _candidates(
    view: ClusterView, nodes: Sequence[str], options: SmokeOptions, done: set[TryKind]
) -> Iterator[tuple[str, TryKind]]:
    for node in nodes:
        if _problem(view, node, options) is None:
            for kind in view.kinds(node, options.forms):
                if kind not in done:
                    yield node, kind


def _problem(view: ClusterView, node: str, options: SmokeOptions) -> TryResult | None:
    if not view.slices(node):
        message = f"the node publishes no devices of {view.driver}"
        return TryResult.failed(node, None, Layer.SLICES, message)
    if not view.is_ready(node):
        return TryResult.failed(node, None, Layer.NODE, "the node is not ready")
    if view.is_cordoned(node) and node not in options.nodes:
        return TryResult.skipped(node, None, "the node is cordoned; --node tests it anyway")
    if not view.kinds(node, options.forms):
        wanted = " or ".join(options.forms)
        return TryResult.skipped(node, None, f"the node publishes nothing of kind {wanted}")
    return None
