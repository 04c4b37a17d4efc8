"""Tells the usage exporter which claims have which devices, and which GPUs it has to leave alone: ``assignments.json``.

A thread of its own writes the file (0600, by rename) when something changed; no call of the kubelet waits for it. The
exporter is a reader of its own (``node/usage/assignments.py``), so the two may be of different versions.
"""

import json
import logging
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Final

from msgspec import Struct

from dra_driver.config.usage_findings import FOLDER as FINDINGS
from dra_driver.config.usage_findings import LOCK
from dra_driver.core.errors import DraError
from dra_driver.core.files import replace_file
from dra_driver.core.model.ids import DeviceName, GpuUuid
from dra_driver.core.model.usage_rules import UsageRules
from dra_driver.core.telemetry import metrics
from dra_driver.node.process.changing_gpus import ChangingGpus
from dra_driver.node.process.exporter_turn import ExporterTurn

log = logging.getLogger(__name__)

FILE: Final = "assignments.json"
THREAD_NAME: Final = "assignments"
VERSION: Final = 1
PAUSE_S: Final = 0.2
"""Changes of claims within this time are written together; reading the journal takes time that prepares need."""
CHECK_S: Final = 60.0
"""Should a change have been missed."""
RETRY_S: Final = 5.0
Json = dict[str, Any]


class ToldGpu(Struct, frozen=True, kw_only=True):
    """A GPU of the node and what its policy says of its use."""

    device: DeviceName
    gpu_uuid: GpuUuid
    model: str | None
    rules: UsageRules


class AssignmentSources(Struct, frozen=True, kw_only=True):
    """Where the content comes from. ``entries`` are the journal's (``claims.entry.Entry``) and may raise StorageError;
    ``detached`` is why the driver must not be open, None while it may."""

    entries: Callable[[], Iterable[Any]]
    gpus: Callable[[], Sequence[ToldGpu]]
    detached: Callable[[], str | None]


class AssignmentsFile:
    """``start`` and ``stop`` once, by one owner; ``claims_changed`` and ``wake`` from any thread, which return at once.

    ``folder`` is the folder ``usage`` of the driver's directory; it is made at the start.
    """

    def __init__(
        self,
        folder: Path,
        header: Json,
        sources: AssignmentSources,
    ) -> None:
        self._folder, self._header, self._sources = folder, header, sources
        self._woken, self._claims_woken, self._stopping = threading.Event(), threading.Event(), threading.Event()
        self._claims: list[Json] | None = None
        self._written = b""
        self._thread = threading.Thread(target=self._run, name=THREAD_NAME, daemon=True)
        self.changing = ChangingGpus(self._woken.set, ExporterTurn(folder / FINDINGS / LOCK))

    def start(self) -> None:
        self.claims_changed()
        self._thread.start()

    def stop(self, timeout_s: float) -> None:
        """Ends the thread. The file stays: pods go on without a node process. Idempotent."""
        self._stopping.set()
        self._woken.set()
        if self._thread.is_alive():
            self._thread.join(timeout_s)

    def claims_changed(self) -> None:
        """A claim came or left."""
        self._claims_woken.set()
        self._woken.set()

    def wake(self) -> None:
        """Something other than a claim changed: a GPU, a policy, whether the driver is given up."""
        self._woken.set()

    def step(self) -> float:
        """Write what changed; returns seconds until the next look. The thread calls it, also when it is woken."""
        try:
            if self._claims_woken.is_set() or self._claims is None:
                self._claims_woken.clear()  # before the read: a change during it counts
                self._claims = claims_of(self._sources.entries())
            self._write(self._claims)
        except DraError as error:
            self._claims_woken.set()
            log.warning("the usage exporter is not told of claims", extra={"reason": error})
            return RETRY_S
        except OSError as error:
            log.warning("the usage exporter is not told of claims", extra={"reason": error, "folder": self._folder})
            return RETRY_S
        return min(CHECK_S, self.changing.calm_in_s() or CHECK_S)

    def _write(self, claims: list[Json]) -> None:
        changing = self.changing.current()
        document = self._header | {
            "detached": self._sources.detached(),
            "gpus": [_gpu(each, each.gpu_uuid in changing) for each in self._sources.gpus()],
            "claims": claims,
        }
        content = json.dumps(document, separators=(",", ":")).encode() + b"\n"
        path = self._folder / FILE
        if content == self._written and path.exists():
            return
        make_folders(self._folder)
        replace_file(path, content)
        self._written = content

    def _run(self) -> None:
        wait_s = 0.0
        while not self._stopping.is_set():
            if not self._woken.wait(wait_s):
                self._claims_woken.set()
            self._woken.clear()
            try:
                wait_s = self.step()
            except Exception:  # thread boundary: the next step may succeed
                log.exception("telling the usage exporter failed with an internal error")
                metrics.internal_error("assignments")
                wait_s = RETRY_S
            self._rest()

    def _rest(self) -> None:
        """Until `PAUSE_S` are over; a change of a GPU does not wait."""
        until = time.monotonic() + PAUSE_S
        while not self._stopping.is_set() and (left := until - time.monotonic()) > 0:
            if not self._woken.wait(left) or self.changing.current():
                return
            self._stopping.wait(max(0.0, until - time.monotonic()))


def make_folders(folder: Path) -> None:
    """The folder, and the one in it that the exporter writes: for root alone."""
    for each in (folder, folder / FINDINGS):
        each.mkdir(mode=0o700, parents=True, exist_ok=True)
        if each.stat().st_mode & 0o077:  # the kubelet made it, for the exporter's mount
            each.chmod(0o700)


def claims_of(entries: Iterable[Any]) -> list[Json]:
    """The prepared ones of ``claims.entry.Entry``, sorted by UID. Pure."""
    prepared = sorted((entry for entry in entries if entry.state == "prepared"), key=lambda entry: entry.ref.uid)
    return [
        {
            "uid": entry.ref.uid,
            "namespace": entry.ref.namespace,
            "name": entry.ref.name,
            "prepared": time_text(entry.changed_at),
            "devices": [_device(each) for each in entry.devices],
        }
        for entry in prepared
    ]


def time_text(seconds: float) -> str:
    """RFC 3339 in UTC, in whole seconds."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(seconds))


def _device(device: Any) -> Json:
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


def _gpu(gpu: ToldGpu, changing: bool) -> Json:
    rules = gpu.rules
    return {
        "device": gpu.device,
        "gpu": gpu.gpu_uuid,
        "model": gpu.model,
        "changing": changing,
        "usage": {
            "onOverGrant": rules.over_grant.value,
            "graceSeconds": rules.grace_s,
            "overheadBytesPerProcess": rules.overhead_bytes,
            "idleAfterMinutes": rules.idle_after_min,
            "onIdle": rules.idle.value,
        },
    }
