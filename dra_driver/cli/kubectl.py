"""The kubectl plugin ``kubectl dra``: commands for people with access to a cluster, not to a node.

Owns the list of its subcommands; they run as those of ``dra-driver`` do.
"""

import sys
from collections.abc import Sequence
from typing import Final

from dra_driver.cli.main import execute

ABOUT: Final = "Look at devices that are handed out by Dynamic Resource Allocation."
SUBCOMMANDS: Final = {
    "devices": ("dra_driver.cli.devices", "list published devices and the claims that hold them"),
    "claims": ("dra_driver.cli.claims", "list claims, their devices and their pods"),
    "capacity": ("dra_driver.cli.capacity", "count what is free and what would still fit"),
    "lint": ("dra_driver.cli.lint", "check manifests, device classes and claims"),
    "explain": ("dra_driver.cli.explain", "say why a pod or claim has no devices"),
    "snapshot": ("dra_driver.cli.snapshot", "write the cluster's state to a file for offline questions"),
    "version": ("dra_driver.cli.version", "print the version"),
}


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one subcommand and returns the exit status."""
    return execute("kubectl dra", ABOUT, SUBCOMMANDS, list(sys.argv[1:] if argv is None else argv))


if __name__ == "__main__":
    sys.exit(main())
