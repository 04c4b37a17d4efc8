"""Bound the log files of MPS daemons, which write them without a limit, and read their last lines.

A file that is too long is truncated after its end was copied to ``<name>.1``. It is not renamed, because the daemon has
it open and would go on writing into the renamed file.
"""

import os
from contextlib import suppress
from pathlib import Path
from typing import Final

MAX_FILE: Final = 1024 * 1024
KEPT: Final = 256 * 1024
OUTPUT: Final = "output.log"
"""File with a daemon's output. The daemon's own log files beside it are control.log and server.log."""
_TAIL: Final = 2048


def open_output(folder: Path) -> int:
    """Open the output file of a daemon for appending; returns the descriptor. Raises OSError."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW
    return os.open(folder / OUTPUT, flags, 0o600)


def shorten(folder: Path) -> None:
    """Truncate every plain file of ``folder`` that is longer than `MAX_FILE`. Files that fail are skipped."""
    with suppress(OSError):
        for entry in os.scandir(folder):
            if entry.is_file(follow_symlinks=False) and not entry.name.endswith(".1"):
                with suppress(OSError):
                    _shorten(Path(entry.path))


def last_lines(folder: Path) -> str:
    """The last lines of the daemon's output, else of its control log, each once; '' when both are empty.

    Every restart of a daemon appends the same lines, and the text should not change with their number: Kubernetes
    counts events with the same text as one.
    """
    for name in (OUTPUT, "control.log"):
        with suppress(OSError):
            lines = _end(folder / name, _TAIL).decode(errors="replace").split("\n")
            words = " ".join(dict.fromkeys(line.strip() for line in lines[-4:] if line.strip()))
            if words:
                return words
    return ""


def _shorten(path: Path) -> None:
    # Blocks, not length: a writer that does not append leaves a hole at the front after the truncation.
    if path.stat().st_blocks * 512 <= MAX_FILE:
        return
    path.with_name(f"{path.name}.1").write_bytes(_end(path, KEPT))
    os.truncate(path, 0)


def _end(path: Path, length: int) -> bytes:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    try:
        size = os.fstat(descriptor).st_size
        return os.pread(descriptor, length, max(0, size - length))
    finally:
        os.close(descriptor)
