"""Run the controller process: start and stop its parts in order, and report readiness and liveness.

Start; only steps 1 and 2 can fail, with exit status 2:

1. HTTP endpoint
2. API clients; an unavailable API server delays nothing
3. events
4. enabled parts, each with its watches, in every replica, so that a takeover needs no list
5. election: from here on this replica may act

Stop is the reverse in less than 10 s: all parts end before the Lease is released, so that another replica takes over
immediately. The process keeps nothing on disk and needs no permissions on its machine.
"""

import logging
import socket
import threading
import uuid
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from typing import Final

from dra_driver import __version__
from dra_driver.config.controller_settings import ControllerSettings
from dra_driver.controller.capacity import CapacityGauges, survey, survey_command
from dra_driver.controller.election import Election, LeaseTimes, awake_clock
from dra_driver.controller.eviction_api import BrakeRules, Pace
from dra_driver.controller.evictions import EvictionEvents, EvictionRules, Evictions
from dra_driver.controller.policy_status import PolicyStatusWriter
from dra_driver.controller.usage_evictions import UsageEvictionEvents, UsageEvictionRules, UsageEvictions
from dra_driver.controller.watches import EvictionWatches, PolicyWatches, UsageWatch, Watch
from dra_driver.core.stop_signal import StopSignal
from dra_driver.core.telemetry import capacity_metrics
from dra_driver.core.telemetry import controller_metrics as metrics
from dra_driver.core.telemetry.http import ObservabilityServer
from dra_driver.core.worker import Worker
from dra_driver.kube.connection import Connection
from dra_driver.kube.events import EventRecorder
from dra_driver.kube.objects.core import ObjectReference
from dra_driver.kube.rest import RestClient, Timeouts

log = logging.getLogger(__name__)

COMPONENT: Final = "dra-driver-controller"
LEASE: Final = "dra-driver-controller"
PART_STOP_S: Final = 2.0
ELECTION_STOP_S: Final = 3.0
"""Longer: its thread releases the Lease."""


