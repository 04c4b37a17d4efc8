"""The node process: wires its components, starts and stops them in order, and reports readiness and liveness.

Each start step relies on those before it. Steps 1 to 5 can end the start with exit status 2, before anything is
published: a process in a crash loop must not attract pods.

1. directories, lock and the sockets' paths: a second process, a wrong path or a read-only directory ends here
2. HTTP endpoint: reports "not ready" with reasons from the first moment
3. components that the settings name: hardware (NVML or simulated GPUs), API client, journal, policies
4. first read of the Node object, which may request a detach, and of the hardware; recovery of unfinished claims; a
   missing driver or API server delays this only for seconds
5. DRA socket, then registration socket; also without a driver or API server, because pods need their unprepare
6. events, publisher, health: driver files and base CDI document follow the inventory, slices follow them
7. maintenance: missing sockets, files and device nodes, journal, a driver that comes or goes, deleted claims

Stop is the reverse, so that everything that a call needs stays until the kubelet stops calling. Calls in progress get
``CALL_GRACE_S``; the stop takes less than 5 s. Slices and prepared claims stay for a successor; the kubelet removes the
slices of a driver that does not return.
"""

import faulthandler
import gc
import logging
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path

from msgspec import Struct

from dra_driver import __version__
from dra_driver.config.settings import NodeSettings
from dra_driver.config.usage_findings import FOLDER as FINDINGS
from dra_driver.config.usage_findings import LOCK
from dra_driver.core.model.ids import GpuUuid
from dra_driver.core.stop_signal import StopSignal
from dra_driver.core.telemetry import metrics
from dra_driver.core.telemetry.http import ObservabilityServer
from dra_driver.core.worker import Worker
from dra_driver.hardware.cdi import CdiNames
from dra_driver.hardware.gpu.inventory import Inventory
from dra_driver.kube.connection import Connection
from dra_driver.kube.events import EventRecorder
from dra_driver.kube.own_node import OwnNodeWatch
from dra_driver.kube.rest import RestClient
from dra_driver.node.claims import Claims, PrepareGate
from dra_driver.node.policy import PolicySource
from dra_driver.node.process import hardware, node_events, preflight, service, usage_exporter
from dra_driver.node.process.claim_reports import open_claim_events, open_claim_status
from dra_driver.node.process.detaching import FILE, DetachFile, Detaching, find_request, wake_for_file
from dra_driver.node.process.endpoints import Endpoints, Probe, Registration, socket_problems
from dra_driver.node.process.gpu_conditions import FabricWatch, PartitionWithholding
from dra_driver.node.process.gpu_node import GpuNodeService
from dra_driver.node.process.gpu_operations import open_operations
from dra_driver.node.process.hardware import CHECK_EVERY_S, DeviceNodeReport, HostDeviceNodes, OwnedBackend
from dra_driver.node.process.health_report import HealthStreams
from dra_driver.node.process.health_service import HealthService
from dra_driver.node.process.inventory_publisher import InventoryPublisher
from dra_driver.node.process.main import trimmer
from dra_driver.node.process.maintenance import Maintenance, PeriodicTask, Wakeup
from dra_driver.node.process.node_claims import open_node_claims, open_provider, open_writer, update_gauges
from dra_driver.node.process.node_follower import NodeFollower
from dra_driver.node.process.policy_watch import PolicyWatch
from dra_driver.node.process.preflight import ClaimFiles, Folder, StorageHealth
from dra_driver.node.process.sockets import SocketPaths, check_free, remove_dead
from dra_driver.node.process.terms_resolver import DetachTaint, PublishedTerms, TermsResolver
from dra_driver.node.process.usage_exporter import ExporterLock, GpuChangeTracker
from dra_driver.node.slices import Publisher
from dra_driver.node.usage.assignments import FOLDER

log = logging.getLogger(__name__)

