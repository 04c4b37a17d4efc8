"""Builds the claim service over the plugin's directory.

Files there: ``state.db`` (the journal), ``owner-*.lock`` (one per running node process), ``locks`` (one file per GPU).
"""

import os
from collections.abc import Callable
from pathlib import Path

from msgspec import Struct, field

from dra_driver.core.model.gpu import Snapshot
from dra_driver.core.model.ids import PoolName
from dra_driver.core.model.terms import Terms
from dra_driver.hardware.cdi import CdiNames
from dra_driver.node.claims.boot import BOOT_ID, read_boot_id
from dra_driver.node.claims.dependencies import (
    CdiSources,
    ClaimCdiFiles,
    ClaimReader,
    DeviceNodes,
    Event,
    HardwareDependencies,
    NoDeviceNodes,
    RunLiveness,
)
from dra_driver.node.claims.gpu_locks import GpuLocks
from dra_driver.node.claims.journal import Journal
from dra_driver.node.claims.prepare_gate import PrepareGate
from dra_driver.node.claims.processes import ProcessRegistry
from dra_driver.node.claims.waiting import ClaimLocks, MonotonicClock, RetryPolicy, WakeableClock
from dra_driver.node.claims.workflow.service import ClaimService, ServiceJournal

JOURNAL = "state.db"
LOCKS = "locks"


def _default_terms() -> Terms:
    """Default terms for every GPU."""
    return {}


def _ignore(_event: Event) -> None:
    """Counts nothing."""


class ClaimDependencies(Struct, frozen=True, kw_only=True):
    """Everything that the claim service uses; satisfies the Protocols of ``workflow/`` and ``hardware/``.

    ``pool`` is this node's pool name. Without ``hardware`` the service prepares only claims that change no GPU.
    ``terms`` returns the terms in force.
    """

    pool: PoolName
    names: CdiNames
    reader: ClaimReader
    journal: ServiceJournal
    writer: ClaimCdiFiles
    provider: CdiSources
    device_nodes: DeviceNodes = field(default_factory=NoDeviceNodes)
    owners: RunLiveness
    snapshot: Callable[[], Snapshot]
    gpu_locks: GpuLocks
    hardware: HardwareDependencies | None = None
    terms: Callable[[], Terms] = _default_terms
    count: Callable[[Event], None] = _ignore
    clock: WakeableClock = field(default_factory=MonotonicClock)
    locks: ClaimLocks = field(default_factory=ClaimLocks)
    retry_policy: RetryPolicy = field(default_factory=RetryPolicy)
    gate: PrepareGate = field(default_factory=PrepareGate)


class Claims:
    """An open `service.ClaimService` with the journal and process registry that have to be closed after it.

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
    writer: ClaimCdiFiles,
    provider: CdiSources,
    snapshot: Callable[[], Snapshot],
    device_nodes: DeviceNodes | None = None,
    hardware: Callable[[Journal], HardwareDependencies] | None = None,
    terms: Callable[[], Terms] = _default_terms,
    count: Callable[[Event], None] = _ignore,
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
