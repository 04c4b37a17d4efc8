"""Writing a small file whole or not at all.

Owns the way by a temporary file in the same folder and a rename. Refuses to know what is in a file. CDI files have
rules of their own (``cdi/writer.py``): who may read them, and that a runtime watches the folder.
"""

import os
from contextlib import suppress
from pathlib import Path
from typing import Final

UNFINISHED: Final = ".tmp"
"""How the names of temporary files end: what a death leaves is known by it."""


def replace_file(path: Path, data: bytes, *, durable: bool = False) -> None:
    """Have ``data`` alone in ``path``, for its owner's eyes (0600). A reader sees the old or the new content.

    ``durable`` syncs file and folder before it returns. Follows no link that somebody laid in the way. Raises OSError,
    and then ``path`` is as it was; dying leaves at most a file whose name ends with `UNFINISHED`.
    """
    temporary = path.with_name(f".{path.name}.{os.urandom(4).hex()}{UNFINISHED}")
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        with open(os.open(temporary, flags, 0o600), "wb") as file:  # noqa: PTH123 - a descriptor, not a path
            file.write(data)
            if durable:
                file.flush()
                os.fsync(file.fileno())
        temporary.replace(path)
    except OSError:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise
    if durable:
        _sync_folder(path.parent)


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