class ControllerProcess:
    """One replica. ``start`` and ``stop`` once, by one owner; the rest from any thread."""

    def __init__(self, settings: ControllerSettings) -> None:
        self._settings = settings
        self._running = ExitStack()  # steps that the stop undoes, in the order of the start
        self._stopping = threading.Event()
        # Set by start(), in this order.
        self._needed: list[Watch] = []
        self._waits: dict[str, Watch] = {}  # by what waits for it
        self._workers: list[Worker] = []
        self._election: Election | None = None

    def start(self) -> None:
        """Run the steps of the module's docstring. Raises ConfigurationError after undoing the steps so far."""
        try:
            self._serve_http()
            self._start_parts()
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        self._stopping.set()
        self._running.close()

    def ready(self) -> list[str]:
        """Reasons why this replica could not act. Policies without a watch are a warning: CRDs may be missing."""
        if self._stopping.is_set():
            return ["stopping"]
        if self._election is None:
            return ["starting"]
        problems = [self._election.problem, *(watch.problem for watch in self._needed)]
        return [problem for problem in problems if problem is not None]

    def remarks(self) -> list[str]:
        leads = self._election is not None and self._election.leads()
        evicts = "on" if self._settings.evict_extended_resource_pods else "off"
        writes = "on" if self._settings.policy_status else "off"
        said = [f"this replica {'acts' if leads else 'waits'}; evictions are {evicts}; policy status is {writes}"]
        problems = {what: watch.problem for what, watch in list(self._waits.items())}
        return [*said, *(f"{what} waits: {problem}" for what, problem in problems.items() if problem is not None)]

    def live(self) -> list[str]:
        """Reasons why only a restart would help."""
        workers = [*self._workers, *([self._election.worker] if self._election is not None else [])]
        found = [worker.hung for worker in workers]
        return [] if self._stopping.is_set() else [reason for reason in found if reason is not None]

    def _serve_http(self) -> None:
        metrics.initialise(__version__)
        capacity_metrics.initialise()
        address = self._settings.http_addr
        if not address:
            return
        server = ObservabilityServer(address, self.ready, self.live, self.remarks, scrape=metrics.render)
        server.start()
        self._running.callback(server.stop)
        log.info("serving metrics and health", extra={"port": server.port})

    def _start_parts(self) -> None:
        settings, times = self._settings, LeaseTimes.of(self._settings.lease_duration)
        connection = Connection.load(settings.kubeconfig)
        rest = RestClient(connection)
        # Requests of the leader must end before another replica may take the Lease.
        bounds = Timeouts(connect_s=times.request_s, read_s=times.request_s, total_s=times.request_s)
        bounded = RestClient(connection, timeouts=bounds)
        identity = f"{settings.pod_name or socket.gethostname()}_{uuid.uuid4().hex[:8]}"
        recorder = EventRecorder(rest, COMPONENT, identity)
        recorder.start()
        self._running.callback(recorder.stop)
        election = Election(
            bounded, namespace=settings.namespace, name=LEASE, identity=identity, times=times, on_change=self._wake
        )
        for worker, watch in self._parts(rest, bounded, election, recorder):
            self._workers.append(worker)
            if watch is not None:
                watch.start()
                self._running.callback(watch.stop)
            worker.start()
        election.worker.start()
        self._running.callback(self._stop_acting, election)
        self._election = election
        switched = {"evictions": settings.evict_extended_resource_pods, "policy_status": settings.policy_status}
        log.info("started", extra={"identity": identity, **switched})

    def _parts(
        self, rest: RestClient, bounded: RestClient, election: Election, recorder: EventRecorder
    ) -> Iterator[tuple[Worker, Watch | None]]:
        """The enabled parts, each with its watches."""
        settings, clock = self._settings, awake_clock
        lease = ObjectReference(
            api_version="coordination.k8s.io/v1", kind="Lease", namespace=settings.namespace, name=LEASE
        )
        brake = BrakeRules(percent=settings.brake_percent, window_s=settings.brake_window, grace_s=settings.grace)
        pace = Pace(settings.max_evictions_per_minute, election.led_for_s, clock)
        if settings.evict_extended_resource_pods:
            watches = EvictionWatches(rest, settings.driver_name, self._wake)
            self._needed.append(watches)
            rules = EvictionRules(grace_s=settings.grace, brake=brake)
            events = EvictionEvents(recorder, lease)
            yield Evictions(bounded, watches, election, rules, events, clock=clock, pace=pace).worker, watches
        if settings.evict_over_grant or settings.reclaim_idle:
            self._waits["eviction because of use"] = watch = UsageWatch(rest, self._wake)
            usage_rules = UsageEvictionRules(
                driver=settings.driver_name,
                over_grant=settings.evict_over_grant,
                idle=settings.reclaim_idle,
                brake=brake,
            )
            reported = UsageEvictionEvents(recorder, lease)
            yield UsageEvictions(bounded, watch, election, usage_rules, reported, pace=pace, clock=clock).worker, watch
        if settings.policy_status:
            self._waits["policy status"] = copies = PolicyWatches(rest, self._wake)
            yield PolicyStatusWriter(bounded, copies, election, clock=clock).worker, copies
        if settings.capacity_interval:
            command = survey_command(settings.driver_name, settings.kubeconfig)
            run = partial(survey, command, memory_mib=settings.capacity_memory)
            yield CapacityGauges(run, election, interval_s=settings.capacity_interval, clock=clock).worker, None

    def _stop_acting(self, election: Election) -> None:
        """The Lease is released after the last act."""
        for worker in self._workers:
            worker.stop(PART_STOP_S)
        election.worker.stop(ELECTION_STOP_S)

    def _wake(self) -> None:
        for worker in self._workers:
            worker.wake()


def run(settings: ControllerSettings) -> None:
    stop = StopSignal()
    process = ControllerProcess(settings)
    process.start()
    stop.wait()
    process.stop()
