"""A cluster as a smoke test asks it: which nodes publish what, and what of the state concerns one node. Pure."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from msgspec.structs import replace

from dra_driver.diagnose.smoke.kinds import Form, TryKind, kinds_of
from dra_driver.kube.state import ClusterState

Wire = Mapping[str, Any]

FIELDS: Final = ("nodes", "pods", "claims", "classes", "slices", "taint_rules")
"""What is read of a cluster."""
PRESENT_LABEL: Final = "nvidia.com/gpu.present"
"""Label of nodes with GPUs, by which the DaemonSet chooses its nodes."""

_ROOMY: Final = {"cpu": "1k", "memory": "1Ti", "pods": "1k"}
"""Of a node that the user may not read: the scheduler will say what it lacks."""


class ClusterView:
    """One state, indexed by node. Slices of older generations of a pool are left out, as the scheduler does."""

    def __init__(self, state: ClusterState, driver: str) -> None:
        self._state, self.driver = state, driver
        self._nodes = {str(item["metadata"]["name"]): item for item in state.nodes}
        self._slices: dict[str, list[Wire]] = defaultdict(list)
        for item in _newest(item for item in state.slices if item["spec"].get("driver") == driver):
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
        """Nodes that publish devices, and those that have the label of GPU nodes and should."""
        labelled = {
            name
            for name, item in self._nodes.items()
            if (item["metadata"].get("labels") or {}).get(PRESENT_LABEL) == "true"
        }
        return sorted({name for name, items in self._slices.items() if items} | labelled)

    def knows(self, node: str) -> bool:
        """Whether there is such a node, as far as nodes can be read."""
        return node in self._nodes or not self._state.nodes or bool(self._slices.get(node))

    def kinds(self, node: str, forms: Sequence[Form]) -> dict[TryKind, Wire]:
        """The kinds that a node publishes, each with one of its devices."""
        if node not in self._kinds:
            self._kinds[node] = kinds_of(self._slices.get(node, ()))
        return {kind: example for kind, example in self._kinds[node].items() if kind.form in forms}

    def slices(self, node: str) -> Sequence[Wire]:
        return self._slices.get(node, ())

    def is_ready(self, node: str) -> bool:
        """False when the Node object says that it is not ready."""
        conditions = ((self._nodes.get(node) or {}).get("status") or {}).get("conditions") or ()
        return next((item.get("status") for item in conditions if item.get("type") == "Ready"), "True") == "True"

    def is_cordoned(self, node: str) -> bool:
        return bool(((self._nodes.get(node) or {}).get("spec") or {}).get("unschedulable"))

    def around(self, node: str, *, without: Wire) -> ClusterState:
        """What of the state decides about a pod on ``node``; without pods and claims that have the labels ``without``.

        The whole cluster's state would be looked through once for each try.
        """
        slices = self._slices.get(node, ())
        claims = [claim for pool in _pools(slices) for claim in self._claims.get(pool, ())]
        own = self._nodes.get(node) or {"metadata": {"name": node}, "status": {"allocatable": _ROOMY}}
        return replace(
            self._state,
            nodes=(own,),
            slices=tuple(slices),
            pods=tuple(pod for pod in self._pods.get(node, ()) if not _has(pod, without)),
            claims=tuple(claim for claim in claims if not _has(claim, without)),
        )


def results_of(claim: Wire) -> Sequence[Wire]:
    """The allocated devices of a claim; none without an allocation."""
    allocation = (claim.get("status") or {}).get("allocation") or {}
    return (allocation.get("devices") or {}).get("results") or ()


def _newest(slices: Iterable[Wire]) -> list[Wire]:
    pools: dict[str, list[Wire]] = {}
    for item in slices:
        have = pools.setdefault(item["spec"]["pool"]["name"], [])
        if have and _generation(item) > _generation(have[0]):
            have.clear()
        if not have or _generation(item) == _generation(have[0]):
            have.append(item)
    return [item for items in pools.values() for item in items]


def _generation(item: Wire) -> int:
    return int(item["spec"]["pool"].get("generation") or 0)


def _pools(slices: Iterable[Wire]) -> list[str]:
    return list(dict.fromkeys(item["spec"]["pool"]["name"] for item in slices))


def _has(item: Wire, labels: Wire) -> bool:
    own = item["metadata"].get("labels") or {}
    return all(own.get(name) == value for name, value in labels.items())
