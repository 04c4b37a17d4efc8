"""Publish missing GPUs from their last known description, with a taint.

A GPU that falls off the bus, hangs or does not return after a reboot is not in the inventory. Its pods would never be
evicted, and its claim would keep an unpublished device. So it stays published with a taint (``health_conditions.py``):
while NVML lists it, while a claim in the journal has it, and for `KEEP_S`. A file keeps the descriptions over restarts.
A GPU from the file may only be late. For `GRACE_S` after the first poll it is not reported as lost, and new claims do
not get it.
"""

import logging
import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Final

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from dra_driver.core.convert import decode_json
from dra_driver.core.errors import DraError
from dra_driver.core.files import read_plain, replace_file
from dra_driver.core.model.gpu import Gpu, Snapshot
from dra_driver.core.model.ids import GpuUuid
from dra_driver.kube.published import limits

log = logging.getLogger(__name__)

KEEP_S: Final = 15 * 60.0
GRACE_S: Final = 20.0
"""Two health polls of the GPUs."""
VERSION: Final = 1
MAX_BYTES: Final = 4 * 2**20
MAX_GPUS: Final = 256
_MINORS: Final = range(1024)
_LATEST: Final = 4e9
"""Seconds of the Unix epoch, in 2096. A time that no calendar has would keep every slice from being published."""


class KnownGpu(Struct, frozen=True, kw_only=True, rename={"gone_since": "goneSince"}):
    """A GPU as last found. ``gone_since`` is in seconds of the Unix epoch; None while it is found."""

    gpu: Gpu
    gone_since: float | None = None


Known = Mapping[GpuUuid, KnownGpu]


class MissingGpu(Struct, frozen=True, kw_only=True):
    """A GPU that is published and not found. ``since`` is in seconds of the Unix epoch; ``awaited``: it may be late."""

    since: float
    awaited: bool = False


Missing = Mapping[GpuUuid, MissingGpu]


def plain(gpu: Gpu) -> Gpu:
    """The GPU without transient state: instances and MIG mode of this driver, and the fabric's state."""
    foreign = tuple(instance for instance in gpu.mig_instances if not instance.owned)
    enabled = gpu.mig_enabled and not gpu.mig_mode_owned
    return replace(gpu, mig_instances=foreign, mig_enabled=enabled, mig_mode_owned=False, fabric=None)


def after_look(known: Known, snapshot: Snapshot, held: Callable[[], Collection[GpuUuid]], now: float) -> Known:
    """The known GPUs after a poll at ``now``; GPUs that need no publication are dropped. ``held`` is called
    only if a GPU is missing. A clock that jumped back restarts the time."""
    found = {gpu.uuid: KnownGpu(gpu=plain(gpu)) for gpu in snapshot.gpus}
    gone = {
        uuid: replace(last, gone_since=now if last.gone_since is None else min(last.gone_since, now))
        for uuid, last in known.items()
        if uuid not in found
    }
    if not gone:
        return found
    listed = {left_out.label for left_out in snapshot.left_out}
    kept = {*listed, *held()}
    return found | {
        uuid: last for uuid, last in gone.items() if uuid in kept or now - (last.gone_since or now) < KEEP_S
    }


def with_missing(snapshot: Snapshot, missing: Iterable[Gpu], held: Collection[GpuUuid]) -> Snapshot:
    """The snapshot with GPUs that are not in it. Of two with one minor (one name), one that a claim has comes first,
    then the existing one."""
    gone = tuple(missing)
    first = tuple(gpu for gpu in gone if gpu.uuid in held)
    last = tuple(gpu for gpu in gone if gpu.uuid not in held)
    gpus = sorted((*first, *snapshot.gpus, *last), key=lambda gpu: gpu.minor)  # stable
    return replace(snapshot, gpus=tuple(gpus))


