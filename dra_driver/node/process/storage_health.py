"""Checks directories, free space and claims' CDI files between the kubelet's calls, for readiness.

A prepare that cannot write a file fails, and its pod waits more than a minute for the next try. A check beforehand
reports the problem to the node's owner first. The check writes nothing: a container runtime reads its CDI directory
again after every change there.

``node/claims/`` restores its own files, ``inventory_publisher.py`` the base document.
"""

import logging
import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

from msgspec import Struct

from dra_driver.core.errors import DraError
from dra_driver.hardware.cdi import FolderWatch
from dra_driver.node.process.preflight import why_not_writable

log = logging.getLogger(__name__)

# A claim's CDI file has about 10 KiB; the journal grows by pages of 4 KiB, about ten of them for a claim.
ENOUGH_BYTES = 256 * 1024
ENOUGH_FILES = 4
LOOK_S = 60.0
"""How long the watch of the CDI directory is relied on."""


class Folder(Struct, frozen=True, kw_only=True):
    """A directory in which this driver writes; ``what`` and ``setting`` name it in messages."""

    path: Path
    what: str
    setting: str


class Space(Struct, frozen=True, kw_only=True):
    """Free space of a file system; ``files`` is None where their number has no limit."""

    bytes: int
    files: int | None


def space(path: Path) -> Space:
    """How much this process may still write below ``path``. Raises OSError."""
    found = os.statvfs(path)
    blocks, files = (found.f_bfree, found.f_ffree) if os.geteuid() == 0 else (found.f_bavail, found.f_favail)
    return Space(bytes=blocks * found.f_frsize, files=files if found.f_files else None)


class Rewrite(Protocol):
    """``claims.ClaimService.rewrite_missing_files``."""

    def __call__(self, *, may_miss: bool) -> Sequence[str]: ...


class ClaimFiles:
    """Looks for missing files of claims only after a change in the CDI directory, while one is missing, and every
    `LOOK_S`: comparing them with the journal costs most of what a node at rest does. For one thread."""

    def __init__(self, cdi_dir: str, rewrite: Rewrite, clock: Callable[[], float] = time.monotonic) -> None:
        self._cdi_dir = cdi_dir
        self._watch: FolderWatch | None = None
        self._rewrite, self._clock = rewrite, clock
        self._look_at = float("-inf")

    def bring_back(self) -> Sequence[str]:
        """Write files that are missing or outdated; sentences about those that cannot be written."""
        due = self._clock() >= self._look_at or self._watch is None or not self._watch.is_quiet()
        if due:
            self._look_at = float("-inf")  # until this look has succeeded
            self._watch = FolderWatch([self._cdi_dir], [self._cdi_dir])  # perhaps of another directory than before
            self._watch.arm()
        missing = self._rewrite(may_miss=due)
        if due and not missing:
            self._look_at = self._clock() + LOOK_S
        return missing


class StorageHealth:
    """Call ``check`` from one thread, every few seconds; ``problem`` from any."""

    def __init__(
        self,
        folders: Sequence[Folder],
        bring_back: Callable[[], Sequence[str]],
        space: Callable[[Path], Space] = space,
    ) -> None:
        """``bring_back`` writes missing files of claims and returns sentences about those that stay missing."""
        self._folders = folders
        self._bring_back = bring_back
        self._space = space
        self._problem: str | None = None

    @property
    def problem(self) -> str | None:
        """Why claims cannot be prepared or running containers cannot restart; None while there is no reason."""
        return self._problem

    def check(self) -> None:
        """Checks once and restores missing files. Never raises a DraError or OSError."""
        try:
            problems = [*self._bring_back()]
        except DraError as error:
            problems = [str(error)]
        for folder in self._folders:
            problems += [why_not_writable(folder.path, folder.what, folder.setting) or self._why_full(folder) or ""]
        problem = "; ".join(filter(None, problems)) or None
        if problem != self._problem:
            if problem:
                log.error("driver files are missing or cannot be written", extra={"reason": problem})
            else:
                log.info("driver files can be written again")
        self._problem = problem

    def _why_full(self, folder: Folder) -> str | None:
        try:
            left = self._space(folder.path)
        except OSError as error:
            return f"{folder.what} {folder.path} cannot be checked: {error.strerror}; see {folder.setting}"
        if left.bytes < ENOUGH_BYTES:
            free_kib = left.bytes // 1024
            return f"{folder.what} {folder.path} is on a full file system ({free_kib} KiB free): free space there"
        if left.files is not None and left.files < ENOUGH_FILES:
            return f"{folder.what} {folder.path} is on a file system without free inodes: remove files there"
        return None
