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
    "version": ("dra_driver.cli.version", "print the version"),
}


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one subcommand and returns the exit status."""
    return execute("kubectl dra", ABOUT, SUBCOMMANDS, list(sys.argv[1:] if argv is None else argv))


if __name__ == "__main__":
    sys.exit(main())