# Matches sockets of former pods. Any other file in the registry may belong to another driver that is about to listen.
ANY_UID = "-".join("?" * length for length in (8, 4, 4, 4, 12))
CALL_GRACE_S = 2.0
# Recovery knows more after a first read of the hardware, but pods that end must not wait for a slow driver.
FIRST_LOOK_S = 2.0
# How long a start waits for the Node object, because the process must not open the driver during a driver upgrade.
# After that time it continues, and detaches when it has read the object.
FIRST_NODE_S = 2.0
# For each component that may hang in a call to the hardware or the API server; its thread ends with the process.
COMPONENT_STOP_S = 0.5
FILES_EVERY_S = 5.0
# Counting reads every claim of the journal; as often as metrics are usually scraped.
GAUGES_EVERY_S = 15.0
MEMORY_EVERY_S = 60.0
# How often the driver checks whether an attempt is due; attempts are at least half a minute apart.
REBUILD_EVERY_S, SETTLE_EVERY_S = 10.0, 30.0
STALE_CLAIMS_EVERY_S = 600.0
# For changes that a wakeup reports, and while it does for changes that inotify does not see, such as a mount.
SOON_S, RESYNC_S = 1.0, 5.0
POLICIES_FILE = "policies-in-force.json"


class Component(Struct, frozen=True, kw_only=True):
    """One part of the node process. ``stop`` returns within the part's limit. ``problem``: why the node cannot serve a
    new pod; ``remarks``: limits of a ready node; ``dead``: why only a restart helps."""

    part: object
    start: Callable[[], object] = lambda: None
    stop: Callable[[], object] = lambda: None
    problem: Callable[[], str | None] = lambda: None
    remarks: Callable[[], Iterable[str]] = tuple
    dead: Callable[[], Iterable[str]] = tuple


class Notifier:
    """Calls functions in the order in which they were added. They must return immediately."""

    def __init__(self) -> None:
        self._calls: tuple[Callable[[], object], ...] = ()  # replaced as a whole, so that any thread reads it

    def add(self, call: Callable[[], object]) -> None:
        self._calls = (*self._calls, call)

    def __call__(self) -> None:
        for call in self._calls:
            call()


