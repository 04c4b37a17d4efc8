"""``kubectl dra smoke``: run a pod for each kind of device and compare its devices with its allocation."""

import argparse
import signal
import sys
from collections.abc import Callable, Mapping
from functools import partial
from typing import Final

from dra_driver.core.errors import ConfigurationError, DraError
from dra_driver.core.text import one_line
from dra_driver.diagnose import smoke
from dra_driver.diagnose.smoke import WORDS, Fit, SmokeOptions, SmokeReport, TryKind, TryResult
from dra_driver.kube.devices import Wire
from dra_driver.kube.rest import RestClient
from dra_driver.kube.state import ClusterState, with_objects
from dra_driver.kubectl.commands.listing import add_output, duration, print_document, print_table
from dra_driver.kubectl.commands.source import Progress, add_kubeconfig, client, kubeconfig_of
from dra_driver.kubectl.explain import Answer, Explanation, SchedulerModel, explain_pods, scheduler_for

DESCRIPTION: Final = """\
Test device injection: for each kind of device that a node publishes (whole GPU, MIG profile, share), run a pod with a
claim for one device and compare `nvidia-smi -L` in its container with the allocation. Uses only free devices.

  kubectl dra smoke                       each kind once, on any node with a free device
  kubectl dra smoke --node gpu-a          all kinds that gpu-a publishes
  kubectl dra smoke --all-nodes --kind gpu
  kubectl dra smoke --cleanup             delete leftovers of interrupted runs

The pods run the driver's image under the Pod Security Standard "restricted". Exit status 2 also without permission
or published devices.
"""
_LONGEST_S: Final = 3600
_MOST_PARALLEL: Final = 64


def add_arguments(parser: argparse.ArgumentParser) -> None:
    chosen = parser.add_mutually_exclusive_group()
    chosen.add_argument("--node", action="append", default=[], metavar="NAME", help="test this node; repeatable")
    chosen.add_argument("--all-nodes", action="store_true", help="test every node with GPUs")
    parser.add_argument(
        "--max-nodes",
        type=int,
        default=0,
        metavar="N",
        help="maximum number of nodes with --all-nodes (default: no limit)",
    )
    parser.add_argument("--parallel", type=int, default=8, metavar="N", help="nodes at the same time (default: 8)")
    parser.add_argument(
        "--kind", action="append", choices=("gpu", "mig", "shared"), help="only this kind; repeatable (default: all)"
    )
    parser.add_argument("--driver", metavar="NAME", default="gpu.nvidia.com", help="default: gpu.nvidia.com")
    parser.add_argument(
        "-n", "--namespace", metavar="NAME", default="dra-driver", help="of the pods (default: dra-driver)"
    )
    parser.add_argument("--image", default="", help="an image with glibc (default: the node process' image)")
    parser.add_argument(
        "--driver-namespace", metavar="NAME", default="dra-driver", help="of the node process (default: dra-driver)"
    )
    parser.add_argument(
        "--daemonset", metavar="NAME", default="dra-driver-node", help="of the node process (default: dra-driver-node)"
    )
    parser.add_argument(
        "--run-as-user", metavar="UID", default="65532", help="or `none`, for OpenShift (default: 65532)"
    )
    parser.add_argument(
        "--timeout",
        type=partial(duration, most_s=_LONGEST_S),
        default="2m",
        metavar="DURATION",
        help="limit per pod, including image pull (default: 2m)",
    )
    parser.add_argument("--cleanup", action="store_true", help="only delete leftovers of smoke tests in the namespace")
    add_output(parser, "json", "yaml", default="text")
    add_kubeconfig(parser)


def run(args: argparse.Namespace) -> int:
    options, rest = _options(args), client(kubeconfig_of(args))
    if args.cleanup:
        return _clean_up(rest, options.namespace)
    with Progress("reading the cluster") as progress:
        work = smoke.SmokeRun(rest, options, fits_under, lambda *news: progress.say(_step(*news)))
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):  # the run deletes its objects, then ends
            signal.signal(number, lambda *_: work.stop())
        report = work.run()
    _print(report, args.output)
    return report.exit_status


def _options(args: argparse.Namespace) -> SmokeOptions:
    for flag, value, least, most in (
        ("--parallel", args.parallel, 1, _MOST_PARALLEL),
        ("--max-nodes", args.max_nodes, 0, 1_000_000),
    ):
        if not least <= value <= most:
            raise ConfigurationError(f"{flag} {value}: expected {least} to {most}")
    if args.max_nodes and not args.all_nodes:
        raise ConfigurationError("--max-nodes: only with --all-nodes")
    if not (args.run_as_user == "none" or (args.run_as_user.isascii() and args.run_as_user.isdigit())):
        raise ConfigurationError(f"--run-as-user {args.run_as_user[:40]}: expected a number, or none")
    return SmokeOptions(
        namespace=args.namespace,
        driver=args.driver,
        nodes=tuple(args.node),
        all_nodes=args.all_nodes,
        forms=tuple(form for form in smoke.FORMS if not args.kind or form in args.kind),
        image=args.image,
        daemon_set=args.daemonset,
        driver_namespace=args.driver_namespace,
        user=None if args.run_as_user == "none" else min(int(args.run_as_user), 2**31 - 1),
        timeout_s=int(args.timeout),
        parallel=args.parallel,
        most_nodes=args.max_nodes,
    )


