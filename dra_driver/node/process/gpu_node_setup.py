"""Connects the GpuNode with what it tells: inventory, published terms, claims, health, policies and problems."""

from collections.abc import Callable
from functools import partial
from typing import Any, Final

from dra_driver import __version__
from dra_driver.config.settings import NodeSettings
from dra_driver.core.model.gpu_node import NO_USAGE, GpuNodeStatus, NodeProblem
from dra_driver.kube.own_node import OwnNodeWatch
from dra_driver.kube.rest import RestClient
from dra_driver.node.claims import Journal
from dra_driver.node.policy import PolicySource, standing_of
from dra_driver.node.process.gpu_node import GpuNodeKeeper
from dra_driver.node.process.gpu_node_status import NodeFacts, Versions, claims_by_gpu, status_of
from dra_driver.node.process.health_events import Tell
from dra_driver.node.process.health_setup import HealthService
from dra_driver.node.process.inventory_publisher import InventoryPublisher
from dra_driver.node.process.usage_setup import UsageReport

EVENT: Final = "GpuNodeNotWritten"
Sentences = Callable[[], list[str]]


class GpuNodeService:
    """The GpuNode of this node. ``look`` is called every few seconds; it costs microseconds while nothing changed.

    ``not_ready`` and ``remarks`` return sentences, as the HTTP endpoint has them.
    """

    def __init__(
        self,
        settings: NodeSettings,
        rest: RestClient,
        own_node: OwnNodeWatch,
        tell: Tell,
        *,
        published: InventoryPublisher,
        journal: Journal,
        health: HealthService,
        policies: PolicySource,
        hook_version: Callable[[], str | None],
        not_ready: Sentences,
        remarks: Sentences,
    ) -> None:
        self._settings, self._own_node, self._published, self._journal = settings, own_node, published, journal
        self._health, self._policies, self._hook_version = health, policies, hook_version
        self._not_ready, self._remarks = not_ready, remarks
        self._usage = self._open_usage(tell) if settings.usage else None
        self._seen: tuple[Any, ...] = ()
        self._claims_changed = True
        self._keeper = GpuNodeKeeper(
            rest, settings.node_name, self._collect, self._owner, partial(tell, "Warning", EVENT)
        )

    def start(self) -> None:
        self._keeper.start()

    def stop(self, timeout_s: float) -> None:
        """Idempotent."""
        self._keeper.stop(timeout_s)

    def claims_changed(self) -> None:
        """Claims came or left. Returns at once."""
        self._claims_changed = True

    def look(self) -> None:
        """Wakes the writer if anything may have changed."""
        known = self._published.known
        if known is None:
            return
        if self._usage is not None:
            self._usage.look(*known)
        told = self._usage.told if self._usage is not None else NO_USAGE
        standing = self._policies.standing
        seen = (*known, self._health.conditions, self._own_node.current(), standing.newest, standing.in_force, told)
        is_same = len(seen) == len(self._seen) and all(a is b for a, b in zip(seen, self._seen, strict=True))
        words = (self._not_ready(), self._remarks(), self._hook_version())
        if is_same and not self._claims_changed and words == self._words:
            return
        self._seen, self._words, self._claims_changed = seen, words, False
        self._keeper.wake()

    _words: tuple[Any, ...] = ()

    def _open_usage(self, tell: Tell) -> UsageReport:
        events = self._health.claim_events
        return UsageReport(self._settings, self._journal, tell, notify=events.tell if events is not None else None)

    def _owner(self) -> str:
        node = self._own_node.current()
        return node.uid if node is not None else ""

    def _collect(self) -> GpuNodeStatus | None:
        """Raises StorageError."""
        known, node = self._published.known, self._own_node.current()
        if known is None:
            return None
        snapshot, terms = known
        entries = self._journal.entries()
        holdings = [(each.gpu_uuid, entry.ref) for entry in entries for each in entry.devices if not each.admin_access]
        problems = [NodeProblem(reason="NotReady", message=text) for text in self._not_ready()]
        problems += [NodeProblem(reason="Degraded", message=text) for text in self._remarks()]
        if self._usage is not None and self._usage.problem is not None:
            problems.append(NodeProblem(reason="UsageFindings", message=self._usage.problem))
        facts = NodeFacts(
            snapshot=snapshot,
            terms=terms,
            uses=self._journal.uses(),
            conditions=self._health.conditions,
            missing=self._health.missing,
            watches_health=self._settings.health,
            policies=standing_of(
                self._policies.standing, snapshot, terms, self._settings.node_name, claims_by_gpu(holdings)
            ),
            problems=tuple(problems),
            usage=self._usage.told if self._usage is not None else NO_USAGE,
        )
        versions = Versions(
            node_process=__version__,
            nvml=snapshot.nvml_version,
            toolkit=self._hook_version(),
            container_runtime=(node.runtime or None) if node is not None else None,
            kernel=(node.kernel or None) if node is not None else None,
        )
        return status_of(facts, self._settings.driver_name, versions)
