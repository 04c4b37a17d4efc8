"""The durable record of guarded operations (`gpu_operations.py`)."""

import logging
from collections.abc import Mapping
from contextlib import suppress
from enum import StrEnum
from pathlib import Path
from typing import Final, Literal

import msgspec
from msgspec import Struct, field

from dra_driver.core.convert import decode_json
from dra_driver.core.errors import StorageError
from dra_driver.core.files import read_plain, replace_file
from dra_driver.core.model.gpu_operation import Operation
from dra_driver.core.model.ids import GpuUuid

log = logging.getLogger(__name__)

FILE: Final = "gpu-operations.json"
MAX_BYTES: Final = 1024 * 1024
MAX_FINISHED: Final = 64
"""GPUs with a finished operation that are kept: a request may name any UUID."""


class Step(StrEnum):
    WAITING = "waiting"
    CHANGING = "changing"
    RESETTING = "resetting"
    VERIFYING = "verifying"
    UNDOING = "undoing"
    BLOCKED = "blocked"


class OperationRecord(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One operation, as the file has it. ``number`` is that of the request, "" for a policy's. Before it, ``old`` was
    the MIG mode, ``needed``: the NVIDIA driver asked for a reset, ``fabric``: the NVLink fabric was ready, and
    ``persistence``: persistence mode was on. ``problem`` is why it is undone or blocked."""

    operation: Operation
    number: str = ""
    by: str
    old: bool | None = None
    needed: bool = False
    fabric: bool = False
    persistence: bool = False
    step: Step = Step.WAITING
    boot_id: str = ""
    tries: int = 0
    problem: str = ""


class Finished(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The last finished operation of a GPU. ``begun``: Unix times of operations by policies."""

    number: str = ""
    begun: tuple[float, ...] = ()


class _Kept(Struct, frozen=True, kw_only=True, omit_defaults=True):
    version: Literal[1] = 1
    records: Mapping[GpuUuid, OperationRecord] = field(default_factory=dict)
    finished: Mapping[GpuUuid, Finished] = field(default_factory=dict)


class OperationsFile:
    """``gpu-operations.json`` in the driver's directory: the operations under way, and the last finished one of each
    GPU. Synced, because a step is recorded before the GPU changes. Raises StorageError."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._kept = _Kept()
        self.lost: str | None = None
        """The reason why `load` could not read earlier records; None without one."""

    def load(self) -> Mapping[GpuUuid, OperationRecord]:
        """Read the file. An unreadable file is renamed: its operations cannot continue."""
        try:
            self._kept = decode_json(read_plain(self._path, MAX_BYTES), _Kept)
        except FileNotFoundError:
            pass
        except (OSError, msgspec.MsgspecError) as error:
            aside = self._path.with_suffix(".unreadable")
            log.warning(
                "cannot read GPU operations; the file is set aside", extra={"file": self._path, "reason": error}
            )
            with suppress(OSError):
                self._path.replace(aside)
            self.lost = (
                f"the record of GPU operations cannot be read and was moved to {aside} (damaged, or of a newer "
                "version): an operation may have been interrupted. Compare MIG modes and GPUs with nvidia-smi"
            )
        return self._kept.records

    def finished(self, gpu: GpuUuid) -> Finished:
        return self._kept.finished.get(gpu, Finished())

    def save(
        self, gpu: GpuUuid, record: OperationRecord | None, finished: Finished | None = None
    ) -> Mapping[GpuUuid, OperationRecord]:
        """Write the record of a GPU, None for none, and return all records."""
        others = {other: each for other, each in self._kept.records.items() if other != gpu}
        records = others if record is None else {**others, gpu: record}
        ended = dict(self._kept.finished)
        if finished is not None:
            ended.pop(gpu, None)
            ended[gpu] = finished
            ended = dict(list(ended.items())[-MAX_FINISHED:])
        kept = _Kept(records=records, finished=ended)
        try:
            replace_file(self._path, msgspec.json.encode(kept), durable=True)
        except OSError as error:
            raise StorageError(f"cannot write {self._path}: {error.strerror}; free space on its disk") from error
        self._kept = kept
        return records
