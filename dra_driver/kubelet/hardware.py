"""Which GPUs this process serves, and keeping CDI and slices in step with them.

Owns the choice between NVML and simulated GPUs, and what happens when the inventory changes: driver files first, slices
after, so that no device is offered before a prepare could hand it out. Refuses to know sockets and claims.
"""

import logging
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from dra_driver.cdi.root import DriverRoot
from dra_driver.config.settings import NodeSettings
from dra_driver.errors import ConfigurationError, DraError, StorageError
from dra_driver.gpu.backend import Backend
from dra_driver.model.gpu import Snapshot
from dra_driver.telemetry import metrics

log = logging.getLogger(__name__)

SIMULATED_ROOT = "simulated-root"


@dataclass(frozen=True, slots=True, kw_only=True)
class Hardware:
    """A source of snapshots and the files that belong to it. ``simulated_root`` is None with real GPUs."""

    backend: Backend
    root: DriverRoot
    proc_devices: str
    simulated_root: Path | None = None


def choose(settings: NodeSettings, plugin_dir: Path) -> Hardware:
    """What ``settings`` ask for. Raises ConfigurationError for a spec that cannot be read, and when the simulated GPUs'
    driver root cannot be written.

    Imports only what is used: NVML's bindings or the catalogue of models.
    """
    if settings.simulate is not None:
        return _simulated(settings.simulate, settings.node_name, plugin_dir / SIMULATED_ROOT)
    from dra_driver.gpu.nvml import NvmlBackend  # noqa: PLC0415 - 6 MB that simulated GPUs do not need

    return Hardware(
        backend=NvmlBackend(driver_root=settings.driver_root),
        root=DriverRoot.locate(
            settings.driver_root,
            host_root=settings.driver_root_on_host or "",
            dev_root=settings.dev_root or "",
            host_dev_root=settings.dev_root_on_host or "",
        ),
        proc_devices=settings.proc_devices,
    )


def _simulated(spec: str, node_name: str, folder: Path) -> Hardware:
    """Simulated GPUs with a driver root below the driver's own directory, which host and container see alike."""
    from dra_driver.gpu import simulated_root  # noqa: PLC0415
    from dra_driver.gpu.simulated import SimulatedBackend  # noqa: PLC0415

    backend = SimulatedBackend.from_spec(spec, node_name)
    try:
        simulated_root.write(folder, backend.snapshot())
    except StorageError as error:
        raise ConfigurationError(f"cannot start without a driver root: {error}") from error
    return Hardware(
        backend=backend,
        root=DriverRoot(root=str(folder), dev_root=str(folder)),
        proc_devices=str(folder / "proc" / "devices"),
        simulated_root=folder,
    )


class DriverFiles(Protocol):
    """The part of ``cdi.provider.CdiProvider`` that is needed here."""

    def refresh(self) -> bool: ...


class SnapshotSink(Protocol):
    """The part of ``slices.publisher.Publisher`` that is needed here."""

    def set_snapshot(self, snapshot: Snapshot) -> None: ...


class Follower:
    """Carries each new snapshot to the driver files and the slices. ``changed`` and ``retry`` from any thread.

    Devices are offered first when the driver's files are known: until then pods are better placed on other nodes. Files
    that go missing later do not take devices back, because that would not help pods which hold them.
    """

    def __init__(self, files: DriverFiles, slices: SnapshotSink, simulated_root: Path | None) -> None:
        self._files = files
        self._slices = slices
        self._simulated_root = simulated_root
        self._lock = threading.Lock()  # one snapshot at a time goes through; guards the fields below
        self._newest: Snapshot | None = None
        self._offering = False
        self._problem: str | None = "the driver's files have not been looked for yet"

    @property
    def problem(self) -> str | None:
        """Why containers could not get a GPU, None while the driver's files are known and the base document written."""
        return self._problem

    def changed(self, snapshot: Snapshot) -> None:
        """A callback of the inventory, whose thread it uses."""
        metrics.gpus.labels("usable").set(len(snapshot.gpus))
        metrics.gpus.labels("left-out").set(len(snapshot.left_out))
        with self._lock:
            self._newest = snapshot
            self._carry(snapshot)

    def retry(self) -> None:
        """Tries again what failed last; does nothing otherwise."""
        with self._lock:
            if self._newest is not None and self._problem is not None:
                self._carry(self._newest)

    def _carry(self, snapshot: Snapshot) -> None:
        try:
            self._refresh_files(snapshot)
        except DraError as error:
            if str(error) != self._problem:
                log.warning("containers cannot get a GPU", extra={"reason": error})
            self._problem = str(error)
        else:
            self._problem = None
            self._offering = True
        if self._offering:
            self._slices.set_snapshot(snapshot)

    def _refresh_files(self, snapshot: Snapshot) -> None:
        if self._simulated_root is not None and snapshot.driver_version is not None:
            from dra_driver.gpu import simulated_root  # noqa: PLC0415 - only with simulated GPUs

            simulated_root.write(self._simulated_root, snapshot)
        self._files.refresh()
