"""``kubectl dra undrain NODE``: undrain GPUs for new claims."""

import argparse
from typing import Final

from dra_driver.kubectl.commands.drain import add_target, finish, node_and_gpus, say_for
from dra_driver.kubectl.commands.source import client, kubeconfig_of
from dra_driver.kubectl.drain import DrainOptions, DrainReport, undrain, wait_at_most

DESCRIPTION: Final = """\
Undrain GPUs: remove the annotations of `kubectl dra drain`, and wait until the node process has removed the taint and
reattached to the NVIDIA driver.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_target(parser, "undrain only this GPU: UUID or name; repeatable (default: all)")


def run(args: argparse.Namespace) -> int:
    node, gpus = node_and_gpus(args)
    options = DrainOptions(node=node, driver=args.driver, gpus=gpus, dry_run=args.dry_run)
    report = DrainReport(command="undrain", node=node, driver=args.driver, dry_run=args.dry_run)
    api, limit = client(kubeconfig_of(args)), wait_at_most(args.timeout)
    return finish(args, report, lambda: undrain(api, options, report, limit, say_for(args)))
