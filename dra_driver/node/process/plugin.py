"""The node process: wires its components, starts and stops them in order, and reports readiness and liveness.

Start, in steps that rely on those before them. An error that ends the start with exit status 2 comes in steps 1 to 5,
before anything is published: a process in a crash loop must not attract pods.

1. directories, lock and the sockets' paths: a second process, a wrong path or a read-only directory ends here
2. HTTP endpoint: reports "not ready" with reasons from the first moment
3. components that the settings name: hardware (NVML or simulated GPUs), API client, journal, policies
4. first look at the Node object, which may ask that the driver is left alone; first read of the hardware, and recovery
   of claims that a former process left half done; a missing driver or an API server that is down does not delay this
   for long
5. DRA socket, then registration socket: the kubelet may call. Also without a driver or API server, because pods from
   before need their unprepare
6. events, publisher, health: driver files and base CDI document follow the inventory, slices follow them; a device is
   published when a prepare could serve it, and tainted from the start when it was not healthy before
7. maintenance: vanished sockets, files and device nodes, journal, a driver that comes or goes, claims that are gone

Stop is the reverse, so nothing that a call needs ends before the kubelet stops calling. Calls in progress get
``CALL_GRACE_S``, everything together takes less than 5 s. Slices and prepared claims stay: a successor takes them over,
and the kubelet removes the slices of a driver that does not come back.
"""

import logging
import threading
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from functools import partial
from pathlib import Path

from dra_driver import __version__
from dra_driver.config.settings import NodeSettings
from dra_driver.core.errors import ConfigurationError
from dra_driver.core.model.ids import GpuUuid
from dra_driver.core.telemetry import metrics
from dra_driver.core.telemetry.http import ObservabilityServer
from dra_driver.hardware.cdi import CdiNames, CdiWriter
from dra_driver.hardware.gpu.inventory import Inventory
from dra_driver.kube.connection import Connection
from dra_driver.kube.events import EventRecorder
from dra_driver.kube.own_node import OwnNodeWatch
from dra_driver.kube.rest import RestClient
from dra_driver.node.claims import PrepareGate
from dra_driver.node.policy import PolicySource
from dra_driver.node.process import gauges, hardware, node_events, preflight, probe, service
from dra_driver.node.process.assignments_setup import AssignmentsService
from dra_driver.node.process.cdi_setup import open_cdi
from dra_driver.node.process.claim_events_setup import open_claim_events
from dra_driver.node.process.claim_manager import MAINTAIN_EVERY_S, ClaimManager
from dra_driver.node.process.claim_status_setup import open_claim_status
from dra_driver.node.process.detach_setup import open_detaching
from dra_driver.node.process.detaching import Detaching
from dra_driver.node.process.device_nodes import CHECK_EVERY_S, DeviceNodeReport, HostDeviceNodes
from dra_driver.node.process.endpoints import Endpoints
from dra_driver.node.process.fabric_watch import FabricWatch
from dra_driver.node.process.free_memory import trimmer
from dra_driver.node.process.gpu_node_setup import GpuNodeService
from dra_driver.node.process.health_events import Tell
from dra_driver.node.process.health_setup import HealthService
from dra_driver.node.process.health_stream import HealthStreams
from dra_driver.node.process.inventory_publisher import InventoryPublisher
from dra_driver.node.process.maintenance import Chore, Maintenance
from dra_driver.node.process.node_follower import NodeFollower
from dra_driver.node.process.node_taint import NodeTaint
from dra_driver.node.process.ownership import OwnedBackend
from dra_driver.node.process.policy_setup import open_policies, open_policy_watch
from dra_driver.node.process.published_terms import PublishedTerms
from dra_driver.node.process.registration import Registration
from dra_driver.node.process.sockets import SocketPaths, check_free, remove_dead
from dra_driver.node.process.soon_chores import soon_bell, soon_chores
from dra_driver.node.process.stopping import within
from dra_driver.node.process.storage_health import ClaimFiles, Folder, StorageHealth
from dra_driver.node.process.terms_resolver import TermsResolver
from dra_driver.node.process.withholding import PartitionWithholding
from dra_driver.node.slices import Publisher

log = logging.getLogger(__name__)

