"""``kubectl dra undrain NODE``: undrain GPUs, so that new claims get them."""

import argparse
from typing import Final

from dra_driver.kubectl.commands.drain import add_target, finish, say_for, seconds
from dra_driver.kubectl.commands.source import client, kubeconfig_of
from dra_driver.kubectl.drain import DrainOptions, DrainReport, undrain, wait_at_most

DESCRIPTION: Final = """\
Give GPUs that were drained back: remove the annotations that `kubectl dra drain` wrote (another request to detach
stays), and wait until the taint is gone and, if the NVIDIA driver was given up, until it is in use again. Exit status:
0 done, 1 not done in time or a right is missing, 2 wrong usage, 130 interrupted.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_target(parser, "give this GPU back alone, by UUID or name; repeatable (default: all)")


def run(args: argparse.Namespace) -> int:
    options = DrainOptions(node=args.node, driver=args.driver, gpus=tuple(args.gpu))
    report = DrainReport(command="undrain", node=args.node, driver=args.driver)
    api, limit = client(kubeconfig_of(args)), wait_at_most(seconds(args.timeout))
    return finish(args, report, lambda: undrain(api, options, report, limit, say_for(args)))
