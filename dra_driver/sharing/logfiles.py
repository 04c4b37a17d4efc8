"""Logs of daemons, which nobody else keeps short.

Owns the bound and the reading of the end. Refuses to know what is written. A file that has grown too long is cut to
nothing after its end was copied to ``<name>.1``: the daemon has it open and would go on writing into a renamed one.
"""

import os
from contextlib import suppress
from pathlib import Path
from typing import Final

MAX_FILE: Final = 1024 * 1024
KEPT: Final = 256 * 1024
OUTPUT: Final = "output.log"
"""What a daemon prints; its own files beside it are control.log and server.log."""
_TAIL: Final = 2048


def open_output(folder: Path) -> int:
    """A descriptor to which a daemon can print. Raises OSError."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW
    return os.open(folder / OUTPUT, flags, 0o600)


def shorten(folder: Path) -> None:
    """Cut every plain file of ``folder`` that is longer than `MAX_FILE`. A file that cannot be cut is left alone."""
    with suppress(OSError):
        for entry in os.scandir(folder):
            if entry.is_file(follow_symlinks=False) and not entry.name.endswith(".1"):
                with suppress(OSError):
                    _shorten(Path(entry.path))


def last_words(folder: Path) -> str:
    """The last lines that the daemon printed, or that its control log has; '' when there is nothing."""
    for name in (OUTPUT, "control.log"):
        with suppress(OSError):
            lines = _end(folder / name, _TAIL).decode(errors="replace").split("\n")
            words = " ".join(line.strip() for line in lines[-4:] if line.strip())
            if words:
                return words
    return ""


def _shorten(path: Path) -> None:
    # Blocks, not length: a writer that does not append leaves a hole at the front after the cut.
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
