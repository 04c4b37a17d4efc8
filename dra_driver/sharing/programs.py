"""Find the programs of the NVIDIA driver below its root, and the search paths that they need when it is not ``/``."""

import os
import stat
from pathlib import Path
from typing import Final

from dra_driver.driver_root.search import FOLDERS as LIBRARY_FOLDERS
from dra_driver.driver_root.search import resolve_below

PROGRAM_FOLDERS: Final = ("opt/bin", "usr/bin", "usr/sbin", "bin", "sbin")
"""The search order of NVIDIA's container toolkit."""
OWN_PATH: Final = "/usr/sbin:/usr/bin:/sbin:/bin"
_LIBCUDA: Final = "libcuda.so.1"


def find_program(root: str, name: str) -> str | None:
    """Full path, links followed inside ``root``, of the program; None without an executable file."""
    for folder in PROGRAM_FOLDERS:
        found = resolve_below(Path(root), f"{folder}/{name}")
        if found is not None and _is_program(found):
            return str(found)
    return None


def inside(root: str, path: str) -> str:
    """The path as a process with the root ``root`` sees it."""
    return "/" + os.path.relpath(path, root)


def has_shell(root: str) -> bool:
    """Whether ``root`` is a whole system in which programs can run, not just a folder with the driver's files."""
    found = resolve_below(Path(root), "bin/sh")
    return found is not None and _is_program(found)


def search_path(root: str) -> str:
    """``PATH`` with the root's folders first, so that the driver's programs find each other."""
    if is_own(root):
        return OWN_PATH
    return ":".join([*(str(Path(root) / folder) for folder in PROGRAM_FOLDERS), OWN_PATH])


def library_folder(root: str) -> str | None:
    """The folder with ``libcuda.so.1`` below ``root``, or None."""
    for folder in LIBRARY_FOLDERS:
        if (Path(root) / folder / _LIBCUDA).is_symlink() or (Path(root) / folder / _LIBCUDA).is_file():
            return str(Path(root) / folder)
    return None


def is_own(root: str) -> bool:
    """Whether the root is this process' own."""
    return root in ("", "/")


def _is_program(path: Path) -> bool:
    try:
        return stat.S_ISREG(path.lstat().st_mode) and os.access(path, os.X_OK)
    except OSError:
        return False
