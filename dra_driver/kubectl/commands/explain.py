"""``kubectl dra explain``: explain why a pod or claim waits, or whether a manifest would fit.

Exit status: 0 when everything fits, runs or has finished, 1 otherwise.
"""

import argparse
import json
from collections.abc import Sequence
from typing import Final

from msgspec.structs import replace

from dra_driver.core import yaml_text
from dra_driver.core.errors import ConfigurationError
from dra_driver.core.finding import coloured
from dra_driver.kube.state import with_objects
from dra_driver.kube.state_file import flat, objects_of, read_documents
from dra_driver.kubectl import explain
from dra_driver.kubectl.commands import source
from dra_driver.kubectl.commands.source import Progress, namespace_of, state_of
from dra_driver.kubectl.explain import Explanation, scheduler_for

DESCRIPTION: Final = """\
Explain by the scheduler's rules why a pod or claim has no devices: the verdict, the rejected devices of each request,
and the nearest miss.

  kubectl dra explain pod/train
  kubectl dra explain claim/shared -n team-a --node node-7
  kubectl dra explain -f pod.yaml                            before applying it
  kubectl dra explain pod/train --cluster-state cluster.json
"""
_EXPLAINING: Final = "trying nodes and devices as the scheduler does"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("target", nargs="?", metavar="pod/NAME | claim/NAME", help="object to explain")
    parser.add_argument(
        "-f",
        "--filename",
        action="append",
        metavar="FILE",
        help="explain these manifests before they are applied",
    )
    parser.add_argument("--node", default="", metavar="NAME", help="also list every device of this node")
    parser.add_argument("-o", "--output", choices=("text", "json", "yaml"), default="text", help="default: text")
    parser.add_argument(
        "--feature-gates",
        default="",
        metavar="A=true,B=false",
        help="scheduler feature gates that differ from its version's defaults",
    )
    source.add_source(parser)


def run(args: argparse.Namespace) -> int:
    if bool(args.target) == bool(args.filename):
        raise ConfigurationError("expected either pod/NAME or claim/NAME, or manifests with -f")
    with Progress("") as progress:
        reports = _of_manifests(args, progress) if args.filename else [_of_target(args, progress)]
    if args.output == "text":
        _print_text(reports)
    else:
        _print_data(reports, args.output)
    return 0 if all(report.verdict.answer.is_good for report in reports) else 1


def _of_target(args: argparse.Namespace, progress: Progress) -> Explanation:
    kind, name = source.split_target(args.target, "pod", "claim", default="pod")
    namespace = namespace_of(args)
    state = state_of(args, namespace=namespace)
    progress.say(_EXPLAINING)
    subject = (explain.pod_subject if kind == "pod" else explain.claim_subject)(state, namespace, name)
    return explain.explain(state, subject, node=args.node, scheduler=scheduler_for(state, args.feature_gates))


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
    scheduler = scheduler_for(state, args.feature_gates)
    progress.say(_EXPLAINING)
    if pods:
        return explain.explain_pods(state, pods, node=args.node, scheduler=scheduler)
    claims = [item for item in objects if item["kind"] == "ResourceClaim"]
    if not claims:
        raise ConfigurationError(f"{where}: contains no Pod, no workload that creates pods, and no ResourceClaim")
    return [
        explain.explain(state, explain.subject_of_claim(item), node=args.node, scheduler=scheduler) for item in claims
    ]


def _print_text(reports: Sequence[Explanation]) -> None:
    """Print the explanations. If there are several, omit the list of other nodes from claims that fit."""
    colour = source.wants_colour()
    shown: list[str] = []
    for report in reports:
        short = len(reports) > 1 and report.verdict.answer is explain.Answer.FITS and report.node is None
        cut = replace(report, nodes=()) if short else report
        shown.append(explain.render(cut, coloured) if colour else explain.render(cut))
    print("\n".join(shown), end="")


def _print_data(reports: Sequence[Explanation], form: str) -> None:
    found = [explain.to_wire(report) for report in reports]
    data: object = found[0] if len(found) == 1 else {"schemaVersion": 1, "kind": "ExplanationList", "items": found}
    if form == "json":
        print(json.dumps(data, indent=2, ensure_ascii=False))
        return
    print(yaml_text.dump(data, width=118), end="")
