"""Writes ``assignments.json`` for the usage exporter: prepared claims with their devices, and GPUs to close.

A separate thread writes the file (0600, by rename) when its content changed; no call of the kubelet waits for it. The
exporter has its own reader (``node/usage/assignments.py``), so the two may be of different versions.
"""

import logging
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Final

import msgspec
from msgspec import Struct

from dra_driver.config.settings import NodeSettings
from dra_driver.config.usage_findings import FOLDER as FINDINGS
from dra_driver.core.errors import DraError
from dra_driver.core.files import replace_file
from dra_driver.core.model.gpu import Snapshot
from dra_driver.core.model.ids import DeviceName, GpuUuid
from dra_driver.core.model.terms import Terms, terms_of
from dra_driver.core.model.usage_rules import UsageRules
from dra_driver.core.telemetry import metrics
from dra_driver.core.text import printable
from dra_driver.core.time import rfc3339
from dra_driver.core.worker import Worker
from dra_driver.node.claims import AssignedDevice, Entry
from dra_driver.node.process.gpu_changes import GpuChangeTracker

log = logging.getLogger(__name__)

FOLDER: Final = "usage"
"""In the driver's directory: the files that node process and usage exporter exchange."""
FILE: Final = "assignments.json"
THREAD_NAME: Final = "assignments"
VERSION: Final = 1
PAUSE_S: Final = 0.2
"""Changes of claims within this time are written together; reading the journal takes time that prepares need."""
CHECK_S: Final = 60.0
"""Should a change have been missed."""
RETRY_S: Final = 5.0
Json = dict[str, object]


class ReportedGpu(Struct, frozen=True, kw_only=True):
    """A GPU of the node and what its policy says of its use."""

    device: DeviceName
    gpu_uuid: GpuUuid
    model: str | None
    rules: UsageRules


def header(settings: NodeSettings, started: float | None = None) -> Json:
    """The constant fields. ``started`` is when this process started, in seconds of the Unix epoch; None for now."""
    return {
        "version": VERSION,
        "node": settings.node_name,
        "driver": settings.driver_name,
        "processStarted": rfc3339(time.time() if started is None else started),
    }


def reported_gpus(snapshot: Snapshot, terms: Terms) -> list[ReportedGpu]:
    return [
        ReportedGpu(
            device=gpu.device_name, gpu_uuid=gpu.uuid, model=gpu.product_name, rules=terms_of(terms, gpu.uuid).usage
        )
        for gpu in snapshot.gpus
    ]


class AssignmentsFile:
    """``worker`` runs it; wake it when a GPU, a policy or the detach changed. ``claims_changed`` from any thread.

    ``folder`` is the directory ``usage`` of the driver's directory; it is created when needed. ``entries`` are the
    journal's and may raise StorageError; ``detached`` is why the driver must not be open, None while it may.
    """

    def __init__(
        self,
        folder: Path,
        header: Json,
        *,
        entries: Callable[[], Iterable[Entry]],
        gpus: Callable[[], Sequence[ReportedGpu]],
        detached: Callable[[], str | None],
        changes: GpuChangeTracker,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._folder, self._header, self._changes, self._clock = folder, header, changes, clock
        self._entries, self._gpus, self._detached = entries, gpus, detached
        self._claims_due = threading.Event()
        self._claims: list[Json] = []
        self._read_at = self._stepped_at = float("-inf")
        self._changing: frozenset[GpuUuid] = frozenset()
        self._written = b""
        self.worker = Worker(
            THREAD_NAME,
            self._turn,
            on_error=partial(metrics.internal_error, "assignments"),
            after_error_s=RETRY_S,
        )

    def claims_changed(self) -> None:
        self._claims_due.set()
        self.worker.wake()

    def step(self) -> float:
        """Write what changed; return the seconds until the next step. The thread calls it, also when it is woken."""
        self._stepped_at = now = self._clock()
        try:
            if self._claims_due.is_set() or now - self._read_at >= CHECK_S:
                self._claims_due.clear()  # before the read: a change during it counts
                self._claims = claims_of(self._entries())
                self._read_at = now
            self._write()
        except DraError as error:
            self._claims_due.set()
            log.warning("cannot read claims for assignments.json; will retry", extra={"reason": error})
            return RETRY_S
        except OSError as error:
            log.warning("cannot write assignments.json; will retry", extra={"reason": error, "folder": self._folder})
            return RETRY_S
        return min(CHECK_S, self._changes.next_end_s() or CHECK_S)

    def _turn(self) -> float:
        """A step, at most one in `PAUSE_S`; a change of a GPU does not wait."""
        left_s = self._stepped_at + PAUSE_S - self._clock()
        return left_s if left_s > 0 and self._changes.current() == self._changing else self.step()

    def _write(self) -> None:
        self._changing, reason = self._changes.current(), self._detached()
        document = self._header | {
            "detached": reason and printable(reason),
            "gpus": [
                {
                    "device": each.device,
                    "gpu": each.gpu_uuid,
                    "model": each.model,
                    "changing": each.gpu_uuid in self._changing,
                    "usage": each.rules,
                }
                for each in self._gpus()
            ],
            "claims": self._claims,
        }
        content = msgspec.json.encode(document) + b"\n"
        path = self._folder / FILE
        if content == self._written and path.exists():
            return
        for folder in (self._folder, self._folder / FINDINGS):  # the second one is the exporter's; for root only
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            if folder.stat().st_mode & 0o077:  # the kubelet made it, for the exporter's mount
                folder.chmod(0o700)
        replace_file(path, content)
        self._written = content


def claims_of(entries: Iterable[Entry]) -> list[Json]:
    """The prepared claims, sorted by UID. No I/O."""
    prepared = sorted((entry for entry in entries if entry.state == "prepared"), key=lambda entry: entry.ref.uid)
    return [
        {
            "uid": entry.ref.uid,
            "namespace": entry.ref.namespace,
            "name": entry.ref.name,
            "prepared": rfc3339(entry.changed_at),
            "devices": [_device(each) for each in entry.devices],
        }
        for entry in prepared
    ]


def _device(device: AssignedDevice) -> Json:
    live = device.partition.live if device.partition is not None else None
    share = device.sharing.share if device.sharing is not None else None
    return {
        "request": device.request,
        "pool": device.pool,
        "device": device.device,
        "form": device.form.value,
        "gpu": device.gpu_uuid,
        "giId": live.gi_id if live is not None else None,
        "uuid": device.gpu_uuid if device.partition is None else live.uuid if live is not None else None,
        "profile": device.partition.profile_name if device.partition is not None else None,
        "shareId": device.share_id,
        "memoryBytes": share.memory if share is not None else None,
        "percent": share.percent if share is not None else None,
        "adminAccess": device.admin_access,
    }
