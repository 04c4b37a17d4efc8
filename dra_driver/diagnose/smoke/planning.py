"""Which kinds are tried on which nodes."""

from collections.abc import Callable, Iterator, Sequence
from typing import Final

from msgspec import Struct, field

from dra_driver.core.errors import ConfigurationError
from dra_driver.diagnose.smoke.attempt import next_step
from dra_driver.diagnose.smoke.fit import Fit
from dra_driver.diagnose.smoke.kinds import TryKind
from dra_driver.diagnose.smoke.options import SmokeOptions
from dra_driver.diagnose.smoke.report import TryLayer, TryResult, TryStatus
from dra_driver.diagnose.smoke.view import ClusterView

_MOST_ASKED: Final = 200
"""Nodes among which one with a free device of each kind is looked for."""


class SmokePlan(Struct, kw_only=True):
    """``tries`` are kinds by node, ``settled`` what needs no try, ``notes`` what was left out."""

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
            raise ConfigurationError(f"no node {node!r} in this cluster: kubectl get nodes lists them")
    if options.nodes or options.all_nodes:
        return _everything(view, options)
    return _one_of_each(view, options, fits)


def _everything(view: ClusterView, options: SmokeOptions) -> SmokePlan:
    plan = SmokePlan()
    nodes = list(dict.fromkeys(options.nodes)) or view.nodes()
    if options.most_nodes and len(nodes) > options.most_nodes:
        plan.notes.append(f"{options.most_nodes} of {len(nodes)} nodes, as --max-nodes says")
        nodes = nodes[: options.most_nodes]
    for node in nodes:
        problem = _problem(view, node, options)
        if problem is not None:
            plan.settled.append(problem)
        else:
            plan.tries[node] = list(view.kinds(node, options.forms))
    return plan


def _one_of_each(view: ClusterView, options: SmokeOptions, fits: Callable[[str, TryKind], Fit]) -> SmokePlan:
    """Each kind on the first node that has one to spare."""
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
            plan.settled.append(TryResult(node=node, kind=kind, status=TryStatus.NOT_TRIED, message=why + more))
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
    """Why nothing can be tried on a node."""
    if not view.slices(node):
        message = f"the node publishes no devices of {view.driver}"
        return _settled(node, TryStatus.FAILED, message, TryLayer.SLICES)
    if not view.is_ready(node):
        return _settled(node, TryStatus.FAILED, "the node is not ready", TryLayer.NODE)
    if view.is_cordoned(node) and node not in options.nodes:
        return _settled(node, TryStatus.NOT_TRIED, "the node is cordoned; --node tries it all the same")
    if not view.kinds(node, options.forms):
        wanted = " or ".join(options.forms)
        return _settled(node, TryStatus.NOT_TRIED, f"the node publishes nothing of kind {wanted}")
    return None


def _settled(node: str, status: TryStatus, message: str, layer: TryLayer | None = None) -> TryResult:
    do = next_step(node) if status is TryStatus.FAILED else ""
    return TryResult(node=node, kind=None, status=status, message=message, layer=layer, do=do)
