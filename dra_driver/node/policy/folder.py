"""Read the policy files of one folder as one consistent set, and detect that they changed.

Policy files are ``*.yaml``, ``*.yml`` and ``*.json``, without hidden ones. A ConfigMap mount is a folder of links into
``..data``, itself a link to a hidden folder that the kubelet replaces atomically (k8s.io/kubernetes
``pkg/volume/util/atomic_writer.go``); there the files are read from the target of ``..data``, so that no set is half
old and half new. In any other folder the set is read again until it does not change during the read.
"""

import os
import stat
from pathlib import Path
from typing import Final

from msgspec import Struct

from dra_driver.core.errors import ConfigurationError
from dra_driver.core.text import printable

MAX_FILES: Final = 64
MAX_FILE_BYTES: Final = 256 * 1024
MAX_BYTES: Final = 2 * 1024 * 1024
"""Limit of all files together. A ConfigMap has at most 1 MiB."""
_ENDINGS: Final = (".yaml", ".yml", ".json")
_ATTEMPTS: Final = 3

Print = tuple[object, ...]


class PolicyFile(Struct, frozen=True):
    """A file's name without its folder, and its bytes."""

    name: str
    data: bytes

    @property
    def is_json(self) -> bool:
        return self.name.endswith(".json")


def fingerprint(folder: Path) -> Print:
    """A value that differs when a file may have changed. Raises nothing, also for an unreadable folder."""
    try:
        base = _base(folder)
        found = ((name, (base / name).stat()) for name in _names(base))
        return (str(base), *((name, of.st_ino, of.st_size, of.st_mtime_ns, of.st_ctime_ns) for name, of in found))
    except (OSError, ConfigurationError) as error:
        return ("unreadable", str(error))


def read_folder(folder: Path) -> tuple[PolicyFile, ...]:
    """The files by name. Raises ConfigurationError that names the folder or file."""
    for _ in range(_ATTEMPTS):
        before = fingerprint(folder)
        try:
            base = _base(folder)
            files = tuple(read_file(base / name) for name in _names(base))
        except FileNotFoundError as error:
            if fingerprint(folder) != before:
                continue  # replaced meanwhile
            raise ConfigurationError(f"{error.filename or folder} does not exist") from error
        except OSError as error:
            raise ConfigurationError(f"{error.filename or folder} cannot be read: {error.strerror}") from error
        if sum(len(file.data) for file in files) > MAX_BYTES:
            raise ConfigurationError(f"the policy files of {base} have more than {MAX_BYTES // 1024} KiB together")
        if fingerprint(folder) == before:
            return files
    raise ConfigurationError(f"the files of {folder} change while they are read: write them elsewhere and rename them")


def read_file(path: Path) -> PolicyFile:
    """One file of any name. Raises OSError, or ConfigurationError for something else than a file or a large one."""
    # O_NONBLOCK: opening a FIFO would wait for its writer.
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        # Before os.fdopen, whose error for a folder names only the descriptor's number.
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise ConfigurationError(f"{path} is not a regular file")
        with os.fdopen(fd, "rb", closefd=False) as file:
            data = file.read(MAX_FILE_BYTES + 1)
    finally:
        os.close(fd)
    if len(data) > MAX_FILE_BYTES:
        raise ConfigurationError(f"{path} is larger than {MAX_FILE_BYTES // 1024} KiB")
    return PolicyFile(printable(path.name), data)


def _base(folder: Path) -> Path:
    swapped = folder / "..data"
    return Path(os.path.realpath(swapped, strict=True)) if swapped.is_symlink() else folder


def _names(base: Path) -> list[str]:
    names = [name for name in os.listdir(base) if name.endswith(_ENDINGS) and not name.startswith(".")]  # noqa: PTH208 - names alone
    if len(names) > MAX_FILES:
        raise ConfigurationError(f"{base} has {len(names)} policy files, at most {MAX_FILES} are read")
    return sorted(names)
