"""Opens, recovers, maintains, counts and closes the claims of one node process.

Chooses the dependencies that ``node/claims/`` is given. What preparing means is decided there.
"""

import logging
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Self

from dra_driver.config.settings import NodeSettings
from dra_driver.core.errors import ConfigurationError, StorageError
from dra_driver.core.model.terms import Terms
from dra_driver.core.telemetry import metrics
from dra_driver.hardware.cdi import CdiNames, CdiProvider, CdiWriter
from dra_driver.hardware.gpu.inventory import Inventory
from dra_driver.hardware.mig.manager import CreationWatch
from dra_driver.kube.claims import ApiClaimReader, BoundedGetter
from dra_driver.node.claims import Claims, ClaimService, Counts, Journal, PrepareGate, open_claims
from dra_driver.node.process.device_nodes import HostDeviceNodes
from dra_driver.node.process.hardware import MPS, Hardware
from dra_driver.node.slices import pool_name

log = logging.getLogger(__name__)

MAINTAIN_EVERY_S = 600.0
_RELEASES: frozenset[metrics.ClaimEvent] = frozenset({"unprepared", "undone", "collected"})
_REPAIRS: frozenset[metrics.ClaimEvent] = frozenset({"repeated", "waited", "file-rewritten", "orphan-removed"})


def _count(released: Callable[[], None], changed: Callable[[], None], event: metrics.ClaimEvent) -> None:
    metrics.claim_events_total.labels(event).inc()
    if event in _RELEASES:
        released()
    if event not in _REPAIRS:
        changed()


class ClaimManager:
    """``service`` serves the kubelet's calls; call ``recover`` before the first of them."""

    def __init__(self, claims: Claims) -> None:
        self._claims = claims
        self._stopping = threading.Event()

    @classmethod
    def open(
        cls,
        settings: NodeSettings,
        plugin_dir: Path,
        *,
        rest: BoundedGetter,
        names: CdiNames,
        writer: CdiWriter,
        provider: CdiProvider,
        inventory: Inventory,
        hardware: Hardware,
        device_nodes: HostDeviceNodes,
        terms: Callable[[], Terms],
        watch: CreationWatch | None = None,
        gate: PrepareGate,
        released: Callable[[], None],
        changed: Callable[[], None] = lambda: None,
    ) -> Self:
        """Opens the journal in ``plugin_dir``. Raises ConfigurationError when it cannot be opened.

        ``released`` is called when a claim may have left the journal, ``changed`` when one may have come or left; both
        have to return at once.
        """

        try:
            claims = open_claims(
                plugin_dir,
                pool=pool_name(settings.node_name, settings.driver_name),
                names=names,
                reader=ApiClaimReader(rest, settings.driver_name),
                writer=writer,
                provider=provider,
                device_nodes=device_nodes,
                snapshot=inventory.current,
                hardware=lambda journal: hardware.tools(
                    journal, plugin_dir / MPS, inventory.refresh, inventory.current, watch
                ),
                terms=terms,
                count=partial(_count, released, changed),
                boot_id_file=Path(settings.boot_id_file),
                gate=gate,
            )
        except StorageError as error:
            raise ConfigurationError(f"cannot start without a journal: {error}") from error
        return cls(claims)

    @property
    def service(self) -> ClaimService:
        return self._claims.service

    @property
    def journal(self) -> Journal:
        return self._claims.journal

    @property
    def problem(self) -> str | None:
        """Why claims cannot be prepared before this process is restarted: the journal is damaged, or was removed."""
        return self._claims.problem

    def recover(self) -> None:
        """Finishes or undoes what an earlier run left. What is impossible now is logged, and left to ``maintain``."""
        for sentence in self.service.recover().problems:
            log.warning("recovery is not complete", extra={"problem": sentence})

    def maintain(self) -> None:
        """Unprepares claims that the kubelet forgot and completes recovery. Waits for the API server."""
        self.service.maintain(self._stopping.is_set)

    def counts(self) -> Counts:
        """How many claims and devices the journal holds. Raises StorageError."""
        return self._claims.journal.counts()

    def close(self) -> None:
        """Ends ``maintain`` soon and closes the journal. Idempotent."""
        self._stopping.set()
        self._claims.close()
