"""Find the programs of the NVIDIA driver below its root, and the search paths that they need when it is not ``/``."""

import os
from pathlib import Path
from typing import Final

from dra_driver.hardware.driver_root.folders import PROGRAM_FOLDERS
from dra_driver.hardware.driver_root.root import resolve
from dra_driver.hardware.driver_root.search import CUDA, find_library, find_program

__all__ = [
    "OWN_PATH",
    "PROGRAM_FOLDERS",
    "find_program",
    "has_shell",
    "inside",
    "is_own",
    "library_folder",
    "search_path",
]

OWN_PATH: Final = "/usr/sbin:/usr/bin:/sbin:/bin"


def inside(root: str, path: str) -> str:
    """The path as a process with the root ``root`` sees it."""
    return "/" + os.path.relpath(path, root)


def has_shell(root: str) -> bool:
    """Whether ``root`` is a whole system in which programs can run, not just a folder with the driver's files."""
    try:
        found = resolve(root.rstrip("/"), "/bin/sh")
    except OSError:
        return False
    path = root.rstrip("/") + found if found else ""
    return Path(path).is_file() and os.access(path, os.X_OK) if found else False


def search_path(root: str) -> str:
    """``PATH`` with the root's folders first, so that the driver's programs find each other."""
    if is_own(root):
        return OWN_PATH
    return ":".join([*(root.rstrip("/") + folder for folder in PROGRAM_FOLDERS), OWN_PATH])


def library_folder(root: str) -> str | None:
    """The folder with the file of ``libcuda.so.1`` below ``root``, or None."""
    found = find_library(root, CUDA)
    return None if found is None else os.path.dirname(found)  # noqa: PTH120 - the path is a string throughout


def is_own(root: str) -> bool:
    """Whether the root is this process' own."""
    return root in ("", "/")
