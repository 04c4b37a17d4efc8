"""``dra-driver cleanup``: remove every trace of an uninstalled driver from a node."""

import argparse
import logging
from typing import Final

from dra_driver.diagnose.node_settings import add_flags, load_settings

DESCRIPTION: Final = """\
Remove all state of this driver from the node: undo its changes of GPUs (MIG instances that it created, MIG mode,
compute mode, time slices), then remove its CDI files, sockets, file systems in memory and its directory. Files of other
programs stay. It refuses, and removes nothing, while a node process or an MPS host runs or a claim is prepared. Run it
as root on the node, see docs/operations.md.
"""
EPILOG: Final = "exit status: 0 everything is removed, 1 something stays, 2 wrong usage, or it refused."


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--dry-run", action="store_true", help="only list the changes to undo and the files to remove")
    add_flags(parser)


def run(args: argparse.Namespace) -> int:
    """Print the removals and return the exit status. Raises ConfigurationError if it refuses."""
    from dra_driver.diagnose.node_state import clean_up

    logging.basicConfig(level=logging.ERROR, format="%(message)s")
    settings, places = load_settings(args)
    done = clean_up(settings, places, dry_run=args.dry_run)
    would = "would be " if args.dry_run else ""
    for change in done.undone:
        print(f"{would}undone: {change}")
    for trace in done.removed:
        print(f"{would}removed: {trace}")
    for path in done.kept:
        print(f"stays, because it is not this driver's: {path}")
    for problem in done.problems:
        print(f"problem: {problem}")
    if not (done.undone or done.removed or done.kept or done.problems):
        print("nothing of this driver is on this node")
    return 1 if done.problems else 0