# Matches sockets of former pods. Any other file in the registry may be another driver's, which is about to listen.
ANY_UID = "-".join("?" * length for length in (8, 4, 4, 4, 12))
CALL_GRACE_S = 2.0
# Recovery knows more after a first read of the hardware, but pods that end must not wait for a slow driver.
FIRST_LOOK_S = 2.0
# For each component that may hang in a call to the hardware or the API server; its thread ends with the process.
COMPONENT_STOP_S = 0.5
FILES_EVERY_S = 5.0
# Counting reads every claim of the journal; as often as metrics are usually scraped.
GAUGES_EVERY_S = 15.0
MEMORY_EVERY_S = 60.0
# How often the driver checks whether a try is due; the tries themselves are at least half a minute apart.
REBUILD_EVERY_S, SETTLE_EVERY_S = 10.0, 30.0


class NodeProcess:
    """One run of the driver on one node. ``start`` and ``stop`` once, by one owner; the rest from any thread."""

    def __init__(self, settings: NodeSettings) -> None:
        self._settings = settings
        self._stopping = threading.Event()
        self._running = ExitStack()  # what the stop undoes, in the order of the start
        driver = settings.driver_name
        self._plugin_dir = Path(settings.kubelet_plugins_dir) / driver
        self._paths = SocketPaths.choose(
            driver=driver,
            registrar_dir=Path(settings.kubelet_registrar_dir),
            plugin_dir=self._plugin_dir,
            pod_uid=settings.pod_uid,
        )
        self._registration = Registration(driver=driver, endpoint=self._paths.dra)
        self._probe = probe.Probe(partial(probe.problems, self._paths))
        self._streams = HealthStreams()
        self._withholding = PartitionWithholding()
        self._fabric = FabricWatch()
        self._assignments = AssignmentsService(
            settings, self._plugin_dir, lambda: (self._claims, self._inventory, self._terms, self._detaching)
        )
        # Set by start(), in this order.
        self._inventory: Inventory | None = None
        self._policies: PolicySource | None = None
        self._terms: TermsResolver | None = None
        self._policy_problem: str | None = None
        self._claims: ClaimManager | None = None
        self._detaching: Detaching | None = None
        self._follower: NodeFollower | None = None
        self._endpoints: Endpoints | None = None
        self._publisher: Publisher | None = None
        self._inventory_publisher: InventoryPublisher | None = None
        self._health: HealthService | None = None
        self._gpu_node: GpuNodeService | None = None
        self._storage: StorageHealth | None = None
        self._node_remarks: Callable[[], list[str]] = list

    def start(self) -> None:
        """Runs the steps of the module's docstring. Raises ConfigurationError after undoing the steps so far."""
        try:
            self._check_and_lock()
            self._serve_http()
            self._start_components()
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """Stops in reverse. Idempotent."""
        self._stopping.set()
        self._running.close()

    def ready(self) -> list[str]:
        """Reasons why this node cannot serve a new pod, one sentence each; empty when it can."""
        if self._stopping.is_set():
            return ["stopping"]
        components = (
            *(self._inventory, self._terms, self._publisher, self._inventory_publisher, self._claims),
            *(self._endpoints, self._storage, self._detaching, self._follower),
        )
        if any(component is None for component in components):
            return ["starting"]
        found = [component.problem for component in (*components, self._registration) if component is not None]
        if self._detaching is not None and self._detaching.problem is not None:
            found[0] = None  # the inventory's: that the driver is given up
        if self._publisher is not None and not self._publisher.published:
            found.append("the newest inventory is not published yet")
        return [problem for problem in found if problem is not None]

    def remarks(self) -> list[str]:
        """What a node that is ready offers less of, one sentence each."""
        asked = self._follower.remarks if self._follower is not None else []
        sick = self._health.remarks if self._health is not None else []
        policies = self._policies.remark if self._policies is not None else None
        found = [*self._withholding.remarks, *self._fabric.remarks, *sick, *self._node_remarks(), *asked]
        return [*found, policies] if policies is not None else found

    def live(self) -> list[str]:
        """Reasons why only a restart would help. Empty before the sockets exist."""
        if self._endpoints is None or self._claims is None or self._stopping.is_set():
            return []
        dead = [self._claims.problem] if self._claims.problem else []
        # Maintenance replaces a socket that is gone or foreign; a restart would not do it better.
        return dead if self._endpoints.problem else dead + self._probe.problems()

    def _check_and_lock(self) -> None:
        settings, paths = self._settings, self._paths
        if settings.simulate is None:
            preflight.check_driver_root(Path(settings.driver_root or settings.host_root))
        preflight.check_host_dev(Path(settings.host_dev) if settings.host_dev else None)
        preflight.check_registrar_dir(paths.registration.parent)
        preflight.make_plugin_dir(Path(settings.kubelet_plugins_dir), settings.driver_name)
        preflight.make_cdi_dir(Path(settings.cdi_dir))
        lock = preflight.ProcessLock(self._plugin_dir, shared=settings.pod_uid is not None)
        lock.acquire()
        self._running.callback(lock.release)
        remove_dead(paths.registration.parent, f"{settings.driver_name}-{ANY_UID}-reg.sock")
        remove_dead(self._plugin_dir, f"dra-{ANY_UID}.sock")
        for path in (paths.dra, paths.registration):
            check_free(path)

    def _serve_http(self) -> None:
        metrics.initialise(driver=self._settings.driver_name, node=self._settings.node_name, version=__version__)
        if not self._settings.http_addr:
            return
        try:
            server = ObservabilityServer(self._settings.http_addr, self.ready, self.live, self.remarks)
        except (OSError, ValueError) as error:
            raise ConfigurationError(
                f"cannot listen on {self._settings.http_addr}: {error}: choose another --http-addr (HTTP_ADDR)"
            ) from error
        server.start()
        self._running.callback(server.stop)
        log.info("serving metrics and health", extra={"port": server.port})

    def _start_components(self) -> None:
        settings = self._settings
        found = self._assignments.watched(hardware.choose(settings, self._plugin_dir))
        nodes, names = HostDeviceNodes.of(found), CdiNames(settings.driver_name)
        provider = open_cdi(settings, found, nodes, names, writer := CdiWriter(settings.cdi_dir, names))
        rest = RestClient(Connection.load(settings.kubeconfig))
        own_node = self._watch_own_node(rest)
        gate, events = PrepareGate(), EventRecorder(rest, node_events.COMPONENT, settings.node_name)
        owned = OwnedBackend(found.backend)
        self._inventory = inventory = Inventory(owned, settings.poll_interval)
        self._claims = claims = ClaimManager.open(
            settings, self._plugin_dir,
            rest=rest, names=names, writer=writer, provider=provider, inventory=inventory, hardware=found,
            device_nodes=nodes, terms=lambda: self._terms.current() if self._terms is not None else {},
            watch=self._withholding, gate=gate, released=self._look_at_detach, changed=self._claims_changed,
        )  # fmt: skip
        self._running.callback(within, COMPONENT_STOP_S, claims.close)
        self._running.callback(within, COMPONENT_STOP_S, inventory.stop)
        owned.use_journal(claims.journal)
        self._terms = terms = self._open_policies(rest, claims)
        self._detaching = detaching = open_detaching(
            self._plugin_dir,
            found,
            inventory,
            gate=gate,
            claims=claims,
            own_node=own_node,
            events=events,
            changed=self._publish_changes,
            published=lambda: self._publisher is None or self._publisher.published,
        )
        inventory.start()
        if not detaching.is_detached and inventory.wait_first(FIRST_LOOK_S):
            terms.update(inventory.current())
        claims.recover()
        self._start_endpoints(claims)
        self._publisher = publisher = self._start_publisher(rest, events)
        self._running.callback(found.follow_faults(own_node, events), COMPONENT_STOP_S)
        self._follower = node = self._follow_node(own_node, events, publisher, inventory)
        held, taint, tell = partial(_held_gpus, claims), NodeTaint(), partial(node_events.tell, own_node, events)
        self._health = health = HealthService(
            settings, self._plugin_dir, found.backend, inventory, self._streams, claims=claims, held=held, terms=terms,
            publish=self._publish_changes, tell=tell, claim_events=open_claim_events(settings, rest, claims.journal),
            status=open_claim_status(settings, self._plugin_dir, rest, claims.journal, tell),
        )  # fmt: skip
        self._running.callback(health.stop, COMPONENT_STOP_S)
        conditions = [self._withholding.amend, self._fabric.amend, health.amend, node.amend, taint.amend]
        self._inventory_publisher = InventoryPublisher(
            *(inventory, provider, publisher, PublishedTerms(terms, conditions)),
            detach=detaching, conflict=node, taint=taint, held=held, complete=health.complete,
            driver_root=found.renew_root,
        )  # fmt: skip
        health.start()
        inventory.subscribe(self._inventory_publisher.changed)
        self._assignments.start(rest)
        self._running.callback(self._assignments.stop, COMPONENT_STOP_S)
        if settings.gpu_node:
            self._keep_gpu_node(rest, own_node, tell, hook_version=lambda: provider.hook_version)
        report = DeviceNodeReport(nodes, lambda: [gpu.minor for gpu in inventory.current().gpus], publisher.warn)
        self._start_maintenance(self._inventory_publisher, claims, detaching, report, node)

    def _keep_gpu_node(
        self, rest: RestClient, own_node: OwnNodeWatch, tell: Tell, hook_version: Callable[[], str | None]
    ) -> None:
        published, claims, health, policies = self._inventory_publisher, self._claims, self._health, self._policies
        assert published and claims and health and policies  # noqa: S101, PT018 - for the type checker; all are set before
        self._gpu_node = gpu_node = GpuNodeService(
            *(self._settings, rest, own_node, tell), published=published, journal=claims.journal, health=health,
            policies=policies, hook_version=hook_version, not_ready=self.ready, remarks=self.remarks,
        )  # fmt: skip
        gpu_node.start()
        self._running.callback(gpu_node.stop, COMPONENT_STOP_S)

    def _follow_node(
        self, own_node: OwnNodeWatch, events: EventRecorder, publisher: Publisher, inventory: Inventory
    ) -> NodeFollower:
        allowed, driver = self._settings.allow_second_publisher, self._settings.driver_name
        return NodeFollower(
            *(own_node, events, publisher, inventory, driver),
            folder=self._plugin_dir, allow_second=allowed, given_back=self._given_back,
        )  # fmt: skip

    def _given_back(self, gpus: Iterable[GpuUuid]) -> None:
        if self._health is not None:
            self._health.given_back(gpus)

    def _look_at_detach(self) -> None:
        if self._detaching is not None:
            self._detaching.wake()

    def _claims_changed(self) -> None:
        self._assignments.claims_changed()
        if self._gpu_node is not None:
            self._gpu_node.claims_changed()
        if self._health is not None:
            self._health.claims_changed()

    def _publish_changes(self) -> None:
        self._assignments.wake()
        if self._inventory_publisher is not None:
            self._inventory_publisher.check()

    def _watch_own_node(self, rest: RestClient) -> OwnNodeWatch:
        own_node = OwnNodeWatch(rest, self._settings.node_name)
        own_node.start()
        self._running.callback(within, COMPONENT_STOP_S, own_node.stop)
        return own_node

    def _open_policies(self, rest: RestClient, claims: ClaimManager) -> TermsResolver:
        objects = open_policy_watch(self._settings, rest, self._publish_changes)
        if objects is not None:
            self._running.callback(within, COMPONENT_STOP_S, objects.stop)
        self._policies = open_policies(self._settings, self._plugin_dir, objects)
        return TermsResolver(self._policies, claims.journal.uses)

    def _start_publisher(self, rest: RestClient, events: EventRecorder) -> Publisher:
        settings, lists = self._settings, self._settings.numa_node_as_list
        events.start()
        self._running.callback(events.stop, COMPONENT_STOP_S)
        publisher = Publisher.connect(rest, settings.driver_name, settings.node_name, events, lists=lists)
        publisher.start()
        self._running.callback(within, COMPONENT_STOP_S, publisher.stop)
        return publisher

    def _start_endpoints(self, claims: ClaimManager) -> None:
        prepares = service.prepare_threads()
        self._running.callback(prepares.shutdown, wait=False, cancel_futures=True)
        driver = self._settings.driver_name
        handlers = [*service.handlers(claims.service, driver, prepares), *self._streams.handlers()]
        self._endpoints = endpoints = Endpoints(self._paths, self._registration, handlers)
        endpoints.start()
        self._running.callback(self._stop_endpoints, endpoints)
        log.info("serving the kubelet", extra={"dra": self._paths.dra, "registration": self._paths.registration})

    def _stop_endpoints(self, endpoints: Endpoints) -> None:
        self._streams.stop()
        endpoints.stop(CALL_GRACE_S)

    def _start_maintenance(
        self,
        inventory_publisher: InventoryPublisher,
        claims: ClaimManager,
        detaching: Detaching,
        nodes: DeviceNodeReport,
        follower: NodeFollower,
    ) -> None:
        assert self._endpoints is not None  # noqa: S101 - for the type checker; _start_endpoints came before
        self._node_remarks = nodes.remarks
        service = claims.service
        files = ClaimFiles(self._settings.cdi_dir, service.rewrite_missing_files)
        # Not while detached: a search for driver files could open the driver.
        self._storage = storage = StorageHealth(
            self._folders(), lambda: () if detaching.is_detached else files.bring_back()
        )
        local = [
            *soon_chores(self._endpoints, detaching, self._plugin_dir, follower, self._publish_changes),
            Chore(name="driver-files", every_s=FILES_EVERY_S, work=inventory_publisher.check),
            Chore(name="disk", every_s=FILES_EVERY_S, work=storage.check),
            Chore(name="policies", every_s=FILES_EVERY_S, work=self._report_policies),
            Chore(name="conditions", every_s=FILES_EVERY_S, work=self._report_conditions),
            *([Chore(name="gpu-node", every_s=FILES_EVERY_S, work=self._gpu_node.look)] if self._gpu_node else []),
            Chore(name="gauges", every_s=GAUGES_EVERY_S, work=self._update_gauges),
            Chore(name="memory", every_s=MEMORY_EVERY_S, work=trimmer()),
        ]
        remote = [
            Chore(name="claims", every_s=MAINTAIN_EVERY_S, work=claims.maintain),
            Chore(name="hardware", every_s=SETTLE_EVERY_S, work=service.reclaim_orphans),
            Chore(name="journal-rebuild", every_s=REBUILD_EVERY_S, work=service.finish_rebuild),
            Chore(name="device-nodes", every_s=CHECK_EVERY_S, work=nodes.check),
        ]
        detaching.start()
        self._running.callback(detaching.stop, COMPONENT_STOP_S)
        bell = soon_bell(self._paths, follower)
        for maintenance in (Maintenance("maintenance", local, bell=bell), Maintenance("claim-maintenance", remote)):
            maintenance.start()
            self._running.callback(maintenance.stop, COMPONENT_STOP_S)

    def _folders(self) -> list[Folder]:
        return [
            Folder(path=Path(self._settings.cdi_dir), what="the CDI directory", setting="--cdi-dir"),
            Folder(path=self._plugin_dir, what="the driver's directory", setting="--kubelet-plugins-dir"),
        ]

    def _update_gauges(self) -> None:
        if self._publisher is not None:
            metrics.published.set(self._publisher.published)
        if self._claims is not None:
            gauges.update(self._claims, self._settings)

    def _report_policies(self) -> None:
        """Records an event for a wrong policy: its author reads the Node's events rather than this log."""
        assert self._terms is not None  # noqa: S101 - for the type checker; set before any chore runs
        problem = self._terms.problem
        metrics.policies_in_force.set(problem is None)
        news = problem is not None and problem != self._policy_problem
        if not news or (self._publisher is not None and self._publisher.warn("GpuPolicyProblem", problem or "")):
            self._policy_problem = problem

    def _report_conditions(self) -> None:
        """Records events for GPUs whose condition keeps devices from new claims."""
        if self._publisher is not None:
            self._withholding.report(self._publisher.warn)
            self._fabric.report(self._publisher.warn)
            if self._follower is not None:
                self._follower.report(self._publisher.warn)


def _held_gpus(claims: ClaimManager) -> set[GpuUuid]:
    return {use.gpu_uuid for use in claims.journal.uses()}
