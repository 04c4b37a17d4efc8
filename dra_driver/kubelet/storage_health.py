"""Whether this driver can keep its promises on disk, looked at while nobody asks for anything.

Owns what readiness says about directories, free space and claims' CDI files. Refuses to know what is in them: the
claims room brings its files back, ``follower.py`` the base document.

A file that cannot be written is noticed by a prepare, whose pod then waits more than a minute for its next try. Looking
beforehand tells the node's owner first. Nothing is written to find out: a container runtime reads its CDI directory
again whenever something changes there.
"""

import logging
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from dra_driver.errors import DraError
from dra_driver.kubelet.preflight import why_not_writable

log = logging.getLogger(__name__)

# A claim's CDI file has some 10 KiB; the journal grows by pages of 4 KiB, some ten of them for a claim.
ENOUGH_BYTES = 256 * 1024
ENOUGH_FILES = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Folder:
    """A directory in which this driver has to write; ``what`` and ``setting`` are for the sentence about it."""

    path: Path
    what: str
    setting: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Space:
    """What is left in a file system; ``files`` is None where their number has no limit."""

    bytes: int
    files: int | None


def space(path: Path) -> Space:
    """What this process may still write below ``path``; raises OSError."""
    found = os.statvfs(path)
    blocks, files = (found.f_bfree, found.f_ffree) if os.geteuid() == 0 else (found.f_bavail, found.f_favail)
    return Space(bytes=blocks * found.f_frsize, files=files if found.f_files else None)


class StorageHealth:
    """``check`` from one thread, every few seconds; ``problem`` from any."""

    def __init__(
        self,
        folders: Sequence[Folder],
        bring_back: Callable[[], Sequence[str]],
        space: Callable[[Path], Space] = space,
    ) -> None:
        """``bring_back`` writes claims' files that are missing and returns sentences about those that stay missing."""
        self._folders = folders
        self._bring_back = bring_back
        self._space = space
        self._problem: str | None = None

    @property
    def problem(self) -> str | None:
        """What keeps claims from being prepared or running containers from starting again; None while nothing does."""
        return self._problem

    def check(self) -> None:
        """Looks once, and brings back what is missing. Never raises for the world's faults."""
        problem = "; ".join([*self._missing(), *self._full()]) or None
        if problem != self._problem:
            if problem:
                log.error("files of this driver are missing or cannot be written", extra={"reason": problem})
            else:
                log.info("files of this driver are all right again")
        self._problem = problem

    def _missing(self) -> Sequence[str]:
        try:
            return self._bring_back()
        except DraError as error:
            return [str(error)]

    def _full(self) -> Iterator[str]:
        for folder in self._folders:
            problem = why_not_writable(folder.path, folder.what, folder.setting) or self._why_full(folder)
            if problem:
                yield problem

    def _why_full(self, folder: Folder) -> str | None:
        try:
            left = self._space(folder.path)
        except OSError as error:
            return f"{folder.what} {folder.path} cannot be looked at: {error.strerror}; see {folder.setting}"
        if left.bytes < ENOUGH_BYTES:
            free_kib = left.bytes // 1024
            return f"{folder.what} {folder.path} is on a full file system ({free_kib} KiB free): free space there"
        if left.files is not None and left.files < ENOUGH_FILES:
            return f"{folder.what} {folder.path} is on a file system without free inodes: remove files there"
        return None
