"""The usage exporter: sample all sources in a loop, and serve the last sample.

Between two samples it polls the file of the node process every `ASSIGNMENTS_POLL_S`, and closes NVML immediately when a
GPU is about to change or the driver is detached. After a stop only the findings file is left, which expires in the node
process.
"""

import json
import logging
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from msgspec import Struct

from dra_driver import __version__
from dra_driver.config.exporter_settings import ExporterSettings
from dra_driver.config.usage_findings import FOLDER as FINDINGS
from dra_driver.config.usage_findings import LOCK
from dra_driver.core.model.usage_findings import UsageFindings
from dra_driver.core.stop_signal import StopSignal
from dra_driver.core.telemetry import exporter_metrics as metrics
from dra_driver.core.telemetry.http import ObservabilityServer
from dra_driver.hardware.gpu.backend import UsageSource
from dra_driver.hardware.gpu.simulated.backend import SimulatedBackend
from dra_driver.hardware.gpu.simulated.usage import SimulatedUsage
from dra_driver.node.exporter.node_process import AssignmentsReader, FindingsWriter, UsageGpus
from dra_driver.node.exporter.sources import LogLinks, PodResourcesReader, ProcReader, since_boot_s
from dra_driver.node.usage import watchdog
from dra_driver.node.usage.answers import Judged, document, families
from dra_driver.node.usage.assignments import FOLDER
from dra_driver.node.usage.join import join
from dra_driver.node.usage.ledger import UsageLedger, fold
from dra_driver.node.usage.sources import Look, Unread
from dra_driver.node.usage.values import JoinedUsage

log = logging.getLogger(__name__)


class Sources(Struct, frozen=True, kw_only=True):
    assignments: AssignmentsReader
    gpus: UsageGpus
    processes: ProcReader
    logs: LogLinks
    pods: PodResourcesReader


class LookResult(Struct, frozen=True, kw_only=True):
    """``window_s`` is the observed part of the window."""

    joined: JoinedUsage
    ledger: UsageLedger
    judged: Judged
    findings: UsageFindings
    window_s: float


