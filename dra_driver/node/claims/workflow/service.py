"""All operations on the node's claims, for the kubelet plugin and the node process."""

import logging
import os
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TypeVar

from dra_driver.core.errors import DraError, RetryableError
from dra_driver.core.model.claim import AllocatedClaim, ClaimRef
from dra_driver.core.model.gpu import Snapshot
from dra_driver.core.model.ids import ClaimUid, PoolName
from dra_driver.core.model.terms import Terms
from dra_driver.core.telemetry import metrics
from dra_driver.hardware.cdi import CdiNames, CdiWriter
from dra_driver.node.claims import dependencies
from dra_driver.node.claims.hardware.release import reclaim_orphans
from dra_driver.node.claims.journal import Journal
from dra_driver.node.claims.processes import BOOT_ID, ProcessRegistry, read_boot_id
from dra_driver.node.claims.waiting import CallBudget, GpuLocks, PrepareGate, RetryPolicy
from dra_driver.node.claims.workflow.prepare import Preparer
from dra_driver.node.claims.workflow.rebuild import RebuildRetry
from dra_driver.node.claims.workflow.recover import (
    OutdatedFiles,
    RecoveryResult,
    StaleClaimCollector,
    recover,
    rewrite_files,
)
from dra_driver.node.claims.workflow.teardown import unprepare_claim
from dra_driver.node.claims.workflow.whole_gpus import Beginning, Prepared, forget_whole_gpus, prepare_whole_gpus

log = logging.getLogger(__name__)

READ_FOR_S = 2.0
"""Seconds for which `whole_gpus` reads of a claim stay valid. A later step reads again: its pod may have ended, and
the scheduler may have allocated other devices to it."""

Answer = TypeVar("Answer")


class ClaimService:
    """Prepares, unprepares, recovers and collects claims. One claim's error or defect does not affect other claims.

    Call ``recover`` before the first call of the kubelet. Then call, from one thread, ``maintain`` every ten minutes,
    ``reclaim_orphans`` every half minute and ``finish_rebuild`` every few seconds, and from the same or another thread
    ``rewrite_missing_files`` every few seconds; ``prepare`` and ``unprepare`` from any number of threads. Calls end
    within `waiting.RetryPolicy.call_s`; the service needs no stop.
    """

    def __init__(self, deps: dependencies.ClaimDependencies) -> None:
        self._deps = deps
        self._preparer = Preparer(deps)
        self._stale_claims = StaleClaimCollector(deps)
        self._rebuild = RebuildRetry(deps)
        self._outdated_files = OutdatedFiles(deps)
        self._file_problems: tuple[str, ...] = ()
        self._orphan_problems: tuple[str, ...] = ()
        self.gpu_locks = deps.gpu_locks
        """Excludes other changes of a GPU, in all processes."""

    def prepare(
        self, refs: Sequence[ClaimRef], *, within_s: float | None = None
    ) -> dict[ClaimUid, Prepared | DraError]:
        """Prepare the claims; returns each one's devices, or its error. Idempotent per claim.

        Claims for whole GPUs are prepared together (`whole_gpus`), other claims sequentially, within
        `waiting.RetryPolicy.call_s`, or less when the caller waits only ``within_s`` more seconds. A claim that does
        not start by then gets an error and stays unchanged.
        """
        budget = self._budget(within_s)
        begun = _begun(lambda: prepare_whole_gpus(self._deps, refs, budget), Beginning())
        clock, reads_until = self._deps.clock, self._deps.clock.now() + READ_FOR_S

        def read(uid: ClaimUid) -> AllocatedClaim | DraError | None:
            return begun.read.get(uid) if clock.now() < reads_until else None

        def prepare(ref: ClaimRef) -> Prepared:
            return self._preparer.prepare(ref, budget=budget, read=lambda: read(ref.uid))

        rest = [ref for ref in refs if ref.uid not in begun.answers]
        return begun.answers | self._answers(prepare, rest, "prepared", budget)

    def unprepare(self, refs: Sequence[ClaimRef], *, within_s: float | None = None) -> dict[ClaimUid, DraError | None]:
        """Unprepare the claims; returns None, or the error, for each. Time as in ``prepare``."""
        budget = self._budget(within_s)
        gone = _begun(lambda: forget_whole_gpus(self._deps, refs), frozenset[ClaimUid]())
        rest = [ref for ref in refs if ref.uid not in gone]
        return dict.fromkeys(gone) | self._answers(
            partial(unprepare_claim, self._deps, budget=budget), rest, "unprepared", budget
        )

    def recover(self) -> RecoveryResult:
        """Make journal, CDI files and hardware agree; errors become ``problems``. See `recover.recover`."""
        with self._deps.gate.work():
            return recover(self._deps)

    def rewrite_missing_files(self, *, may_miss: bool = True) -> tuple[str, ...]:
        """Write CDI files of prepared claims that are missing, or outdated because the driver has changed. Makes no API
        call.

        ``may_miss`` False: no file was removed, so files are not listed. Returns a message for each missing file that
        cannot be written, and logs new ones.
        """
        problems: list[str] = []
        try:
            for uid in rewrite_files(self._deps, problems) if may_miss else ():
                log.warning("CDI file of a prepared claim was missing; written again", extra={"uid": uid})
            for uid in self._outdated_files.rewrite():
                log.warning("driver changed; CDI file of a prepared claim was written again", extra={"uid": uid})
        except DraError as error:
            problems.append(str(error))
        _log_new(problems, self._file_problems, "CDI file cannot be restored; will retry")
        self._file_problems = tuple(problems)
        return self._file_problems

    @property
    def rebuild_pending(self) -> bool:
        """Return whether a new journal may lack claims that were prepared before it. Raises `StorageError`."""
        return self._deps.journal.rebuild_pending

    def finish_rebuild(self) -> None:
        """Rebuild a new journal if that is pending and due. Logs errors. Calls the API server, so it can take half a
        minute."""
        self._rebuild.try_if_due()

    def reclaim_orphans(self) -> None:
        """Restore GPUs that no claim needs in their changed state. Cheap while no GPU has a note. Logs new problems."""
        problems: list[str] = []
        try:
            with self._deps.gate.work():
                reclaim_orphans(self._deps, problems)
        except DraError as error:
            problems.append(str(error))
        _log_new(problems, self._orphan_problems, "GPU settings are not restored yet; will retry")
        self._orphan_problems = tuple(problems)

    def maintain(self, stopping: Callable[[], bool] = lambda: False) -> None:
        """Run the work of every ten minutes: `recover`, free stale claims, compact the journal. Logs errors."""
        try:
            for problem in self.recover().problems:
                log.warning("claims are not fully recovered; will retry", extra={"reason": problem})
            self._stale_claims.collect(stopping)
            self._deps.journal.tidy()
        except DraError as error:
            log.warning("maintenance of claims failed; will retry", extra={"reason": str(error)})

    def _budget(self, within_s: float | None) -> CallBudget:
        return self._deps.retry_policy.budget(self._deps.clock.now(), within_s)

    def _answers(
        self, work: Callable[[ClaimRef], Answer], refs: Sequence[ClaimRef], what: str, budget: CallBudget
    ) -> dict[ClaimUid, Answer | DraError]:
        answers: dict[ClaimUid, Answer | DraError] = {}
        for ref in refs:
            in_time = self._deps.clock.now() < budget.deadline
            answers[ref.uid] = _guarded(work, ref, what) if in_time else _late(ref, what)
        return answers