class MissingGpuTracker:
    """Thread-safe; no method raises. ``held`` returns the GPUs that claims have and can raise StorageError."""

    def __init__(
        self,
        path: Path,
        held: Callable[[], Collection[GpuUuid]],
        *,
        now: Callable[[], float] = time.time,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._path, self._held, self._now, self._clock = path, held, now, clock
        self._lock = threading.Lock()  # guards the fields below; the journal is read with it
        self._known: Known = {known.gpu.uuid: known for known in read(path)}
        # GPUs that have been missing for less than the grace period, or for an unknown time.
        gone = {uuid: last.gone_since for uuid, last in self._known.items()}
        self._awaited = frozenset(uuid for uuid, at in gone.items() if at is None or 0.0 <= now() - at < GRACE_S)
        self._awaited_since: float | None = None  # the first poll
        self._completed: tuple[Snapshot, frozenset[GpuUuid], Snapshot] | None = None
        self._unchanged: Snapshot | None = None  # the last one, when nothing is missing
        self._unwritten = False

    @property
    def missing(self) -> dict[GpuUuid, MissingGpu]:
        with self._lock:
            waits = self._awaited_since is None or self._clock() - self._awaited_since < GRACE_S
            return {
                uuid: MissingGpu(since=last.gone_since, awaited=waits and uuid in self._awaited)
                for uuid, last in self._known.items()
                if last.gone_since is not None
            }

    @property
    def remembered(self) -> Snapshot:
        with self._lock:
            return Snapshot(gpus=tuple(last.gpu for last in self._known.values()))

    def complete(self, snapshot: Snapshot) -> Snapshot:
        """The snapshot with missing GPUs that stay published. Equal results for one snapshot are the same object."""
        with self._lock:
            if snapshot is self._unchanged:
                return snapshot
            if self._awaited_since is None:
                self._awaited_since = self._clock()
            self._awaited -= {gpu.uuid for gpu in snapshot.gpus}
            held = cache(self._held_gpus)  # read at most once
            before, self._known = self._known, after_look(self._known, snapshot, held, self._now())
            self._report(before)
            if before != self._known or self._unwritten:
                self._write()
            gone = {uuid: last.gpu for uuid, last in self._known.items() if last.gone_since is not None}
            self._unchanged = None if gone or self._unwritten else snapshot
            if not gone:
                return snapshot
            mine = frozenset(gone.keys() & set(held()))
            if self._completed is None or self._completed[0] is not snapshot or self._completed[1] != mine:
                self._completed = (snapshot, mine, with_missing(snapshot, gone.values(), mine))
            return self._completed[2]

    def with_missing(self, snapshot: Snapshot) -> Snapshot:
        """The snapshot with the GPUs that are missing now; records nothing."""
        here = {gpu.uuid for gpu in snapshot.gpus}
        with self._lock:
            known = self._known.items()
            gone = [last.gpu for uuid, last in known if last.gone_since is not None and uuid not in here]
        return with_missing(snapshot, gone, {gpu.uuid for gpu in gone}) if gone else snapshot

    def _held_gpus(self) -> Collection[GpuUuid]:
        try:
            return self._held()
        except DraError as error:
            log.warning("cannot read which GPUs claims have; missing ones stay published", extra={"reason": error})
            return self._known.keys()

    def _report(self, before: Known) -> None:
        for uuid, last in self._known.items():
            was = before.get(uuid)
            if was is not None and was.gone_since is None and last.gone_since is not None:
                log.warning("GPU is not found; it stays published with a taint", extra={"gpu": uuid})
            elif was is not None and was.gone_since is not None and last.gone_since is None:
                log.info("GPU is found again", extra={"gpu": uuid})
        for uuid in before.keys() - self._known.keys():
            log.warning("GPU is not found and no longer published", extra={"gpu": uuid})

    def _write(self) -> None:
        known = self._known.values()
        try:
            replace_file(self._path, encode(known))
        except OSError as error:
            if not self._unwritten:
                log.warning("cannot save known GPUs; missing ones will be lost on restart", extra={"reason": error})
            self._unwritten = True
        else:
            self._unwritten = False


class _Content(Struct, frozen=True, kw_only=True):
    version: int
    gpus: tuple[msgspec.Raw, ...]


def encode(known: Iterable[KnownGpu]) -> bytes:
    """The file's content: ``{"version": 1, "gpus": [{"gpu": {fields of Gpu}, "goneSince": 1763805600.0}]}``."""
    return msgspec.json.encode({"version": VERSION, "gpus": list(known)})


def read(path: Path) -> list[KnownGpu]:
    """The GPUs in the file; none if it does not exist or is damaged. A wrong entry is logged and skipped."""
    try:
        content = decode_json(read_plain(path, MAX_BYTES), _Content)
    except FileNotFoundError:
        return []
    except (OSError, ValueError, RecursionError) as error:
        log.warning("cannot read the file of known GPUs; writing it again", extra={"file": path, "reason": error})
        return []
    if content.version != VERSION:
        log.warning("the file of known GPUs has another version; it is written again", extra={"file": path})
        return []
    found = []
    for entry in content.gpus[:MAX_GPUS]:
        try:
            found.append(_checked(decode_json(entry, KnownGpu)))
        except (ValueError, RecursionError) as error:
            log.warning("skipped an invalid GPU in the file of known GPUs", extra={"file": path, "reason": error})
    return found


def _checked(found: KnownGpu) -> KnownGpu:
    if found.gpu.minor not in _MINORS or not limits.fits(found.gpu.uuid):
        raise ValueError(f"minor {found.gpu.minor} or UUID {found.gpu.uuid[:80]!r} would make a slice invalid")
    if found.gone_since is not None and not 0 <= found.gone_since <= _LATEST:
        raise ValueError(f"goneSince is {found.gone_since}, expected seconds of the Unix epoch up to {_LATEST:.0f}")
    return found
