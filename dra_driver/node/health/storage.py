"""Read, merge and write the file with the health of a node's GPUs, which two node processes share in a rolling update.

Another version or a damaged disk may have written the JSON: everything is checked and bounded, and unknown fields are
dropped. Format 1 only grows. Each process merges its faults with the file under a lock on a separate file, and replaces
the file atomically, mode 0600. It is not synced: a power failure reboots the node, which clears most faults.

Each process misses events before its start. For each fault the later news wins: detection or recovery; at the
same time, detection. A fault that only one process has stays, because faults are never removed to end them. The merge
is commutative and idempotent.
"""

import json
import logging
import os
from math import inf, nextafter
from pathlib import Path
from typing import Final

import msgspec
from msgspec.structs import asdict, replace

from dra_driver.core.convert import convert
from dra_driver.core.errors import ConfigurationError, StorageError
from dra_driver.core.files import lock_file, remove_unfinished, replace_file
from dra_driver.core.model.health import HealthCause
from dra_driver.core.model.ids import GpuUuid
from dra_driver.node.health.fault import (
    MOST_DETAIL,
    MOST_DOUBLINGS,
    MOST_GPUS,
    MOST_TIME,
    RANK,
    FaultKey,
    FaultPhase,
    Faults,
    HealthFault,
    HealthRecord,
    Id,
    trimmed,
)

log = logging.getLogger(__name__)

FORMAT: Final = 1
MOST_FAULTS: Final = 1024
"""Faults of one GPU in a file."""
MAX_BYTES: Final = 8 * 1024 * 1024

_LOCK_S: Final = 0.5
"""A process holds the lock while it writes some kilobytes."""


