"""``dra-driver version``: prints the version."""

import argparse
import platform

from dra_driver import __version__

DESCRIPTION = "Print the version of this program."


def add_arguments(_parser: argparse.ArgumentParser) -> None:
    """It has none."""


def run(_args: argparse.Namespace) -> int:
    print(f"dra-driver {__version__} (Python {platform.python_version()})")
    return 0
