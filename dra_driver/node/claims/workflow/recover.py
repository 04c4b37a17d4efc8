"""Make journal, CDI files and hardware agree: at start, and periodically.

An entry or a file is removed only when no claim can need it.

- *Earlier boot.* No container, and no partition or setting, survives a reboot. Entries with files only are removed;
  entries that changed hardware are torn down, which checks the hardware. The kubelet prepares again for pods whose
  sandbox it recreates, and unprepares all other pods.
- *Incomplete.* Entries in state ``preparing`` or ``unpreparing`` of a dead run are torn down.
- *Orphaned.* `reclaim_orphans`, but not before a new journal is rebuilt.
- *Prepared, without a CDI file.* The file is written again, for containers that restart before the next prepare.
- *CDI file without an entry.* Removed, unless the journal itself is new: then `rebuild.rebuild` uses the files.
- *Stale.* `StaleClaimCollector` frees claims that ended without the kubelet's call.
"""

import logging
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager

from msgspec import Struct

from dra_driver.core import errors
from dra_driver.core.model.gpu import Snapshot
from dra_driver.core.model.ids import ClaimUid, GpuUuid
from dra_driver.node.claims.dependencies import ClaimDependencies
from dra_driver.node.claims.entry import AttemptToken, Entry, State
from dra_driver.node.claims.hardware.release import reclaim_orphans
from dra_driver.node.claims.hardware.settings import LOST_AT_REBOOT
from dra_driver.node.claims.waiting import GpuLockedError
from dra_driver.node.claims.workflow.cdi_document import verify_prepared
from dra_driver.node.claims.workflow.rebuild import rebuild
from dra_driver.node.claims.workflow.teardown import is_abandoned, is_of_earlier_boot, teardown

log = logging.getLogger(__name__)

GPU_BUSY_S = 1.0
"""Seconds to wait for a busy GPU: the kubelet's next call waits longer, and a start should not."""
VERIFY_S = 1.0
MOST_S = 10.0
"""Seconds after which the rest of a list is left to the next round, because the kubelet needs answers soon after a
start. A hanging MPS host or NVIDIA driver costs each claim its second."""
GRACE_S = 600.0


class RecoveryResult(Struct, frozen=True, kw_only=True):
    """The claims changed. ``problems`` are messages about failures that will be retried."""

    earlier_boot: tuple[ClaimUid, ...] = ()
    undone: tuple[ClaimUid, ...] = ()
    adopted: tuple[ClaimUid, ...] = ()
    rewritten: tuple[ClaimUid, ...] = ()
    orphans: tuple[ClaimUid, ...] = ()
    problems: tuple[str, ...] = ()


def recover(deps: ClaimDependencies) -> RecoveryResult:
    """Carry out everything above. Run it before the kubelet is answered; safe at any later time, and repeatable.

    Errors of the `DraError` tree become ``problems``. Reads claims from the API server only when the journal is new and
    traces of claims exist.
    """
    problems: list[str] = []
    earlier: tuple[ClaimUid, ...] = ()
    undone = adopted = rewritten = orphans = earlier
    with _reported(problems):
        deps.journal.drop_older_notes(LOST_AT_REBOOT)
        earlier = deps.journal.drop_older_boots()
    with _reported(problems):
        undone = tuple(teardown_abandoned(deps, problems))
    with _reported(problems):
        adopted = rebuild(deps, problems)
    with _reported(problems):
        reclaim_orphans(deps, problems)
    with _reported(problems):
        deps.journal.write_all_backups()
    with _reported(problems):
        rewritten = tuple(rewrite_files(deps, problems))
    with _reported(problems):
        orphans = remove_orphaned_files(deps)
    found = RecoveryResult(
        earlier_boot=earlier,
        undone=undone,
        adopted=adopted,
        rewritten=rewritten,
        orphans=orphans,
        problems=tuple(problems),
    )
    _report(found)
    return found


def teardown_abandoned(deps: ClaimDependencies, problems: list[str]) -> Iterator[ClaimUid]:
    """Tear down claims that dead runs left incomplete, and claims of earlier boots, for about `MOST_S`."""
    deadline = deps.clock.now() + MOST_S
    for entry in deps.journal.entries():
        if entry.state is State.PREPARED and not is_of_earlier_boot(deps, entry):
            continue
        if deps.clock.now() > deadline:
            problems.append(
                f"claim {entry.ref}, perhaps with others, stays incomplete: tearing down the claims before it took all "
                "of the time; the driver tries again"
            )
            return
        with deps.locks.acquire(entry.ref.uid, 0.0) as acquired:
            now = deps.journal.entry(entry.ref.uid) if acquired else None
            if now is None or not is_abandoned(deps, now):
                continue
            try:
                done = teardown(deps, now.ref.uid, only=now.attempt, within_s=GPU_BUSY_S)
            except errors.DraError as error:
                problems.append(f"claim {entry.ref} stays incomplete: {error}")
                continue
        if done:
            deps.count("undone")
            yield entry.ref.uid


