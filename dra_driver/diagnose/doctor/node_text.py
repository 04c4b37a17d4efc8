"""Reads small files of ``/proc`` and ``/sys``, and names what went wrong."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Final

MAX_BYTES: Final = 1 << 20
_SHOWN: Final = 4


def text(path: str) -> str | None:
    """The file's text, at most a MiB of it, without white space at its ends; None when it cannot be read."""
    try:
        with Path(path).open("rb") as file:
            return file.read(MAX_BYTES).decode("utf-8", "replace").strip("\0\n ")
    except OSError:
        return None


def names(folder: str) -> list[str] | None:
    """The sorted names in a folder; None when it cannot be read."""
    try:
        return sorted(os.listdir(folder))  # noqa: PTH208 - names
    except OSError:
        return None


def some(found: Sequence[str]) -> str:
    """The first names of a list, and how many more there are."""
    more = f" and {len(found) - _SHOWN} more" if len(found) > _SHOWN else ""
    return ", ".join(found[:_SHOWN]) + more
