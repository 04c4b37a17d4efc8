"""Puts the room together over one directory.

Owns which files are where in the plugin's directory: ``state.db`` (the journal), ``owner-*.lock`` (runs
alive) and ``locks`` (one file per GPU).
"""

import uuid
from collections.abc import Callable
from pathlib import Path

from dra_driver.cdi.names import CdiNames
from dra_driver.claims.boot import read_boot_id
from dra_driver.claims.dependencies import (
    CdiProvider,
    CdiWriter,
    ClaimDependencies,
    ClaimLister,
    ClaimReader,
    Event,
    HardwareDependencies,
)
from dra_driver.claims.gpu_locks import GpuLocks
from dra_driver.claims.journal.journal import Journal
from dra_driver.claims.processes import ProcessRegistry
from dra_driver.claims.waiting import RetryPolicy
from dra_driver.claims.workflow.service import ClaimService
from dra_driver.model.gpu import Snapshot
from dra_driver.model.ids import PoolName
from dra_driver.model.terms import Terms

JOURNAL = "state.db"
LOCKS = "locks"


class Claims:
    """An open `service.ClaimService` with what has to be closed after it.

    ``close`` once the last call is answered; it leaves journal, files and prepared claims as they are.
    """

    def __init__(self, service: ClaimService, journal: Journal, owners: ProcessRegistry) -> None:
        self.service = service
        self.journal = journal
        self._owners = owners

    @property
    def problem(self) -> str | None:
        """Why only a restart of the process helps (see `journal.Journal.problem`). Cheap enough for every probe."""
        return self.journal.problem

    def close(self) -> None:
        """Close the journal and stop counting as alive. Idempotent."""
        self.journal.close()
        self._owners.close()


def open_claims(
    directory: Path | str,
    *,
    pool: PoolName,
    names: CdiNames,
    reader: ClaimReader,
    writer: CdiWriter,
    provider: CdiProvider,
    snapshot: Callable[[], Snapshot],
    lister: ClaimLister | None = None,
    hardware: Callable[[Journal], HardwareDependencies] | None = None,
    terms: Callable[[], Terms] = lambda: {},
    count: Callable[[Event], None] = lambda _event: None,
    boot_id: str | None = None,
    retry_policy: RetryPolicy | None = None,
) -> Claims:
    """Open the journal in ``directory`` (made with mode 0700 when missing) and everything that works on it.

    ``hardware`` is handed the journal, in which it keeps its notes about GPUs (``mig.manager.GpuNotes``).
    Call ``service.recover()`` before the kubelet may call. ``boot_id`` None reads the kernel's. Raises `StorageError`
    and `ConfigurationError` as `journal.Journal.open` does.
    """
    directory = Path(directory)
    owners = ProcessRegistry.register(directory, uuid.uuid4().hex)
    try:
        boot = read_boot_id() if boot_id is None else boot_id
        journal = Journal.open(directory / JOURNAL, boot_id=boot, owner=owners.own)
    except BaseException:
        owners.close()
        raise
    deps = ClaimDependencies(
        pool=pool,
        names=names,
        reader=reader,
        journal=journal,
        writer=writer,
        provider=provider,
        owners=owners,
        snapshot=snapshot,
        gpu_locks=GpuLocks(directory / LOCKS),
        hardware=hardware(journal) if hardware else None,
        terms=terms,
        count=count,
        retry_policy=retry_policy or RetryPolicy(),
    )
    return Claims(ClaimService(deps, lister=lister), journal, owners)
