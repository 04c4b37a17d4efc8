"""Builds the claim service over the plugin's directory.

Files there: ``state.db`` (the journal), ``owner-*.lock`` (one per running node process), ``locks`` (one file per GPU).
"""

import os
from collections.abc import Callable
from pathlib import Path

from dra_driver.core.model.gpu import Snapshot
from dra_driver.core.model.ids import PoolName
from dra_driver.core.model.terms import Terms
from dra_driver.hardware.cdi import CdiNames, CdiWriter
from dra_driver.node.claims.dependencies import (
    CdiSources,
    ClaimDependencies,
    ClaimReader,
    DeviceNodes,
    Event,
    HardwareDependencies,
    NoDeviceNodes,
)
from dra_driver.node.claims.gpu_locks import GpuLocks
from dra_driver.node.claims.journal import Journal
from dra_driver.node.claims.prepare_gate import PrepareGate
from dra_driver.node.claims.processes import BOOT_ID, ProcessRegistry, read_boot_id
from dra_driver.node.claims.waiting import RetryPolicy
from dra_driver.node.claims.workflow.service import ClaimService

JOURNAL = "state.db"
LOCKS = "locks"


class Claims:
    """An open `ClaimService` with the journal and process registry that have to be closed after it.

    Call ``close`` after the last call is answered; it leaves journal, files and prepared claims as they are.
    """

    def __init__(self, service: ClaimService, journal: Journal, owners: ProcessRegistry) -> None:
        self.service = service
        self.journal = journal
        self._owners = owners

    @property
    def problem(self) -> str | None:
        """Why only a restart of the process helps (`journal.Journal.problem`), else None. Cheap enough for probes."""
        return self.journal.problem

    def close(self) -> None:
        """Close the journal and unregister this process. Idempotent."""
        self.journal.close()
        self._owners.close()


def open_claims(
    directory: Path | str,
    *,
    pool: PoolName,
    names: CdiNames,
    reader: ClaimReader,
    writer: CdiWriter,
    provider: CdiSources,
    snapshot: Callable[[], Snapshot],
    device_nodes: DeviceNodes | None = None,
    hardware: Callable[[Journal], HardwareDependencies] | None = None,
    terms: Callable[[], Terms] = dict,
    count: Callable[[Event], None] = lambda _event: None,
    boot_id: str | None = None,
    boot_id_file: Path = BOOT_ID,
    retry_policy: RetryPolicy | None = None,
    gate: PrepareGate | None = None,
) -> Claims:
    """Open the journal in ``directory`` (created with mode 0700 when missing) and build the service on it.

    ``hardware`` is called with the journal, which stores the notes about GPUs (`gpu.notes.GpuNotes`). Call
    ``service.recover()`` before the kubelet may call. ``boot_id`` None reads it from ``boot_id_file``. Raises
    `StorageError` and `ConfigurationError` as `journal.Journal.open` does.
    """
    directory = Path(directory)
    owners = ProcessRegistry.register(directory, os.urandom(16).hex())
    try:
        boot = read_boot_id(boot_id_file) if boot_id is None else boot_id
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
        device_nodes=device_nodes or NoDeviceNodes(),
        owners=owners,
        snapshot=snapshot,
        gpu_locks=GpuLocks(directory / LOCKS),
        hardware=hardware(journal) if hardware else None,
        terms=terms,
        count=count,
        retry_policy=retry_policy or RetryPolicy(),
        gate=gate or PrepareGate(),
    )
    return Claims(ClaimService(deps), journal, owners)