class HealthFile:
    """Not thread-safe: the caller calls one method at a time."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._seen: tuple[int, ...] | None = None

    def read(self) -> HealthRecord | None:
        """The saved record; None without a usable one. A damaged file is moved aside. Never raises."""
        self._seen = self._mark()
        try:
            with self._path.open("rb") as file:
                return decode(file.read(MAX_BYTES + 1))
        except FileNotFoundError:
            return None
        except OSError as error:
            log.warning("cannot read the saved health of GPUs", extra={"path": self._path, "reason": error.strerror})
        except ConfigurationError as error:
            self._move_aside(str(error))
        return None

    def exchange(self, own: HealthRecord, *, clock: float, wall: float) -> HealthRecord:
        """Merge ``own`` into the file; return the merged record. Raises StorageError; the file is then unchanged.

        ``clock`` and ``wall`` are the current times; later times in the file are limited to them.
        """
        try:
            lock = lock_file(self._path.with_suffix(".lock"), timeout_s=_LOCK_S)
            try:
                saved = self.read()
                found = own if saved is None else merged_records(own, until(saved, clock, wall))
                if found != saved:
                    remove_unfinished(self._path)
                    replace_file(self._path, encode(found))
                self._seen = self._mark()
            finally:
                os.close(lock)
        except BlockingIOError as error:
            raise StorageError(
                f"{self._path} is locked by another process for {_LOCK_S:g} s", reason="Locked"
            ) from error
        except OSError as error:
            raise StorageError(f"{self._path} cannot be written: {error.strerror}", reason="NotWritten") from error
        return found

    def changed(self) -> bool:
        """Return whether another process wrote the file since this one read or wrote it."""
        return self._mark() != self._seen

    def _mark(self) -> tuple[int, ...] | None:
        try:
            found = self._path.stat()
        except OSError:
            return None
        return (found.st_ino, found.st_size, found.st_mtime_ns)

    def _move_aside(self, reason: str) -> None:
        """Keep one damaged file for a later inspection."""
        aside = self._path.with_name(f"{self._path.name}.damaged")
        log.warning(
            "cannot use the saved health of GPUs; starting from scratch",
            extra={"path": self._path, "reason": reason, "kept": aside},
        )
        try:
            self._path.replace(aside)
        except OSError as error:
            log.warning("cannot move a damaged file aside", extra={"path": self._path, "reason": error.strerror})


class _Written(HealthFault, frozen=True, kw_only=True, omit_defaults=True):
    cause: HealthCause
    gi: Id | None = None
    xid: Id = 0


def encode(record: HealthRecord) -> bytes:
    gpus = {
        gpu: [
            _Written(cause=key.cause, gi=key.gi_id, xid=key.xid, **asdict(fault))
            for key, fault in sorted(faults.items(), key=lambda item: str(item[0]))
        ]
        for gpu, faults in sorted(record.gpus.items())
        if faults
    }
    written = {"format": FORMAT, "bootID": record.boot_id, "gpus": gpus, "forgotten": dict(record.forgotten)}
    return msgspec.json.encode(written)


def decode(data: bytes) -> HealthRecord:
    """The record, without invalid faults. Raises ConfigurationError for other content."""
    if len(data) > MAX_BYTES:
        raise ConfigurationError(f"larger than {MAX_BYTES // 2**20} MiB")
    try:
        written = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise ConfigurationError(f"it is not JSON: {error}") from error
    if not isinstance(written, dict) or written.get("format") != FORMAT or not isinstance(written.get("gpus"), dict):
        raise ConfigurationError(f"it does not have health of format {FORMAT}")
    gpus = {GpuUuid(str(gpu)): _faults(faults) for gpu, faults in list(written["gpus"].items())[:MOST_GPUS]}
    forgotten = written.get("forgotten")
    times = forgotten.items() if isinstance(forgotten, dict) else ()
    return HealthRecord(
        boot_id=str(written.get("bootID") or "")[:64],
        gpus={gpu: faults for gpu, faults in gpus.items() if faults},
        forgotten={
            GpuUuid(str(gpu)): time
            for gpu, time in list(times)[:MOST_GPUS]
            if isinstance(time, int | float) and not isinstance(time, bool) and 0 <= time < MOST_TIME
        },
    )


def _faults(written: object) -> Faults:
    items = written[:MOST_FAULTS] if isinstance(written, list) else ()
    return dict(read for item in items if isinstance(item, dict) and (read := _fault(item)) is not None)


def _fault(item: dict[str, object]) -> tuple[FaultKey, HealthFault] | None:
    """The fault, or None if it is damaged or of a later version; a null field is absent."""
    try:
        read = convert({name: value for name, value in item.items() if value is not None}, _Written)
    except ValueError:
        return None
    if (read.ended is not None and read.recovered is None) or (read.cause is HealthCause.XID and not read.xid):
        return None
    fields = {name: getattr(read, name) for name in HealthFault.__struct_fields__}
    fields |= {"detail": read.detail[:MOST_DETAIL], "evidence": read.evidence[:MOST_DETAIL]}
    fields["repeats"] = min(read.repeats, MOST_DOUBLINGS)
    return FaultKey(read.gi, read.cause, read.xid), HealthFault(**fields)


def merged_records(own: HealthRecord, other: HealthRecord) -> HealthRecord:
    """All faults of two records of one boot; ``own`` if ``other`` is of another boot."""
    if not same_boot(own.boot_id, other.boot_id):
        return own
    both = (*own.forgotten, *other.forgotten)
    forgotten = {gpu: max(own.forgotten.get(gpu, 0.0), other.forgotten.get(gpu, 0.0)) for gpu in both}
    gpus = {gpu: merged(own.gpus.get(gpu, {}), other.gpus.get(gpu, {})) for gpu in (*own.gpus, *other.gpus)}
    never = float("-inf")  # keep all faults of a GPU that was not dropped
    kept = {
        gpu: {key: fault for key, fault in faults.items() if _news(fault)[0] > forgotten.get(gpu, never)}
        for gpu, faults in list(gpus.items())[:MOST_GPUS]
    }
    return HealthRecord(
        boot_id=own.boot_id, gpus={gpu: faults for gpu, faults in kept.items() if faults}, forgotten=forgotten
    )


def until(record: HealthRecord, clock: float, wall: float) -> HealthRecord:
    """The record with no time after now, even after a clock change: such a time would last for years. A fault is
    still detected before it recovers."""
    gpus = {
        gpu: {key: _until(fault, clock, wall) for key, fault in known.items()} for gpu, known in record.gpus.items()
    }
    return replace(record, gpus=gpus, forgotten={gpu: min(time, clock) for gpu, time in record.forgotten.items()})


def _until(fault: HealthFault, clock: float, wall: float) -> HealthFault:
    seen, recovered = min(fault.seen, clock), fault.recovered
    return replace(
        fault,
        since=min(fault.since, wall),
        opened=min(fault.opened, clock),
        seen=seen,
        recovered=None if recovered is None else min(recovered, max(clock, nextafter(seen, inf))),
        ended=None if fault.ended is None else min(fault.ended, clock),
    )


def same_boot(first: str, second: str) -> bool:
    """Return whether two boot ids are of the same boot; an unreadable one counts as the same."""
    return first == second or not first or not second


def merged(first: Faults, second: Faults) -> Faults:
    both = {key: _newer(fault, second[key]) for key, fault in first.items() if key in second}
    return trimmed({**first, **second, **both})


def _newer(first: HealthFault, second: HealthFault) -> HealthFault:
    if first.phase is second.phase is FaultPhase.OPEN:
        return _both_open(first, second)
    newer = max((first, second), key=_news)
    # Only one of the two processes may have noticed a return.
    return replace(newer, repeats=max(first.repeats, second.repeats))


def _both_open(first: HealthFault, second: HealthFault) -> HealthFault:
    """Open since the earlier moment, with the stronger severity and its time."""
    stronger = max((first, second), key=lambda fault: (RANK[fault.severity], -fault.since, fault.detail))
    return replace(
        max((first, second), key=lambda fault: (fault.seen, fault.detail)),
        severity=stronger.severity,
        since=stronger.since,
        opened=min(first.opened, second.opened),
        seen=max(first.seen, second.seen),
        repeats=max(first.repeats, second.repeats),
        passing=first.passing and second.passing,
    )


def _news(fault: HealthFault) -> tuple[float, int, float, float, float, float, int, bool, str]:
    """Sort key: the time of the last detection or recovery, then open faults first. The rest makes the order total."""
    learnt, rank = (
        (fault.seen, 2) if fault.recovered is None else (fault.recovered, 1 if fault.ended is not None else 0)
    )
    rest = (fault.ended or 0.0, fault.seen, fault.opened, fault.since, RANK[fault.severity], fault.passing)
    return (learnt, rank, *rest, fault.detail + fault.evidence)