def _clean_up(rest: RestClient, namespace: str) -> int:
    found, left = smoke.clean_up(rest, namespace)
    for name in found:
        print(f"deleted: {name}")
    if not found:
        print(f"no leftovers of smoke tests in namespace {namespace}")
    for name in left:
        print(f"not deleted: {name}", file=sys.stderr)
    return 1 if left else 0


def _print(report: SmokeReport, form: str) -> None:
    if form != "text":
        print_document(form, smoke.document_of(report))
        return
    print_table(("NODE", "KIND", "RESULT", "DEVICE", "DETAIL"), [_row(item) for item in report.tries])
    for item in report.tries:
        for line in item.lines:
            print(f"  {item.node} {item.kind}: log: {line}")
        if item.finding.fix:
            print(f"  {item.node} {item.kind or ''}: next: {item.finding.fix}".replace(" :", ":"))
    for name in report.left:
        print(one_line(f"left in namespace {report.namespace}: {name}"))
    for note in report.notes:
        print(one_line(f"note: {note}"))
    print(f"\n{report.summary}{'; interrupted' if report.interrupted else ''}")


def _row(item: TryResult) -> tuple[str, ...]:
    result = f"{WORDS[item.status]}{f' ({item.finding.layer})' if item.finding.layer else ''}"
    detail = item.finding.seen or ", ".join(item.seen)
    return item.node, str(item.kind or "all"), result, item.device or "-", detail or "-"


def _step(result: TryResult, done: int, total: int) -> str:
    return f"{done} of {total}: {result.node} {result.kind}: {WORDS[result.status]}"


# --- Check whether a pod fits on a node. Busy devices are not a failure.

# Codes of `explain` for devices of another kind and for busy devices.
_OTHER_KIND: Final = frozenset({"classSelector", "requestSelector", "nodeSelection"})
_BUSY: Final = {
    "inUse": "allocated",
    "takenByThisPod": "allocated",
    "capacityShort": "allocated to others",
    "counterShort": "in use in another form",
}


def fits_under(whole: ClusterState) -> Callable[[ClusterState, Wire, Wire, TryKind], Fit]:
    """Return `fit_of` for parts of the cluster ``whole``, with its scheduler's version and features."""
    scheduler = scheduler_for(whole)
    return lambda state, pod, claim, kind: fit_of(state, pod, claim, kind, scheduler)


def fit_of(state: ClusterState, pod: Wire, claim: Wire, kind: TryKind, scheduler: SchedulerModel) -> Fit:
    """Return whether the pod with its claim fits on the only node of ``state`` now."""
    try:
        found = explain_pods(with_objects(state, [claim]), [pod], scheduler=scheduler)[0]
    except DraError as error:
        return Fit(fits=False, answer=str(error))
    if found.verdict.answer is Answer.FITS:
        return Fit(fits=True)
    return Fit(fits=False, busy=_busy(found, kind), answer=_answer(found))


def _busy(found: Explanation, kind: TryKind) -> str:
    """Return a reason if only the use or taints of devices, or the node's other pods, prevent it."""
    if any(cause.blocks for cause in found.causes):
        return ""
    other = [reason.message for reason in found.nodes if not reason.by_devices]
    if other:
        return f"no pod is placed there: {other[0]}"
    counts: dict[str, int] = {}
    tainted = ""
    for reason in (reason for request in found.requests for reason in request.reasons):
        if reason.code in _OTHER_KIND:
            continue
        if reason.code == "tainted":
            tainted, word = reason.message, "tainted"
        elif reason.code in _BUSY:
            word = _BUSY[reason.code]
        else:
            return ""
        counts[word] = counts.get(word, 0) + reason.devices
    return _counted(kind, counts, tainted) if counts else ""


def _counted(kind: TryKind, counts: Mapping[str, int], tainted: str) -> str:
    total = sum(counts.values())
    if set(counts) == {"allocated"} and kind.form == "gpu":
        return f"all {total} GPUs are allocated" if total > 1 else "its only GPU is allocated"
    listed = ", ".join(f"{count} {word}" for word, count in counts.items())
    noun = {"gpu": "GPUs", "mig": f"places for {kind.name}", "shared": "shared GPUs"}[kind.form]
    why = f" ({tainted})" if tainted else ""
    return f"none of {total} {noun} is free: {listed}{why}" if total > 1 else f"not free: {listed}{why}"


def _answer(found: Explanation) -> str:
    text = found.verdict.sentence
    more = [cause.message for cause in found.causes if cause.blocks]
    more += [found.nearest_miss.fix] if found.nearest_miss is not None else []
    for part in more:
        text = text if part in text else f"{text}; {part}"
    return text
