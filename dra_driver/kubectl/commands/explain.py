"""``kubectl dra explain``: explain why pods, a workload or a claim wait, or whether a manifest would fit.

Exit status: 0 when everything fits, runs or has finished, 1 otherwise.
"""

import argparse
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Final

from msgspec.structs import replace

from dra_driver.core.errors import ConfigurationError, KubernetesApiError
from dra_driver.core.finding import coloured
from dra_driver.core.request_rights import missing_right
from dra_driver.core.text import printable
from dra_driver.kube import paths
from dra_driver.kube.state import ClusterState, with_objects
from dra_driver.kube.state_file import flat, objects_of, read_documents
from dra_driver.kubectl import explain
from dra_driver.kubectl.commands import source
from dra_driver.kubectl.commands.listing import add_output, add_selector, print_document, print_text, scope_of, selected
from dra_driver.kubectl.commands.source import Progress, namespace_of, state_of
from dra_driver.kubectl.explain import Explanation, ExplanationList, NodeTemplate, Subject, Wire, scheduler_for

DESCRIPTION: Final = """\
Explain by the scheduler's rules why a pod, the pods of a workload, or a claim have no devices: the verdict, the
rejected devices of each request, and the nearest miss. Without a name: all waiting pods of the namespace, by cause.

  kubectl dra explain pod train
  kubectl dra explain claim shared -n team-a --node node-7
  kubectl dra explain deployment serving                     equal pods once
  kubectl dra explain -A                                     all waiting pods, by cause
  kubectl dra explain -f pod.yaml                            before applying it
  kubectl dra explain job train --with-node 8xh100-sxm5-80gb    how many nodes of this kind would it need?
  kubectl dra explain pod train --cluster-state cluster.json
"""
_EXPLAINING: Final = "trying nodes and devices as the scheduler does"


_KINDS: Final = ("pod", "claim", *source.OWNERS)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    source.add_targets(parser, *_KINDS, about="a plain name is a pod")
    parser.add_argument(
        "-f",
        "--filename",
        action="append",
        metavar="FILE",
        help="explain these manifests before they are applied",
    )
    parser.add_argument("--node", default="", metavar="NAME", help="also list every device of this node")
    source.add_scheduling(parser)
    parser.add_argument("-n", "--namespace", metavar="NAME", help="default: the namespace of the context")
    parser.add_argument("-A", "--all-namespaces", action="store_true", help="waiting pods of all namespaces")
    add_selector(parser, "waiting pods")
    add_output(parser, "json", "yaml", default="text")
    source.add_source(parser)


def run(args: argparse.Namespace) -> int:
    if args.target and args.filename:
        raise ConfigurationError("expected names, or manifests with -f, not both")
    if args.target and (args.all_namespaces or args.selector):
        raise ConfigurationError("-A and -l: only without names")
    if not args.target and not args.filename:
        return _explain_waiting(args)
    with Progress("") as progress:
        reports = _of_manifests(args, progress) if args.filename else _of_targets(args, progress)
    if args.output == "text":
        _print_text(reports)
    else:
        print_document(args.output, reports[0] if len(reports) == 1 else ExplanationList(items=reports))
    return 0 if all(report.verdict.answer.is_good for report in reports) else 1


def added_node(args: argparse.Namespace, state: ClusterState) -> NodeTemplate | None:
    """Return the node of ``--with-node``, None without. Raises ConfigurationError."""
    if not args.with_node and not args.with_policy:
        return None
    from dra_driver.kubectl.commands import node_template  # with the packages of a node process, which the web UI lacks

    return node_template.added_node(args, state)


def _explain_waiting(args: argparse.Namespace) -> int:
    """Explain all waiting pods; return 1 if there is one, or if pods cannot be read."""
    namespace = scope_of(args)
    with Progress("") as progress:
        state = state_of(args, namespace=namespace)
        progress.say(_EXPLAINING)
        chosen = replace(state, pods=selected(args.selector, state.pods))
        found = explain.waiting_list(
            explain.waiting_groups(chosen, namespace),
            _explainer(args, state),
            explain.gaps_that_matter(state, None),
        )
    if args.output != "text":
        print_document(args.output, found)
    elif found.items:
        print_text(explain.render_waiting(found, *([coloured] if source.wants_colour() else [])))
    elif not source.is_unread(state, "pods"):
        place = f" in {printable(namespace)} namespace" if namespace else ""
        print(f"No pods waiting for devices found{place}.", file=sys.stderr)
    for gap in found.gaps if args.output == "text" else ():
        print(f"not read: {printable(gap)}", file=sys.stderr)
    return 1 if found.items or source.is_unread(state, "pods") else 0


