"""Write and remove this driver's CDI files and the metadata files beside them."""

import logging
import time
from collections.abc import Callable, Collection, Mapping

import msgspec

from dra_driver.core.errors import InvalidSpecError, StorageError
from dra_driver.core.model.ids import ClaimUid
from dra_driver.hardware.cdi.folder import FileIdentity, Files, OwnedFolder
from dra_driver.hardware.cdi.names import CdiNames
from dra_driver.hardware.cdi.spec import CdiSpec, validate

log = logging.getLogger(__name__)

MAX_METADATA_BYTES = 1 << 20
"""Twice the two versions of 32 devices with 32 attributes of the longest names and values."""


def render(spec: CdiSpec, source: str) -> bytes:
    """The file's bytes: indented JSON with a final newline. Raises `InvalidSpecError` naming ``source``."""
    validate(spec, source)
    # Not json.dumps: with an indent it encodes in Python, which takes nearly three times as long.
    return msgspec.json.format(msgspec.json.encode(spec.to_wire()), indent=1) + b"\n"


class CdiWriter:
    """Writes and removes this driver's files in one CDI directory, and the metadata files of claims in
    ``metadata_dir``. Thread-safe without a lock, also between processes: the later of two renames wins. Methods raise
    `StorageError` and can be repeated."""

    def __init__(
        self,
        directory: str,
        names: CdiNames,
        *,
        metadata_dir: str | None = None,
        files: Files | None = None,
        now: Callable[[], float] = time.time,
    ) -> None:
        self._names = names
        self._files = files or Files()
        self._cdi = OwnedFolder(directory, "CDI file", names.temporary_prefix, self._files)
        self._metadata = OwnedFolder(metadata_dir or "", "metadata file", names.temporary_prefix, self._files)
        self._has_metadata = metadata_dir is not None
        self._now = now
        # The base document is compared in every prepare and seldom changes, so its bytes are cached, and the identity
        # of the file that had them. A tuple, so that threads see what belongs together.
        self._rendered_base: tuple[CdiSpec, bytes, FileIdentity | None] | None = None

    @property
    def directory(self) -> str:
        return self._cdi.path

    def write_base(self, spec: CdiSpec) -> bool:
        """Write ``spec`` to the base file, durably; False when it is equal. An unchanged file is not read again."""
        name, kept = self._names.base_file_name, self._rendered_base
        if kept is None or kept[0] is not spec:
            kept = (spec, self._render(spec, name, self._names.device_kind), None)
        seen = self._files.identity(self._path(name))  # before the file is read
        if seen is not None and seen == kept[2]:
            return False
        changed = self._cdi.put(name, kept[1], durable=True)
        self._rendered_base = (spec, kept[1], None if changed else seen)
        return changed

    def write_claim(self, uid: str, spec: CdiSpec) -> bool:
        """Write ``spec`` to the claim's file; False when it is equal already. A crash leaves the old file and at most a
        temporary one. Not synced: a power cut changes the boot id, so the journal drops the claim
        (docs/decisions/0008). Raises `ClaimError` unless ``uid`` is a UID, `InvalidSpecError` for a document that would
        not load; nothing is touched then."""
        name = self._names.claim_file_name(uid)
        return self._cdi.put(name, self._render(spec, name, self._names.claim_kind))

    def write_metadata(self, uid: str, files: Mapping[str, bytes]) -> None:
        """Write the claim's metadata files, by base request, unless they are equal. Follows no link. Not synced, as
        `write_claim`. Raises `ClaimError` unless ``uid`` is a UID."""
        for request, data in files.items():
            self._metadata.put(self._names.metadata_file_name(uid, request), data, plain=True)

    def metadata(self, uid: str, request: str) -> bytes | None:
        """The content of a metadata file; None without one."""
        if not self._has_metadata or self._metadata.is_link:
            return None
        return self._files.read(self.metadata_path(uid, request), MAX_METADATA_BYTES)

    def metadata_path(self, uid: str, request: str) -> str:
        """Path of the claim's metadata file for a base request. Raises `ClaimError`."""
        return self._metadata.path_of(self._names.metadata_file_name(uid, request))

    def remove_claim(self, uid: str) -> bool:
        """Remove the claim's files; False without a CDI file. Not synced: a file that reappears is an orphan. Raises
        `ClaimError`. A metadata file that cannot be removed is logged, because no container can see it any more."""
        removed = self._cdi.remove(self._names.claim_file_name(uid))
        self._remove_metadata(self._names.is_metadata_of(uid))
        return removed

    def claim_uids(self) -> frozenset[ClaimUid]:
        return frozenset(uid for name in self._cdi.list() if (uid := self._names.uid_of(name)) is not None)

    def remove_orphans(self, keep: Collection[str]) -> tuple[ClaimUid, ...]:
        """Remove claim files whose claim is not in ``keep``, and temporary files older than `STALE_AFTER_S`; returns
        the removed claims. Other programs' files are never touched."""
        kept = frozenset(keep)
        orphans = sorted(uid for uid in self.claim_uids() if uid not in kept)
        removed = tuple(uid for uid in orphans if self.remove_claim(uid))
        if removed:
            log.info("orphaned CDI files removed", extra={"count": len(removed), "directory": self._cdi.path})
        self._cdi.remove_stale(self._names.is_temporary, self._now())
        self._remove_metadata(
            lambda name: (uid := self._names.metadata_uid_of(name)) is not None and uid not in kept, stale=True
        )
        return removed

    def _remove_metadata(self, is_unused: Callable[[str], bool], *, stale: bool = False) -> None:
        """Remove the metadata files with these names; with ``stale`` old temporary files too."""
        if not self._has_metadata or self._metadata.is_link:
            return
        try:
            for name in self._metadata.list():
                if is_unused(name):
                    self._metadata.remove(name)
            if stale:
                self._metadata.remove_stale(self._names.is_temporary, self._now())
        except StorageError as error:
            log.warning("cannot remove metadata files; the next start retries", extra={"reason": str(error)})

    def _render(self, spec: CdiSpec, name: str, kind: str) -> bytes:
        if spec.kind != kind:
            raise InvalidSpecError(f"CDI document {self._path(name)} would be of kind {spec.kind!r}, expected {kind!r}")
        return render(spec, self._path(name))

    def _path(self, name: str) -> str:
        return self._cdi.path_of(name)
