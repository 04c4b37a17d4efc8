"""Which GPUs this process serves.

Owns the choice between NVML and simulated GPUs, and where the files of either are. Refuses to know what is done with
them (``follower.py``).
"""

from dataclasses import dataclass
from pathlib import Path

from dra_driver.cdi.root import DriverRoot
from dra_driver.config.settings import NodeSettings
from dra_driver.errors import ConfigurationError, StorageError
from dra_driver.gpu.backend import Backend

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