def rewrite_files(deps: ClaimDependencies, problems: list[str]) -> Iterator[ClaimUid]:
    """Write the missing CDI files of prepared claims. A repeated prepare checks files that exist.

    Cheap when none is missing (it lists the directory and the journal's UIDs). Ends after about `MOST_S`.
    """
    deadline = deps.clock.now() + MOST_S
    without = deps.journal.uids() - frozenset(deps.writer.claim_uids())
    found = (deps.journal.entry(uid) for uid in sorted(without))
    missing = [entry for entry in found if entry is not None and entry.state is State.PREPARED]
    if missing:
        deps.provider.ensure_base()
    for entry in missing:
        if deps.clock.now() > deadline:
            problems.append(
                f"the CDI file of claim {entry.ref} is missing, perhaps with others: writing the files before it took "
                "all of the time; the driver tries again"
            )
            return
        try:
            if _rewrite(deps, entry):
                deps.count("file-rewritten")
                yield entry.ref.uid
        except errors.DraError as error:
            problems.append(f"the CDI file of claim {entry.ref} is missing and cannot be written: {error}")


def remove_orphaned_files(deps: ClaimDependencies) -> tuple[ClaimUid, ...]:
    """Remove this driver's CDI files that belong to no entry; none while a rebuild is pending."""
    with deps.journal.exclusive():  # otherwise another process could begin a claim and write its file in between
        if deps.journal.rebuild_pending:
            return ()
        removed = tuple(deps.writer.remove_orphans(deps.journal.uids()))
    for _ in removed:
        deps.count("orphan-removed")
    return removed


def _rewrite(deps: ClaimDependencies, entry: Entry) -> bool:
    _, document = verify_prepared(deps, entry, deps.snapshot(), within_s=VERIFY_S)
    with deps.locks.acquire(entry.ref.uid, 0.0) as acquired, deps.journal.exclusive():
        now = deps.journal.entry(entry.ref.uid)
        if not acquired or now is None or now.attempt != entry.attempt or now.state is not State.PREPARED:
            return False  # another call works on the claim
        return deps.writer.write_claim(entry.ref.uid, document)


@contextmanager
def _reported(problems: list[str]) -> Iterator[None]:
    """Add an error of the `DraError` tree to ``problems``; later steps still run."""
    try:
        yield
    except errors.DraError as error:
        problems.append(str(error))


def _report(found: RecoveryResult) -> None:
    counts = {
        "earlier_boot": len(found.earlier_boot),
        "undone": len(found.undone),
        "adopted": len(found.adopted),
        "rewritten": len(found.rewritten),
        "orphans": len(found.orphans),
    }
    if any(counts.values()):
        log.info("claims recovered", extra=counts)


class OutdatedFiles:
    """Rewrites CDI files of prepared claims after the driver's directory or device numbers changed. Used by one thread.

    A claim's document has the driver root's path and numbers that the kernel assigns when a module is loaded
    (``nvidia-uvm`` and ``nvidia-caps`` have no fixed major) or a GPU is bound (``/dev/nvidia<minor>``). A container
    that restarts with an outdated document would not start, or would get other devices. A new run checks every prepared
    claim once.
    """

    def __init__(self, deps: ClaimDependencies) -> None:
        self._deps = deps
        self._driver: Hashable | None = None
        self._gpus: Snapshot | None = None
        self._minors: dict[GpuUuid, int] = {}
        self._todo: frozenset[ClaimUid] = frozenset()

    def rewrite(self) -> Iterator[ClaimUid]:
        """Write the files that differ, for about `recover.MOST_S`; the next call continues.

        Cheap while driver and GPUs stay the same. A claim that cannot be checked now (its GPU is locked, the driver is
        detached) is checked at the next call; a claim without its device, when a GPU appears. Raises `StorageError`.
        """
        driver, gpus = self._deps.provider.driver_identity, self._deps.snapshot()
        if driver is None or (gpus is self._gpus and driver == self._driver and not self._todo):
            return
        minors = {gpu.uuid: gpu.minor for gpu in gpus.gpus}
        if driver != self._driver or minors.items() - self._minors.items():
            self._todo = self._deps.journal.uids()
        self._driver, self._gpus, self._minors = driver, gpus, minors
        deadline = self._deps.clock.now() + MOST_S
        for uid in sorted(self._todo):
            if self._deps.clock.now() > deadline:
                return
            changed, done = self._rewrite(uid)
            if done:
                self._todo -= {uid}
            if changed:
                self._deps.count("file-rewritten")
                yield uid

    def _rewrite(self, uid: ClaimUid) -> tuple[bool, bool]:
        """Return whether the file was written, and whether the claim needs no further check."""
        try:
            entry = self._deps.journal.entry(uid)
            return entry is not None and entry.state is State.PREPARED and _rewrite(self._deps, entry), True
        except (errors.DeviceLostError, errors.ClaimError) as error:
            log.warning("cannot update the CDI file of a prepared claim", extra={"uid": uid, "reason": error})
            return False, True
        except errors.DraError as error:
            log.debug("CDI file of a prepared claim is checked later", extra={"uid": uid, "reason": error})
            return False, False


