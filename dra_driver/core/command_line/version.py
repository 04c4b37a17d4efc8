"""``dra-driver version``: prints the version."""

import argparse
import platform
from typing import Any

from dra_driver import __version__


def add_parser(subparsers: Any) -> None:
    subparsers.add_parser("version", help="print the version", description="Print the version of this program.")


def run(_args: argparse.Namespace) -> int:
    print(f"dra-driver {__version__} (Python {platform.python_version()})")
    return 0
