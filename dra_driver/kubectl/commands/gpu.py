"""``kubectl dra gpu``: switch the MIG mode of one GPU, or reset it, when nothing uses it."""

import argparse
from typing import Final

from dra_driver.core.errors import ConfigurationError
from dra_driver.core.model.gpu_operation import Operation
from dra_driver.kubectl.commands.drain import add_eviction, add_request, finish, say_for
from dra_driver.kubectl.commands.source import client, kubeconfig_of
from dra_driver.kubectl.drain import DrainOptions, DrainReport, operate, wait_at_most

DESCRIPTION: Final = """\
Change one GPU safely. The command drains the GPU and waits until it is free. The node process changes and verifies the
GPU. After a failure it restores the former state, or names the reason for a reboot.

  kubectl dra gpu mig-mode NODE/GPU on    switch MIG mode on (A100 and A30 need this before partitions are offered)
  kubectl dra gpu mig-mode NODE/GPU off   switch it off; no MIG instance may exist
  kubectl dra gpu reset NODE/GPU          reset the GPU
"""
_WHAT: Final = {
    ("mig-mode", "on"): Operation.MIG_ON,
    ("mig-mode", "off"): Operation.MIG_OFF,
    ("reset", None): Operation.RESET,
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("action", choices=("mig-mode", "reset"), help="what to change")
    parser.add_argument("target", metavar="NODE/GPU", help="node, and UUID or name of its GPU, such as gpu-a/gpu-3")
    parser.add_argument("mode", nargs="?", choices=("on", "off"), help="with mig-mode: the wanted mode")
    add_eviction(parser)
    add_request(parser, "15m")


def run(args: argparse.Namespace) -> int:
    operation = _WHAT.get((args.action, args.mode))
    if operation is None:
        raise ConfigurationError("expected `mig-mode NODE/GPU on`, `mig-mode NODE/GPU off` or `reset NODE/GPU`")
    if args.force and not args.evict:
        raise ConfigurationError("--force: only with --evict")
    node, slash, gpu = args.target.partition("/")
    if not (node and slash and gpu):
        raise ConfigurationError(f"{args.target[:80]!r}: expected NODE/GPU, such as gpu-a/gpu-3")
    options = DrainOptions(
        node=node, driver=args.driver, gpus=(gpu,), evict=args.evict, force=args.force, dry_run=args.dry_run
    )
    report = DrainReport(command="gpu", node=node, driver=args.driver, dry_run=args.dry_run)
    api, limit = client(kubeconfig_of(args)), wait_at_most(args.timeout)
    return finish(args, report, lambda: operate(api, options, report, limit, say_for(args), operation=operation))