class StaleClaimCollector:
    """Frees prepared claims that ended according to the API server and are unknown to the kubelet. For one thread.

    The kubelet unprepares claims until it succeeds, unless it lost its own record (a wiped node directory, a pod
    deleted by force while the driver was away). A claim is freed when at two checks at least ``grace_s`` apart the API
    server reports it deleted, replaced, not allocated, or allocated other devices. An error does not count. The grace
    period is for containers that outlive a pod deleted by force; it restarts with the process.
    """

    def __init__(self, deps: ClaimDependencies, *, grace_s: float = GRACE_S) -> None:
        self._deps = deps
        self._grace_s = grace_s
        self._suspected: dict[ClaimUid, tuple[AttemptToken, float]] = {}  # the attempt, and since when on the clock

    def collect(self, stopping: Callable[[], bool] = lambda: False) -> tuple[ClaimUid, ...]:
        """Check every prepared claim once, with one API read each; return the claims freed. Ends early when
        ``stopping``.

        Raises `StorageError` when the journal cannot be read or written; claims freed until then stay freed.
        """
        entries = [entry for entry in self._deps.journal.entries() if entry.state is State.PREPARED]
        self._suspected = {entry.ref.uid: s for entry in entries if (s := self._suspected.get(entry.ref.uid))}
        freed: list[ClaimUid] = []
        for entry in entries:
            if stopping():
                break
            try:
                reason = self._why_over(entry)
            except errors.DraError as error:
                facts = {"claim": str(entry.ref), "reason": str(error)}
                log.debug("prepared claim cannot be checked; will retry", extra=facts)
                continue
            if self._is_due(entry, reason) and self._free(entry, reason or ""):
                freed.append(entry.ref.uid)
        return tuple(freed)

    def _why_over(self, entry: Entry) -> str | None:
        """The reason why the claim has ended, None if it has not. Raises when that is unknown."""
        try:
            claim = self._deps.reader.read(entry.ref)
        except (errors.ClaimReplacedError, errors.ClaimNotAllocatedError) as error:
            return str(error)
        allocated = {(result.pool, result.device, result.share_id) for result in claim.results}
        assigned = {(device.pool, device.device, device.share_id) for device in entry.devices}
        return None if assigned <= allocated else f"claim {entry.ref} is allocated to other devices now"

    def _is_due(self, entry: Entry, reason: str | None) -> bool:
        if reason is None:
            self._suspected.pop(entry.ref.uid, None)
            return False
        now = self._deps.clock.now()
        known = self._suspected.get(entry.ref.uid)
        if known is None or known[0] != entry.attempt:
            self._suspected[entry.ref.uid] = entry.attempt, now
            return False
        return now - known[1] >= self._grace_s

    def _free(self, entry: Entry, reason: str) -> bool:
        with self._deps.locks.acquire(entry.ref.uid, 0.0) as acquired:
            if not acquired:
                return False  # a call works on it, so the kubelet knows it
            try:
                if not teardown(self._deps, entry.ref.uid, only=entry.attempt):
                    return False
            except (errors.HardwareError, GpuLockedError) as error:
                # Its state is ``unpreparing`` now, from which `recover` continues.
                log.warning("stale claim is not freed yet; will retry", extra={"reason": str(error)})
                return False
        del self._suspected[entry.ref.uid]
        self._deps.count("collected")
        log.warning("stale claim freed", extra={"claim": str(entry.ref), "reason": reason})
        return True