class NodeProcess:
    """One run of the driver on one node. ``start`` and ``stop`` once, by one owner; the rest from any thread."""

    def __init__(self, settings: NodeSettings) -> None:
        self._settings = settings
        self._plugin_dir = Path(settings.kubelet_plugins_dir) / settings.driver_name
        self._stopping = threading.Event()
        self._has_started = False
        self.components: list[Component] = []
        """The components that have started, in the order of the start."""

    def start(self) -> None:
        """Run the steps of the module's docstring. Raises ConfigurationError after undoing the steps so far."""
        try:
            for component in self._wire():
                component.start()
                self.components.append(component)
        except BaseException:
            self.stop()
            raise
        self._has_started = True

    def stop(self) -> None:
        """Stop in reverse. Idempotent."""
        self._stopping.set()
        with ExitStack() as stack:
            while self.components:
                stack.callback(self.components.pop(0).stop)

    def ready(self) -> list[str]:
        """Reasons why this node cannot serve a new pod, one sentence each; empty if it can."""
        if self._stopping.is_set():
            return ["stopping"]
        if not self._has_started:
            return ["starting"]
        found = [component.problem() for component in tuple(self.components)]
        return [problem for problem in found if problem is not None]

    def remarks(self) -> list[str]:
        return [remark for component in tuple(self.components) for remark in component.remarks()]

    def live(self) -> list[str]:
        """Reasons why only a restart helps. Empty before the sockets exist."""
        if self._stopping.is_set():
            return []
        return [reason for component in tuple(self.components) for reason in component.dead()]

    def _wire(self) -> Iterator[Component]:  # noqa: PLR0912, PLR0915 - the order of the steps, in one place
        """Make the components in order. Each one starts when the next one is made."""
        settings, plugin_dir, driver = self._settings, self._plugin_dir, self._settings.driver_name

        # 1. Directories, lock and the sockets' paths
        paths = SocketPaths.choose(
            driver=driver,
            registrar_dir=Path(settings.kubelet_registrar_dir),
            plugin_dir=plugin_dir,
            pod_uid=settings.pod_uid,
        )
        lock = _lock_node(settings, plugin_dir, paths)
        yield Component(part=lock, stop=lock.release)
        remove_dead(paths.registration.parent, f"{driver}-{ANY_UID}-reg.sock")
        remove_dead(plugin_dir, f"dra-{ANY_UID}.sock")
        for path in (paths.dra, paths.registration):
            check_free(path)

        # 2. HTTP endpoint
        metrics.initialise(driver=driver, node=settings.node_name, version=__version__)
        if settings.http_addr:
            http = ObservabilityServer(settings.http_addr, self.ready, self.live, self.remarks)
            yield Component(part=http, start=http.start, stop=http.stop)
            log.info("serving metrics and health", extra={"port": http.port})

        # 3. Hardware, API client, journal, policies
        claims_changed, claim_released, publish, usage_changed = Notifier(), Notifier(), Notifier(), Notifier()
        usage_dir = plugin_dir / FOLDER
        changes = GpuChangeTracker(usage_changed, ExporterLock(usage_dir / FINDINGS / LOCK))
        found = hardware.choose(settings, plugin_dir, changes if settings.usage else None)
        nodes, names = HostDeviceNodes.of(found), CdiNames(driver)
        writer = open_writer(settings, plugin_dir, names)
        provider = open_provider(settings, found, nodes, names, writer)
        rest = RestClient(Connection.load(settings.kubeconfig))
        own_node = OwnNodeWatch(rest, settings.node_name)
        yield Component(part=own_node, start=own_node.start, stop=_within(own_node.stop))
        events = EventRecorder(rest, node_events.COMPONENT, settings.node_name)
        tell = partial(node_events.tell, own_node, events)
        publisher = Publisher.connect(rest, driver, settings.node_name, events, lists=settings.numa_node_as_list)
        gate, withholding, fabric, taint = PrepareGate(), PartitionWithholding(), FabricWatch(), DetachTaint()
        owned = OwnedBackend(found.backend)
        inventory = Inventory(owned, settings.poll_interval)

        claims = open_node_claims(
            settings,
            plugin_dir,
            rest=rest,
            names=names,
            writer=writer,
            provider=provider,
            inventory=inventory,
            hardware=found,
            device_nodes=nodes,
            terms=lambda: terms.current(),  # noqa: PLW0108 - made below
            watch=withholding,
            gate=gate,
            released=claim_released,
            changed=claims_changed,
        )
        journal = claims.journal
        yield Component(part=claims, stop=_within(claims.close), problem=lambda: claims.problem)
        owned.use_journal(journal)
        objects = PolicyWatch(rest, settings.node_name, publish) if settings.policy_objects else None
        if objects is not None:
            yield Component(part=objects, start=objects.start, stop=_within(objects.stop))
        policy_dir = Path(settings.policy_dir) if settings.policy_dir else None
        policies = PolicySource(policy_dir, plugin_dir / POLICIES_FILE, settings.node_name, objects)
        policies.load()
        terms: TermsResolver = TermsResolver(policies, journal.uses)
        yield Component(
            part=terms,
            problem=lambda: terms.problem,
            remarks=lambda: [policies.remark] if policies.remark is not None else [],
        )

        # 4. First read of the Node object and of the hardware, recovery
        file = DetachFile(plugin_dir / FILE)
        publishes = threading.Event()
        operations = open_operations(
            found,
            claims,
            inventory,
            gate,
            folder=plugin_dir,
            node=own_node.current,
            terms=lambda: terms.current(),  # noqa: PLW0108 - made above, resolved later
            detaching=lambda: detaching,
            exporter=changes.exporter if settings.usage else None,
            repaired=lambda gpus: health.monitor.undrained(gpus) if health is not None else None,  # made below
            changed=publish,
            published=lambda: not publishes.is_set() or publisher.published,
            tell=tell,
        )
        operations.load()
        own_node.subscribe(operations.worker.wake)
        claim_released.add(operations.worker.wake)
        detaching = Detaching(
            found.backend,
            inventory,
            gate,
            find=lambda: find_request(own_node.current(), file.read(), file.path) or operations.detach_request,
            prepared=journal.count_claims,
            changed=publish,
            published=lambda: not publishes.is_set() or publisher.published,
            tell=tell,
            exporter_closed=changes.exporter.wait_closed if settings.usage else lambda: True,
        )
        own_node.subscribe(detaching.worker.wake)
        claim_released.add(detaching.worker.wake)
        if not own_node.wait_first(FIRST_NODE_S):
            log.warning("cannot read the Node object; using the NVIDIA driver without its annotations")
        detaching.step()
        yield Component(
            part=inventory,
            start=inventory.start,
            stop=_within(inventory.stop),
            problem=lambda: inventory.problem if detaching.problem is None else None,
        )
        if not detaching.is_detached and inventory.wait_first(FIRST_LOOK_S):
            terms.update(inventory.current())
        for sentence in claims.service.recover().problems:
            log.warning("recovery is not complete", extra={"problem": sentence})

        # 5. DRA socket, then registration socket
        prepares = service.prepare_threads()
        yield Component(part=prepares, stop=partial(prepares.shutdown, wait=False, cancel_futures=True))
        registration = Registration(driver=driver, endpoint=paths.dra)
        yield Component(part=registration, problem=lambda: registration.problem)
        streams = HealthStreams()
        handlers = [*service.handlers(claims.service, driver, prepares), *streams.handlers()]
        endpoints = Endpoints(paths, registration, handlers)
        sockets = Probe(partial(socket_problems, paths))
        yield Component(
            part=endpoints,
            start=endpoints.start,
            stop=partial(endpoints.stop, CALL_GRACE_S),
            problem=lambda: endpoints.problem,
            dead=lambda: _dead(claims, endpoints, sockets),
        )
        yield Component(part=streams, stop=streams.stop)
        log.info("serving the kubelet", extra={"dra": paths.dra, "registration": paths.registration})

        # 6. Events, publisher, health
        yield Component(part=events, start=events.start, stop=partial(events.stop, COMPONENT_STOP_S))
        publishes.set()
        yield Component(
            part=publisher,
            start=publisher.start,
            stop=_within(publisher.stop),
            problem=lambda: (
                publisher.problem or (None if publisher.published else "the newest inventory is not published yet")
            ),
        )
        if found.faulty is not None:
            from dra_driver.node.process.simulated import SimulatedFaults  # noqa: PLC0415 - real GPUs do not need it

            faults = SimulatedFaults(found.faulty, own_node.current, tell)
            own_node.subscribe(faults.worker.wake)
            yield _threaded(faults, faults.worker)
        claim_events = open_claim_events(settings, rest, journal)
        if claim_events is not None:
            yield _threaded(claim_events, claim_events.worker)
        status = open_claim_status(settings, plugin_dir, rest, journal, tell)
        if status is not None:
            claims_changed.add(status.worker.wake)
            yield _threaded(status, status.worker, remarks=lambda: [status.problem] if status.problem else [])

        def held() -> set[GpuUuid]:
            return {use.gpu_uuid for use in journal.uses()}

        health = None
        if settings.health:
            health = HealthService(
                settings,
                plugin_dir,
                found.backend,
                inventory,
                journal=journal,
                held=held,
                terms=terms,
                publish=publish,
                tell=tell,
                report=[streams.report, *([status.show] if status is not None else [])],
                notify=claim_events.tell if claim_events is not None else None,
            )
            claims_changed.add(health.claims_changed)
        node = NodeFollower(
            own_node,
            events,
            publisher,
            inventory,
            driver,
            folder=plugin_dir,
            allow_second=settings.allow_second_publisher,
            on_undrain=health.monitor.undrained if health is not None else lambda _: None,
        )
        conditions = [health.amend] if health is not None else []
        amendments = [withholding.amend, fabric.amend, *conditions, node.amend, operations.amend, taint.amend]
        published = InventoryPublisher(
            inventory,
            provider,
            publisher,
            PublishedTerms(terms, amendments),
            detach=detaching,
            conflict=node,
            taint=taint,
            held=held,
            complete=health.known.complete if health is not None else lambda snapshot: snapshot,
            driver_root=found.renew_root,
        )
        publish.add(published.check)
        yield Component(part=withholding, remarks=lambda: withholding.remarks)
        yield Component(part=fabric, remarks=lambda: fabric.remarks)
        # Before the publisher subscribes: conditions of instances that no longer exist end first.
        if health is not None:
            yield Component(
                part=health, start=health.start, stop=partial(health.stop, COMPONENT_STOP_S), remarks=health.remarks
            )
        inventory.subscribe(published.changed)
        yield Component(part=published, problem=lambda: published.problem)
        if settings.usage:
            assignments = usage_exporter.AssignmentsFile(
                usage_dir,
                usage_exporter.header(settings),
                entries=journal.entries,
                gpus=lambda changing: usage_exporter.assigned_gpus(inventory.current(), terms.current(), changing),
                detached=lambda: detaching.detached,
                changes=changes,
            )
            claims_changed.add(assignments.claims_changed)
            usage_changed.add(assignments.worker.wake)
            publish.add(assignments.worker.wake)
            yield _threaded(assignments, assignments.worker)
        if settings.simulate is not None:
            from dra_driver.node.process import simulated  # noqa: PLC0415 - real GPUs do not need it

            uses = simulated.SimulatedUses(rest, journal.entries, plugin_dir / simulated.NAME)
            claims_changed.add(uses.worker.wake)
            yield _threaded(uses, uses.worker)
        also_local: list[PeriodicTask] = []
        if settings.gpu_node:
            gpu_node = GpuNodeService(
                settings,
                rest,
                own_node,
                tell,
                published=published,
                journal=journal,
                health=health,
                policies=policies,
                hook_version=lambda: provider.hook_version,
                not_ready=self.ready,
                remarks=self.remarks,
                notify=claim_events.tell if claim_events is not None else None,
            )
            claims_changed.add(gpu_node.claims_changed)
            yield _threaded(gpu_node, gpu_node.keeper.worker)
            also_local.append(PeriodicTask(name="gpu-node", every_s=FILES_EVERY_S, work=gpu_node.look))

        # 7. Maintenance
        report = DeviceNodeReport(nodes, lambda: [gpu.minor for gpu in inventory.current().gpus], publisher.warn)
        yield Component(part=report, remarks=report.remarks)
        yield Component(part=node, problem=lambda: node.problem, remarks=lambda: node.remarks)
        files = ClaimFiles(settings.cdi_dir, claims.service.rewrite_missing_files)
        storage = StorageHealth(
            [
                Folder(path=Path(settings.cdi_dir), what="the CDI directory", setting="--cdi-dir"),
                Folder(path=plugin_dir, what="the driver's directory", setting="--kubelet-plugins-dir"),
            ],
            # Not while detached: a search for driver files could open the driver.
            lambda: () if detaching.is_detached else files.bring_back(),
        )
        yield Component(part=storage, problem=lambda: storage.problem)
        yield _threaded(detaching, detaching.worker, problem=lambda: detaching.problem)
        yield _threaded(operations, operations.worker, remarks=lambda: operations.remarks)

        def report_conditions() -> None:
            """Record events for withheld or tainted GPUs."""
            for each in (withholding, fabric, node):
                each.report(publisher.warn)

        def count() -> None:
            metrics.published.set(publisher.published)
            update_gauges(journal, settings)

        soon = partial(PeriodicTask, every_s=SOON_S, resync_s=RESYNC_S)
        local = [
            soon(name="sockets", work=endpoints.check, needs_poll=lambda: endpoints.problem is not None),
            soon(name="detach-file", work=partial(wake_for_file, detaching, plugin_dir)),
            soon(name="node", work=partial(node.follow, publish), needs_poll=node.is_waiting),
            PeriodicTask(name="driver-files", every_s=FILES_EVERY_S, work=published.check),
            PeriodicTask(name="disk", every_s=FILES_EVERY_S, work=storage.check),
            PeriodicTask(name="policies", every_s=FILES_EVERY_S, work=partial(terms.report, publisher.warn)),
            PeriodicTask(name="conditions", every_s=FILES_EVERY_S, work=report_conditions),
            *also_local,
            PeriodicTask(name="gauges", every_s=GAUGES_EVERY_S, work=count),
            PeriodicTask(name="memory", every_s=MEMORY_EVERY_S, work=trimmer()),
        ]
        stale_claims = partial(claims.service.maintain, self._stopping.is_set)
        remote = [
            PeriodicTask(name="claims", every_s=STALE_CLAIMS_EVERY_S, work=stale_claims),
            PeriodicTask(name="hardware", every_s=SETTLE_EVERY_S, work=claims.service.reclaim_orphans),
            PeriodicTask(name="journal-rebuild", every_s=REBUILD_EVERY_S, work=claims.service.finish_rebuild),
            PeriodicTask(name="device-nodes", every_s=CHECK_EVERY_S, work=report.check),
        ]
        wakeup = Wakeup([str(paths.dra.parent), str(paths.registration.parent)])
        node.call_after_changes(wakeup.notify)
        for work in (Maintenance("maintenance", local, wakeup=wakeup), Maintenance("claim-maintenance", remote)):
            yield _threaded(work, work.worker)