def _log_new(problems: Sequence[str], before: Sequence[str], message: str) -> None:
    for problem in problems:
        if problem not in before:
            log.warning(message, extra={"reason": problem})


def _begun(work: Callable[[], Answer], nothing: Answer) -> Answer:
    """Process all claims of a call together; after a defect in that, the caller processes each claim separately."""
    try:
        return work()
    except Exception:  # a fence: each claim still gets an answer
        log.exception("joint processing of claims failed; continuing one by one")
        metrics.internal_error("claims")
        return nothing


def _late(ref: ClaimRef, what: str) -> DraError:
    return RetryableError(
        f"claim {ref} was not {what}: this call's time ended before the claim was started (many calls at the same "
        "time, or other claims of the pod that had to wait); the kubelet tries again"
    )


def _guarded(work: Callable[[ClaimRef], Answer], ref: ClaimRef, what: str) -> Answer | DraError:
    try:
        return work(ref)
    except DraError as error:
        return error
    except Exception as error:  # a defect in one claim must not affect the answers of others
        log.exception("claim failed unexpectedly", extra={"claim": str(ref)})
        metrics.internal_error("claims")
        return DraError(
            f"claim {ref} could not be {what}: unexpected {type(error).__name__}; the driver's log has the details"
        )


class Claims:
    """An open `ClaimService` with the journal and process registry that are closed after it.

    Call ``close`` after the last call is answered; it leaves journal, files and prepared claims as they are.
    """

    def __init__(self, service: ClaimService, journal: Journal, owners: ProcessRegistry) -> None:
        self.service = service
        self.journal = journal
        self._owners = owners

    @property
    def problem(self) -> str | None:
        """The reason why only a restart of the process helps, else None. Cheap enough for probes."""
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
    reader: dependencies.ClaimReader,
    writer: CdiWriter,
    metadata: bool = False,
    provider: dependencies.CdiSources,
    snapshot: Callable[[], Snapshot],
    device_nodes: dependencies.DeviceNodes | None = None,
    hardware: Callable[[Journal], dependencies.HardwareDependencies] | None = None,
    terms: Callable[[], Terms] = dict,
    count: Callable[[dependencies.Event], None] = lambda _event: None,
    boot_id: str | None = None,
    boot_id_file: Path = BOOT_ID,
    retry_policy: RetryPolicy | None = None,
    gate: PrepareGate | None = None,
) -> Claims:
    """Open the journal in ``directory`` (created with mode 0700 when missing) and build the service on it.

    Files there: ``state.db`` (the journal), ``owner-*.lock`` (one per running node process), ``locks`` (one file per
    GPU). ``hardware`` is called with the journal, which stores the notes about GPUs (`gpu.notes.GpuNotes`). Call
    ``service.recover()`` before the kubelet may call. Raises `StorageError` and `ConfigurationError` as `Journal.open`.
    """
    directory = Path(directory)
    owners = ProcessRegistry.register(directory, os.urandom(16).hex())
    try:
        boot = read_boot_id(boot_id_file) if boot_id is None else boot_id
        journal = Journal.open(directory / "state.db", boot_id=boot, owner=owners.own)
    except BaseException:
        owners.close()
        raise
    deps = dependencies.ClaimDependencies(
        pool=pool,
        names=names,
        reader=reader,
        journal=journal,
        writer=writer,
        metadata=metadata,
        provider=provider,
        device_nodes=device_nodes or dependencies.NoDeviceNodes(),
        owners=owners,
        snapshot=snapshot,
        gpu_locks=GpuLocks(directory / "locks"),
        hardware=hardware(journal) if hardware else None,
        terms=terms,
        count=count,
        retry_policy=retry_policy or RetryPolicy(),
        gate=gate or PrepareGate(),
    )
    return Claims(ClaimService(deps), journal, owners)
