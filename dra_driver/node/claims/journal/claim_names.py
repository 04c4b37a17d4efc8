"""A backup of the names of claims, for a journal that is lost or damaged.

``<plugin directory>/claim-names`` (0600) has a line ``<uid> <namespace>/<name> .`` for each claim in the journal, and
some of claims that are gone; a line without its last dot was cut off. A CDI file and a GPU state backup know their
claim's UID alone, and the API server finds an object by its name: with this file a rebuild reads its claims one by one,
and needs no right to list those of the whole cluster.

A line is appended when a claim is recorded, and none is removed with its claim: both would cost a new inode, which may
take a millisecond. At every start and every ten minutes the file is written anew with what is needed; an earlier
version of the driver wrote none. Best effort: a name that cannot be written fails no claim. Not synced: after a power
cut no container runs.
"""

import logging
import os
from collections.abc import Callable, Collection, Iterable
from pathlib import Path
from typing import Final

from dra_driver.core.files import remove_unfinished, replace_file
from dra_driver.core.model.claim import ClaimRef
from dra_driver.core.model.ids import ClaimUid
from dra_driver.node.claims.journal import values

log = logging.getLogger(__name__)

FILE: Final = "claim-names"
"""The file beside the journal."""
MAX_FILE: Final = 16 * 2**20
"""A line has up to 383 bytes, and ten minutes have some thousands of them."""


_END: Final = " ."


class ClaimNames:
    """The names in one file. Call `add` and `keep` inside of a transaction of the journal, one at a time."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def add(self, ref: ClaimRef) -> None:
        # A line begins with its own newline: the one before it may lack its end.
        self._attempt(lambda: _append(self._path, b"\n" + _lines([ref])))

    def find(self, uids: Collection[ClaimUid]) -> dict[ClaimUid, ClaimRef]:
        found = (ref for line in _read(self._path).split(b"\n") if (ref := _parse(line)) is not None)
        return {ref.uid: ref for ref in found if ref.uid in uids}

    def keep(self, claims: Iterable[ClaimRef], others: Collection[ClaimUid]) -> None:
        """Record these claims, and those of ``others`` whose names are recorded; forget all others."""
        wanted = self.find(others) | {ref.uid: ref for ref in claims}
        data = _lines(wanted[uid] for uid in sorted(wanted))
        if _read(self._path) != data:
            self._attempt(lambda: replace_file(self._path, data))
        self._attempt(lambda: remove_unfinished(self._path))

    def _attempt(self, change: Callable[[], object]) -> None:
        try:
            change()
        except OSError as error:
            log.warning("names of claims not written; will retry", extra={"path": self._path, "reason": str(error)})


def _lines(claims: Iterable[ClaimRef]) -> bytes:
    return b"".join(
        f"{ref.uid} {ref.namespace}/{ref.name}{_END}\n".encode() for ref in claims if values.is_uid(ref.uid)
    )


def _parse(line: bytes) -> ClaimRef | None:
    """None for a line that `_lines` never wrote; what is no name of Kubernetes is found when the claim is read."""
    text = line.decode("ascii", "replace")
    uid, _, full_name = text.removesuffix(_END).partition(" ")
    namespace, _, name = full_name.partition("/")
    is_whole = text.endswith(_END) and values.is_uid(uid) and name
    return ClaimRef(namespace=namespace, name=name, uid=ClaimUid(uid)) if is_whole else None


def _append(path: Path, data: bytes) -> None:
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    descriptor = os.open(path, flags, 0o600)
    try:
        os.write(descriptor, data)
    finally:
        os.close(descriptor)


def _read(path: Path) -> bytes:
    """The content of a file, b"" when it cannot be read; follows no link and does not wait for a FIFO."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        with open(descriptor, "rb") as file:  # noqa: PTH123 - a descriptor, not a path
            return file.read(MAX_FILE)
    except OSError:
        return b""