def _lock_node(settings: NodeSettings, plugin_dir: Path, paths: SocketPaths) -> preflight.ProcessLock:
    if settings.simulate is None:
        preflight.check_driver_root(Path(settings.driver_root or settings.host_root))
    preflight.check_host_dev(Path(settings.host_dev) if settings.host_dev else None)
    preflight.check_registrar_dir(paths.registration.parent)
    preflight.make_plugin_dir(Path(settings.kubelet_plugins_dir), settings.driver_name)
    preflight.make_cdi_dir(Path(settings.cdi_dir))
    lock = preflight.ProcessLock(plugin_dir, shared=settings.pod_uid is not None)
    lock.acquire()
    return lock


def _within(stop: Callable[[], object]) -> Callable[[], None]:
    """A ``stop`` that returns after `COMPONENT_STOP_S` even if ``stop`` has not returned."""

    def limited() -> None:
        stopper = threading.Thread(target=stop, name="stop", daemon=True)
        stopper.start()
        stopper.join(COMPONENT_STOP_S)
        if stopper.is_alive():
            facts = {"component": stop}
            log.warning(f"component did not stop within {COMPONENT_STOP_S:g} s; abandoning it", extra=facts)

    return limited


def _threaded(
    part: object,
    worker: Worker,
    *,
    problem: Callable[[], str | None] = lambda: None,
    remarks: Callable[[], Iterable[str]] = tuple,
) -> Component:
    stop = partial(worker.stop, COMPONENT_STOP_S)
    return Component(part=part, start=worker.start, stop=stop, problem=problem, remarks=remarks)


def _dead(claims: Claims, endpoints: Endpoints, sockets: Probe) -> list[str]:
    found = [claims.problem] if claims.problem else []
    # Maintenance replaces a missing socket; a restart would not do it better.
    return found if endpoints.problem else found + sockets.problems()


def run(settings: NodeSettings) -> None:
    """Run until SIGTERM or SIGINT. Raises ConfigurationError if it cannot start. SIGUSR2 prints the stacks of all
    threads.
    """
    stop = StopSignal()
    faulthandler.register(signal.SIGUSR2)
    begin = time.monotonic()
    facts = {"version": __version__, "node": settings.node_name, "driver": settings.driver_name}
    log.info("starting", extra=facts)
    process = NodeProcess(settings)
    gc.disable()
    process.start()
    # A full collection would scan all modules, 25 ms during a call. The start leaves little garbage.
    gc.freeze()
    gc.enable()
    log.info("started", extra={"seconds": round(time.monotonic() - begin, 3)})
    stop.wait()
    begin = time.monotonic()
    log.info("stopping; slices and prepared claims stay")
    process.stop()
    log.info("stopped", extra={"seconds": round(time.monotonic() - begin, 3)})
