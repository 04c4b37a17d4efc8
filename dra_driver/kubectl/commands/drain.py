"""``kubectl dra drain NODE``: free GPUs of a node for maintenance."""

import argparse
import sys
from collections.abc import Callable
from functools import partial
from typing import Final

from dra_driver.core.errors import ConfigurationError, DraError
from dra_driver.core.text import printable
from dra_driver.kubectl.commands.listing import add_output, duration, print_document
from dra_driver.kubectl.commands.source import add_kubeconfig, client, kubeconfig_of
from dra_driver.kubectl.drain import DrainOptions, DrainReport, document_of, drain, state_left, wait_at_most

DESCRIPTION: Final = """\
Free a node's GPUs for a driver upgrade, a reset or a reboot:

  1. annotate the Node: its node process taints the GPUs
  2. list the claims and pods that use them
  3. with --evict, evict these pods, subject to PodDisruptionBudgets
  4. wait until no claim uses them
  5. for a whole node, or with --detach, wait until the node process has closed the NVIDIA driver

Without --cordon, other pods can still start on the node. The command can be interrupted and repeated.
"""
_DRIVER: Final = "gpu.nvidia.com"
_LONGEST_S: Final = 7 * 86_400.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_target(parser, "drain only this GPU: UUID or name such as gpu-3; repeatable (default: all)")
    add_eviction(parser)
    parser.add_argument(
        "--cordon",
        action="store_true",
        help="cordon the node first, so that the cluster autoscaler does not assume drained GPUs on new nodes",
    )
    parser.add_argument(
        "--detach",
        action=argparse.BooleanOptionalAction,
        help="close the NVIDIA driver once the GPUs are free (default: for a whole node)",
    )


def add_target(parser: argparse.ArgumentParser, gpu_help: str) -> None:
    parser.add_argument("node", metavar="NODE", help="name of the node; NODE/GPU is one GPU")
    parser.add_argument("--gpu", action="append", default=[], metavar="GPU", help=gpu_help)
    add_request(parser, "10m")


def add_eviction(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--evict", action="store_true", help="evict the pods that use these GPUs")
    parser.add_argument("--force", action="store_true", help="with --evict: also pods without a controller")


def node_and_gpus(args: argparse.Namespace) -> tuple[str, tuple[str, ...]]:
    """Return the node and the GPUs of ``NODE``, ``node/NODE`` or ``NODE/GPU``, and of ``--gpu``. Raises
    ConfigurationError for an empty name, as of an unset variable: a drain without GPUs is of the whole node."""
    node, slash, gpu = args.node.removeprefix("node/").partition("/")
    gpus = (gpu, *args.gpu) if slash else tuple(args.gpu)
    if not node or "/" in gpu or not all(gpus):
        raise ConfigurationError(f"expected NODE or NODE/GPU, got {' --gpu '.join([args.node, *args.gpu])[:80]!r}")
    return node, gpus


def add_request(parser: argparse.ArgumentParser, timeout: str) -> None:
    """Add the options of commands that change a node, with the default of ``--timeout``."""
    parser.add_argument(
        "--timeout",
        type=partial(duration, least_s=0, most_s=_LONGEST_S),
        metavar="DURATION",
        default=timeout,
        help=f"total time limit (default: {timeout})",
    )
    parser.add_argument("--dry-run", action="store_true", help="show the claims and pods, and change nothing")
    parser.add_argument("--driver", metavar="NAME", default=_DRIVER, help=f"default: {_DRIVER}")
    add_output(parser, "json", "yaml", default="text")
    add_kubeconfig(parser)


def run(args: argparse.Namespace) -> int:
    if args.force and not args.evict:
        raise ConfigurationError("--force: only with --evict")
    node, gpus = node_and_gpus(args)
    options = DrainOptions(
        node=node, driver=args.driver, gpus=gpus, evict=args.evict, force=args.force,
        detach=args.detach, dry_run=args.dry_run, cordon=args.cordon,
    )  # fmt: skip
    report = DrainReport(command="drain", node=node, driver=args.driver, dry_run=args.dry_run)
    api, limit = client(kubeconfig_of(args)), wait_at_most(args.timeout)
    return finish(args, report, lambda: drain(api, options, report, limit, say_for(args)))


def say_for(args: argparse.Namespace) -> Callable[[str], None]:
    """Return a function that prints steps immediately; with JSON to stderr."""
    stream = sys.stdout if args.output == "text" else sys.stderr

    def say(text: str) -> None:
        print(printable(text), file=stream, flush=True)

    return say


def finish(args: argparse.Namespace, report: DrainReport, work: Callable[[], None]) -> int:
    """Run ``work`` and show the report, also when it fails or is interrupted. Raises ConfigurationError."""
    status = 0
    try:
        work()
    except ConfigurationError:
        raise
    except DraError as error:
        report.result, report.message, status = "failed", str(error), 1
    except KeyboardInterrupt:
        report.result, report.message, status = "interrupted", "interrupted", 130
    if status:
        report.next_steps = tuple(state_left(report))
    if args.output != "text":
        print_document(args.output, document_of(report))
    say = say_for(args)
    if report.message:
        print(f"kubectl dra {report.command}: {report.message}", file=sys.stderr)
    for step in report.next_steps:
        say(f"next: {step}" if not status else f"state: {step}")
    return status
