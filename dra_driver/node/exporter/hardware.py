"""Chooses the GPUs that are read: the node's through NVML, or simulated ones."""

from pathlib import Path
from typing import Final

from dra_driver.config.exporter_settings import ExporterSettings
from dra_driver.core.model.usage import GpuUsage
from dra_driver.hardware.gpu.simulated.backend import SimulatedBackend
from dra_driver.hardware.gpu.simulated.usage import SimulatedUsage
from dra_driver.node.exporter.node_process import UsageBackend

SIMULATED_STATE: Final = "simulated-gpus.json"
SIMULATED_USAGE: Final = "simulated-usage.json"
"""Files of the node process in the driver's directory."""


class SimulatedGpus:
    def __init__(self, usage: SimulatedUsage) -> None:
        self._usage = usage

    def close(self) -> None:
        """Nothing is open."""

    def usage(self) -> tuple[GpuUsage, ...]:
        return self._usage.usage()


def choose(settings: ExporterSettings, plugin_dir: Path) -> UsageBackend:
    """The GPUs of the settings. Raises ConfigurationError for a spec that cannot be read."""
    if settings.simulate is not None:
        gpus = SimulatedBackend.from_spec(
            settings.simulate, settings.node_name, state_file=plugin_dir / SIMULATED_STATE
        )  # fmt: skip
        return SimulatedGpus(SimulatedUsage(gpus, plugin_dir / SIMULATED_USAGE, proc=Path(settings.proc_dir)))
    from dra_driver.hardware.driver_root.detect import Detector  # noqa: PLC0415 - simulated GPUs do not need it
    from dra_driver.hardware.gpu.nvml.usage import NvmlUsage  # noqa: PLC0415 - same

    root = settings.driver_root
    detector = Detector(settings.host_root)
    return NvmlUsage(driver_root=root if root is not None else lambda: detector.current().here("/"))
