"""The usage exporter: wires its parts, looks again and again, and serves what it saw.

Start, in this order: telemetry, so that it reports "not ready" from the first moment; the parts; the loop in the main
thread. Between two samples it polls the file of the node process every `ASSIGNMENTS_POLL_S`, and closes NVML
immediately when a GPU is about to change or the driver is detached. Stop: the loop ends, NVML is closed, the endpoint
ends. It leaves only the findings file, which expires in the node process.
"""

import json
import logging
import signal
import threading
import time
from pathlib import Path
from typing import Final

from dra_driver import __version__
from dra_driver.config.exporter_settings import ExporterSettings
from dra_driver.config.usage_findings import FOLDER as FINDINGS
from dra_driver.config.usage_findings import LOCK
from dra_driver.core.errors import ConfigurationError
from dra_driver.core.model.usage import GpuUsage
from dra_driver.core.telemetry import exporter_metrics as metrics
from dra_driver.core.telemetry.http import ObservabilityServer
from dra_driver.hardware.gpu.simulated.backend import SimulatedBackend
from dra_driver.hardware.gpu.simulated.usage import SimulatedUsage
from dra_driver.node.exporter.node_process import AssignmentsReader, FindingsWriter, UsageBackend, UsageGpus
from dra_driver.node.exporter.observer import LookResult, Observer, Sources
from dra_driver.node.exporter.sources import LogLinks, PodResourcesReader, ProcReader
from dra_driver.node.usage.answers import document, families

log = logging.getLogger(__name__)

FOLDER: Final = "usage"
"""In the driver's directory: what node process and exporter tell each other."""
ASSIGNMENTS_POLL_S: Final = 0.25
LATE_S: Final = 120.0
"""A loop that has not moved for this time hangs, in a call of the driver: only a restart helps."""
SIMULATED_STATE: Final = "simulated-gpus.json"
SIMULATED_USAGE: Final = "simulated-usage.json"
"""Files of the node process in the driver's directory."""


class SimulatedGpus:
    """Simulated GPUs, which nothing has to close."""

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


class ExporterProcess:
    """One process. ``run`` once; ``ready``, ``live``, ``remarks`` and ``usage`` from any thread."""

    def __init__(self, settings: ExporterSettings) -> None:
        self._settings = settings
        plugin_dir = Path(settings.kubelet_plugins_dir) / settings.driver_name
        self._assignments = AssignmentsReader(plugin_dir / FOLDER)
        self._gpus = UsageGpus(choose(settings, plugin_dir), plugin_dir / FOLDER / FINDINGS / LOCK)
        self._pods = PodResourcesReader(settings.pod_resources_socket, settings.driver_name)
        self._findings = FindingsWriter(plugin_dir / FOLDER)
        sources = Sources(
            assignments=self._assignments,
            gpus=self._gpus,
            processes=ProcReader(settings.proc_dir),
            logs=LogLinks(settings.log_dir),
            pods=self._pods,
        )
        self._observer = Observer(
            sources, settings.node_name, window_s=settings.window, keep_ended_s=settings.keep_ended
        )  # fmt: skip
        self._observed: LookResult | None = None  # replaced as a whole
        self._moved_s = time.monotonic()
        self.stopping = threading.Event()

    def ready(self) -> list[str]:
        return [] if self._observed is not None else ["the first look is not over"]

    def live(self) -> list[str]:
        """Reasons why only a restart would help."""
        silent_s = time.monotonic() - self._moved_s
        return [f"the exporter has not moved for {silent_s:.0f} s"] if silent_s > LATE_S else []

    def remarks(self) -> list[str]:
        """What cannot be known, one sentence each."""
        observed = self._observed
        if observed is None:
            return []
        knows = observed.joined.knows
        found = [getattr(knows, source) for source in metrics.SOURCES]
        return [*dict.fromkeys(reason for reason in found if reason is not None)]

    def usage(self) -> tuple[str, bytes]:
        """Content type and body of ``/usage``."""
        observed = self._observed
        found = (
            {"version": 1, "node": self._settings.node_name, "knows": {"driver": "the first look is not over"}}
            if observed is None
            else document(observed.joined, observed.ledger, window_s=observed.window_s)
        )
        return "application/json", json.dumps(found, separators=(",", ":")).encode() + b"\n"

    def run(self) -> None:
        """Look until ``stopping``. Raises ConfigurationError when the address cannot be used."""
        endpoint = self._serve()
        try:
            while not self.stopping.is_set():
                began = time.monotonic()
                self._step()
                self._rest(began + self._settings.interval)
        finally:
            self._gpus.close()
            self._pods.close()
            if endpoint is not None:
                endpoint.stop()

    def _step(self) -> None:
        began = time.monotonic()
        try:
            observed = self._observer.look()
            self._findings.write(observed.findings)
            self._count(observed)
            self._observed = observed
        except Exception:  # loop boundary: the next look may succeed
            log.exception("usage collection failed with an internal error")
            metrics.internal_error()
        metrics.look_seconds.observe(time.monotonic() - began)
        metrics.last_look.set(time.time())
        self._moved_s = time.monotonic()

    def _rest(self, until: float) -> None:
        """Wait until the next sample is due; poll meanwhile whether the GPUs have to be closed."""
        while (left := until - time.monotonic()) > 0 and not self.stopping.wait(min(left, ASSIGNMENTS_POLL_S)):
            self._gpus.sync(self._assignments.read())
            self._moved_s = time.monotonic()

    def _count(self, observed: LookResult) -> None:
        joined, knows = observed.joined, observed.joined.knows
        for source in metrics.SOURCES:
            reason = getattr(knows, source)
            metrics.knows.labels(source).set(reason is None)
            if reason is not None:
                metrics.errors_total.labels(source).inc()
        metrics.knows_processes.set(all(getattr(knows, each) is None for each in ("processes", "containers", "claims")))
        metrics.driver_open.set(self._gpus.is_open)
        metrics.rows_left_out.set(observed.ledger.left_out)
        metrics.usage.set(families(joined, observed.ledger, observed.judged, dcgm=self._settings.dcgm_names))

    def _serve(self) -> ObservabilityServer | None:
        metrics.initialise(__version__)
        address = self._settings.http_addr
        if not address:
            return None
        try:
            server = ObservabilityServer(
                address, self.ready, self.live, self.remarks, scrape=metrics.render, pages={"/usage": self.usage}
            )
        except (OSError, ValueError) as error:
            raise ConfigurationError(
                f"cannot listen on {address}: {error}: choose another --http-addr (HTTP_ADDR)"
            ) from error
        server.start()
        log.info("serving metrics, usage and health", extra={"port": server.port})
        return server


def run(settings: ExporterSettings) -> None:
    """Runs until SIGTERM or SIGINT. Raises ConfigurationError when it cannot start."""
    process = ExporterProcess(settings)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda _number, _frame: process.stopping.set())
    process.run()
