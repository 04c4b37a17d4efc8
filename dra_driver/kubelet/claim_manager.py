"""The claims room as the node process uses it: opened, recovered, looked after, counted, closed.

Owns which collaborators the claims room is given, and when it is asked to look after itself. Refuses to know what
preparing means.
"""

import logging
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Self

from dra_driver.cdi.names import CdiNames
from dra_driver.cdi.provider import CdiProvider
from dra_driver.cdi.writer import CdiWriter
from dra_driver.claims.assembly import Claims, open_claims
from dra_driver.claims.journal.journal import Counts, Journal
from dra_driver.claims.workflow.service import ClaimService
from dra_driver.config.settings import NodeSettings
from dra_driver.errors import ConfigurationError, StorageError
from dra_driver.gpu.inventory import Inventory
from dra_driver.kube.claim_list import ApiClaimLister
from dra_driver.kube.claims import ApiClaimReader
from dra_driver.kube.rest import RestClient
from dra_driver.kubelet.hardware import MPS, Hardware
from dra_driver.model.terms import Terms
from dra_driver.slices.build import pool_name
from dra_driver.telemetry import metrics

log = logging.getLogger(__name__)

MAINTAIN_EVERY_S = 600.0


class ClaimManager:
    """``service`` is what the kubelet's calls go to; ``recover`` comes before the first of them."""

    def __init__(self, claims: Claims) -> None:
        self._claims = claims
        self._stopping = threading.Event()

    @classmethod
    def open(
        cls,
        settings: NodeSettings,
        plugin_dir: Path,
        *,
        rest: RestClient,
        names: CdiNames,
        writer: CdiWriter,
        provider: CdiProvider,
        inventory: Inventory,
        hardware: Hardware,
        terms: Callable[[], Terms],
    ) -> Self:
        """Opens the journal in ``plugin_dir``. Raises ConfigurationError when that is impossible."""
        try:
            claims = open_claims(
                plugin_dir,
                pool=pool_name(settings.node_name, settings.driver_name),
                names=names,
                reader=ApiClaimReader(rest, settings.driver_name),
                lister=ApiClaimLister(rest, settings.driver_name),
                writer=writer,
                provider=provider,
                snapshot=inventory.current,
                hardware=lambda journal: hardware.tools(journal, plugin_dir / MPS, inventory.refresh),
                terms=terms,
                count=lambda event: metrics.claim_events_total.labels(event).inc(),
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
        """Why claims cannot be prepared until this process is started again: the journal is damaged, or gone."""
        return self._claims.problem

    def recover(self) -> None:
        """Finishes or undoes what an earlier run left; what cannot be done yet is logged, and done by ``maintain``."""
        for sentence in self.service.recover().problems:
            log.warning("recovery is not complete", extra={"problem": sentence})

    def maintain(self) -> None:
        """Looks after claims that the kubelet forgot, and what recovery could not do. Slow when the API is."""
        self.service.maintain(self._stopping.is_set)

    def counts(self) -> Counts:
        """What the journal holds; raises StorageError."""
        return self._claims.journal.counts()

    def close(self) -> None:
        """Ends ``maintain`` soon and closes the journal. Idempotent."""
        self._stopping.set()
        self._claims.close()