class Observer:
    """For one thread. Times are in seconds; ``clock`` does not jump, ``now`` is UTC."""

    def __init__(
        self,
        sources: Sources,
        node: str,
        *,
        window_s: float,
        keep_ended_s: float,
        clock: Callable[[], float] = time.monotonic,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._sources, self._node = sources, node
        self._window_s, self._keep_ended_s = window_s, keep_ended_s
        self._clock, self._now = clock, now
        self._last_s: float | None = None
        self._ledger = UsageLedger()
        self._watchdog: watchdog.WatchdogState = {}
        self._foreign: watchdog.ForeignState = {}
        self._idle: watchdog.IdleState = {}

    def look(self) -> LookResult:
        """One sample; takes as long as the driver, /proc and the kubelet do."""
        now_s = self._clock()
        joined = join(self._read(now_s))
        self._ledger = fold(self._ledger, joined, now_s, window_s=self._window_s, keep_ended_s=self._keep_ended_s)
        judged, findings = self._judge(joined)
        return LookResult(
            joined=joined,
            ledger=self._ledger,
            judged=judged,
            findings=findings,
            window_s=self._ledger.covered_s(now_s, self._window_s),
        )

    def _read(self, now_s: float) -> Look:
        elapsed_s = 0.0 if self._last_s is None else max(0.0, now_s - self._last_s)
        self._last_s = now_s
        assignments = self._sources.assignments.read()
        listed_s = since_boot_s()
        readings = self._sources.gpus.read(assignments)
        pids = [] if isinstance(readings, Unread) else [one.pid for each in readings for one in each.processes or ()]
        return Look(
            at=self._now(),
            elapsed_s=elapsed_s,
            assignments=assignments,
            readings=readings,
            processes=self._sources.processes.read(pids, listed_s),
            logs=self._sources.logs.read(),
            pods=self._sources.pods.read(),
            node=self._node,
            is_nested=self._sources.processes.is_nested(),
        )

    def _judge(self, joined: JoinedUsage) -> tuple[Judged, UsageFindings]:
        shares, claims = watchdog.share_uses(joined), watchdog.claim_uses(joined)
        elapsed_s, at = joined.elapsed_s, joined.at
        self._watchdog, over = watchdog.watch(self._watchdog, shares, elapsed_s, at)
        self._foreign, unattributed = watchdog.watch_unattributed(self._foreign, joined.gpus, elapsed_s, at)
        self._idle, idle = watchdog.watch_idle(self._idle, claims, elapsed_s, at)
        known = {use.claim.uid: watchdog.idle_s(self._idle, use.claim.uid, use.used) for use in claims}
        judged = Judged(
            idle_s={uid: seconds for uid, seconds in known.items() if seconds is not None},
            over_bytes={
                (use.claim.uid, use.device): max(0, use.used_bytes - use.allowed_bytes)
                for use in shares
                if use.used_bytes is not None
            },
        )
        return judged, UsageFindings(written=at, over_grant=over, unattributed=unattributed, idle=idle)


ASSIGNMENTS_POLL_S: Final = 0.25
LATE_S: Final = 120.0
"""A loop that has not moved for this time hangs, in a call of the driver: only a restart helps."""
SIMULATED_STATE: Final = "simulated-gpus.json"
SIMULATED_USAGE: Final = "simulated-usage.json"
"""Files of the node process in the driver's directory."""


def choose(settings: ExporterSettings, plugin_dir: Path) -> UsageSource:
    """The GPUs of the settings. Raises ConfigurationError for a spec that cannot be read."""
    if settings.simulate is not None:
        gpus = SimulatedBackend.from_spec(
            settings.simulate, settings.node_name, state_file=plugin_dir / SIMULATED_STATE
        )  # fmt: skip
        return SimulatedUsage(gpus, plugin_dir / SIMULATED_USAGE, proc=Path(settings.proc_dir))
    from dra_driver.hardware.driver_root.search import Detector  # noqa: PLC0415 - simulated GPUs do not need it
    from dra_driver.hardware.gpu.nvml.usage import NvmlUsage  # noqa: PLC0415 - same

    root = settings.driver_root
    detector = Detector(settings.host_root)
    return NvmlUsage(driver_root=root if root is not None else lambda: detector.current().here("/"))


class ExporterProcess:
    """One process. ``run`` once; ``ready``, ``live``, ``remarks`` and ``usage`` from any thread."""

    def __init__(self, settings: ExporterSettings) -> None:
        self._settings = settings
        plugin_dir = Path(settings.kubelet_plugins_dir) / settings.driver_name
        self._findings = FindingsWriter(plugin_dir / FOLDER)
        self._sources = Sources(
            assignments=AssignmentsReader(plugin_dir / FOLDER),
            gpus=UsageGpus(choose(settings, plugin_dir), plugin_dir / FOLDER / FINDINGS / LOCK),
            processes=ProcReader(settings.proc_dir),
            logs=LogLinks(settings.log_dir),
            pods=PodResourcesReader(settings.pod_resources_socket, settings.driver_name),
        )
        self._observer = Observer(
            self._sources, settings.node_name, window_s=settings.window, keep_ended_s=settings.keep_ended
        )  # fmt: skip
        self._observed: LookResult | None = None  # replaced as a whole
        self._moved_s = time.monotonic()

    def ready(self) -> list[str]:
        return [] if self._observed is not None else ["the first sample is not complete"]

    def live(self) -> list[str]:
        silent_s = time.monotonic() - self._moved_s
        return [f"the exporter has not moved for {silent_s:.0f} s"] if silent_s > LATE_S else []

    def remarks(self) -> list[str]:
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
            {"version": 1, "node": self._settings.node_name, "knows": {"driver": "the first sample is not complete"}}
            if observed is None
            else document(observed.joined, observed.ledger, window_s=observed.window_s)
        )
        return "application/json", json.dumps(found, separators=(",", ":")).encode() + b"\n"

    def run(self, stop: StopSignal) -> None:
        """Sample until ``stop``. Raises ConfigurationError if the address cannot be used."""
        endpoint = self._serve()
        try:
            while not stop.wait(0.0):
                began = time.monotonic()
                self._step()
                self._rest(began + self._settings.interval, stop)
        finally:
            self._sources.gpus.close()
            self._sources.pods.close()
            if endpoint is not None:
                endpoint.stop()

    def _step(self) -> None:
        began = time.monotonic()
        try:
            observed = self._observer.look()
            self._findings.write(observed.findings)
            self._count(observed)
            self._observed = observed
        except Exception:  # loop boundary: the next sample may succeed
            log.exception("usage collection failed with an internal error")
            metrics.internal_error()
        metrics.look_seconds.observe(time.monotonic() - began)
        metrics.last_look.set(time.time())
        self._moved_s = time.monotonic()

    def _rest(self, until: float, stop: StopSignal) -> None:
        """Wait for the next sample; meet requests to close the GPUs, and sample their utilization."""
        while (left := until - time.monotonic()) > 0 and not stop.wait(min(left, ASSIGNMENTS_POLL_S)):
            self._sources.gpus.poll(self._sources.assignments.read())
            self._moved_s = time.monotonic()

    def _count(self, observed: LookResult) -> None:
        joined, knows = observed.joined, observed.joined.knows
        for source in metrics.SOURCES:
            reason = getattr(knows, source)
            metrics.knows.labels(source).set(reason is None)
            if reason is not None:
                metrics.errors_total.labels(source).inc()
        metrics.knows_processes.set(all(getattr(knows, each) is None for each in ("processes", "containers", "claims")))
        metrics.driver_open.set(self._sources.gpus.is_open)
        metrics.rows_left_out.set(observed.ledger.left_out)
        metrics.usage.set(families(joined, observed.ledger, observed.judged, dcgm=self._settings.dcgm_names))

    def _serve(self) -> ObservabilityServer | None:
        metrics.initialise(__version__)
        address = self._settings.http_addr
        if not address:
            return None
        server = ObservabilityServer(
            address, self.ready, self.live, self.remarks, scrape=metrics.render, pages={"/usage": self.usage}
        )
        server.start()
        log.info("serving metrics, usage and health", extra={"port": server.port})
        return server


def run(settings: ExporterSettings) -> None:
    """Run until SIGTERM or SIGINT. Raises ConfigurationError if it cannot start."""
    stop = StopSignal()
    ExporterProcess(settings).run(stop)
