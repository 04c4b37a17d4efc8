"""The start of a command line that runs a program with another root as its ``/``.

A child of its own enters the root, and not ``preexec_fn``, which may deadlock in a process with threads.
"""

import sys
from typing import Final

_ENTER: Final = "import os, sys; os.chroot(sys.argv[1]); os.chdir('/'); os.execv(sys.argv[2], sys.argv[2:])"


def enter(root: str) -> list[str]:
    """What comes before the program's path below ``root`` and its arguments; nothing for this process' own root."""
    return [] if root in ("", "/") else [sys.executable, "-I", "-S", "-c", _ENTER, root]