def _explainer(args: argparse.Namespace, state: ClusterState) -> Callable[..., Explanation]:
    """Return a function that explains the first of equal pods, or the subject of a claim."""
    scheduler = scheduler_for(state, args.feature_gates)
    added = added_node(args, state)

    def explain_first(pods: Sequence[Wire], of_claim: Subject | None = None) -> Explanation:
        subject = of_claim or explain.subject_of(state, pods[0])
        report = explain.explain(state, subject, node=args.node, scheduler=scheduler)
        return explain.with_added_node(state, report, subject, pods, added)

    return explain_first


def _of_targets(args: argparse.Namespace, progress: Progress) -> list[Explanation]:
    targets = source.targets_of(args.target, *_KINDS, default="pod")
    namespace = namespace_of(args)
    state = _with_neighbours(args, state_of(args, namespace=namespace), namespace)
    progress.say(_EXPLAINING)
    explainer = _explainer(args, state)
    reports: list[Explanation] = []
    held: dict[tuple[str, str, str], Callable[[], Sequence[Wire]]] = {}
    for kind, name in targets:
        if kind in source.OWNERS:
            explain.check_queue(state, kind, name, namespace)
            groups = explain.owner_groups(state, kind, name, namespace)
            reports += explain.explain_groups(groups, explainer)
            pods = [pod for group in groups for pod in group]
            held |= {("pod", namespace, pod["metadata"]["name"]): partial(_claims_of, state, pod) for pod in pods}
            continue
        subject = (explain.pod_subject if kind == "pod" else explain.claim_subject)(state, namespace, name)
        reports.append(explainer([subject.pod]) if kind == "pod" else explainer((), subject))
        held[kind, namespace, name] = partial(list, [one.claim or {} for one in subject.claims])
    return explain.with_rails(state, held, reports)


def _claims_of(state: ClusterState, pod: Wire) -> Sequence[Wire]:
    return [one.claim or {} for one in explain.subject_of(state, pod).claims]


def _with_neighbours(args: argparse.Namespace, state: ClusterState, namespace: str) -> ClusterState:
    """Return the state with Kueue's Workloads and the cluster autoscaler's events of the namespace, if readable."""
    if args.cluster_state:
        return state
    api = source.client(source.kubeconfig_of(args))
    with suppress(KubernetesApiError):  # unreadable events are a gap already
        scaling = api.list(paths.events(namespace), {"fieldSelector": "reportingComponent=cluster-autoscaler"})["items"]
        state = replace(state, events=[*state.events, *scaling])
    try:
        return replace(state, workloads=source.listed_of_kueue(api, paths.workloads(namespace)) or ())
    except KubernetesApiError as error:
        return replace(state, gaps=[*state.gaps, f"workloads: {missing_right(error)}"])


def _of_manifests(args: argparse.Namespace, progress: Progress) -> list[Explanation]:
    namespace = namespace_of(args)
    documents, objects = [], []
    for name in args.filename:
        for file in source.files_in(name):
            found = list(flat(list(read_documents(file, source.text_of(name))), str(file)))
            documents += found
            objects += objects_of([item for item in found if item.get("kind") != "Pod"], str(file), namespace)
    where = ", ".join(args.filename)
    pods = explain.pods_in(documents, namespace, where)
    state = with_objects(state_of(args), objects)
    progress.say(_EXPLAINING)
    if pods:
        scheduler = scheduler_for(state, args.feature_gates)
        reports = explain.explain_pods(state, pods, node=args.node, scheduler=scheduler)
        return explain.with_added_nodes(state, reports, pods, added_node(args, state))
    claims = [item for item in objects if item["kind"] == "ResourceClaim"]
    if not claims:
        raise ConfigurationError(f"{where}: contains no Pod, no workload that creates pods, and no ResourceClaim")
    explainer = _explainer(args, state)
    return [explainer((), explain.subject_of_claim(item)) for item in claims]


def _print_text(reports: Sequence[Explanation]) -> None:
    """Print the explanations. If there are several, omit the list of other nodes from claims that fit."""
    colour = source.wants_colour()
    shown: list[str] = []
    for report in reports:
        short = len(reports) > 1 and report.verdict.answer is explain.Answer.FITS and report.node is None
        cut = replace(report, nodes=()) if short else report
        shown.append(explain.render(cut, coloured) if colour else explain.render(cut))
    print_text("\n".join(shown))
