"""Makes journal, CDI files and reality agree: at start, and again now and then.

Owns what may be concluded from what. Refuses to guess: an entry or a file goes only when it is known to be nobody's.

- *An earlier boot.* Its entries go. No container survives a reboot; the kubelet prepares again for pods whose sandbox
  it makes anew (it does not remember across its own restart what was prepared) and unprepares the others, for which
  "not prepared" is success. Partitions, compute modes and time slices do not outlive one either, but nobody relies on
  that: entries that changed hardware are undone, which looks for partitions and ends daemons whose files are there.
- *Half done.* Entries in state ``preparing`` or ``unpreparing`` whose run of the driver is dead are undone: the kubelet
  was never told that the first kind is prepared, and was on its way to have the second kind gone.
- *Nobody's.* MIG modes, settings, daemons and partitions that are ours and that no entry needs: see `settle`. Not
  before a new journal is rebuilt: until then somebody may need them whom nobody here knows.
- *Prepared, but no CDI file.* Written again, so that a container that restarts before the next prepare starts.
- *A CDI file, but no entry.* Removed, unless the journal itself is new: then the files are what is known, and
  `rebuild.rebuild` asks the API server whose they are.
"""

import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from dra_driver.claims.dependencies import ClaimDependencies, ClaimLister
from dra_driver.claims.entry import Entry, State
from dra_driver.claims.hardware.orphans import LOST_AT_REBOOT, reclaim_orphans
from dra_driver.claims.workflow.rebuild import rebuild
from dra_driver.claims.workflow.teardown import is_abandoned, is_of_earlier_boot, teardown
from dra_driver.claims.workflow.verify import verify_prepared
from dra_driver.errors import DraError
from dra_driver.model.ids import ClaimUid

log = logging.getLogger(__name__)

UNDO_S = 1.0
"""For how long a busy GPU is waited for here: the kubelet's next call waits longer, and no start should."""
LOOK_S = 1.0
MOST_S = 10.0
"""After this long the rest of a list is left to the next time: the kubelet has to be answered at some time after a
start, and a host or driver that hangs costs every claim its second."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recovery:
    """What was found and done; ``problems`` are sentences about what could not be done and is tried again."""

    earlier_boot: tuple[ClaimUid, ...] = ()
    undone: tuple[ClaimUid, ...] = ()
    adopted: tuple[ClaimUid, ...] = ()
    rewritten: tuple[ClaimUid, ...] = ()
    orphans: tuple[ClaimUid, ...] = ()
    problems: tuple[str, ...] = ()


def recover(deps: ClaimDependencies, lister: ClaimLister | None) -> Recovery:
    """Carry out everything above. Run it before the kubelet is answered; safe at any later time, and repeatable.

    Never raises for the world's faults: they end in ``problems`` for the caller to report. ``lister``
    is asked once at most, and only when the journal is new while CDI files are there; None leaves it for later.
    """
    problems: list[str] = []
    earlier = _run_step(problems, lambda: _forget_older_boots(deps))
    undone = _run_step(problems, lambda: tuple(teardown_abandoned(deps, problems)))
    adopted = _run_step(problems, lambda: rebuild(deps, lister, problems))
    _run_step(problems, lambda: _reclaim_orphans(deps, problems))
    _run_step(problems, lambda: _write_backups(deps))
    rewritten = _run_step(problems, lambda: tuple(rewrite_files(deps, problems)))
    orphans = _run_step(problems, lambda: remove_orphans(deps))
    found = Recovery(
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
    """Undo what dead runs left half done, and what is left of earlier boots, for about `MOST_S`."""
    deadline = deps.clock.now() + MOST_S
    for entry in deps.journal.entries():
        if entry.state is State.PREPARED and not is_of_earlier_boot(deps, entry):
            continue
        if deps.clock.now() > deadline:
            problems.append(f"claim {entry.ref} stays half done, with others perhaps: this took too long already")
            return
        with deps.locks.acquire(entry.ref.uid, 0.0) as acquired:
            now = deps.journal.entry(entry.ref.uid) if acquired else None
            if now is None or not is_abandoned(deps, now):
                continue
            try:
                done = teardown(deps, now.ref.uid, only=now.attempt, within_s=UNDO_S)
            except DraError as error:
                problems.append(f"claim {entry.ref} stays half done: {error}")
                continue
        if done:
            deps.count("undone")
            yield entry.ref.uid


def rewrite_files(deps: ClaimDependencies, problems: list[str]) -> Iterator[ClaimUid]:
    """Write the CDI files of prepared claims that have none. Files that are there are left to a repeated prepare.

    Cheap when none is missing: it lists the directory and the journal's UIDs, and is fit for every few seconds. Ends
    after about `MOST_S`.
    """
    deadline = deps.clock.now() + MOST_S
    without = deps.journal.uids() - frozenset(deps.writer.claim_uids())
    found = (deps.journal.entry(uid) for uid in sorted(without))
    missing = [entry for entry in found if entry is not None and entry.state is State.PREPARED]
    if missing:
        deps.provider.ensure_base()
    for entry in missing:
        if deps.clock.now() > deadline:
            problems.append(f"the CDI file of claim {entry.ref} is missing, with others perhaps: no time for it yet")
            return
        try:
            if _rewrite(deps, entry):
                deps.count("file-rewritten")
                yield entry.ref.uid
        except DraError as error:
            problems.append(f"the CDI file of claim {entry.ref} is missing and cannot be written: {error}")


def _forget_older_boots(deps: ClaimDependencies) -> tuple[ClaimUid, ...]:
    deps.journal.drop_older_notes(LOST_AT_REBOOT)
    return deps.journal.drop_older_boots()


def _reclaim_orphans(deps: ClaimDependencies, problems: list[str]) -> tuple[ClaimUid, ...]:
    reclaim_orphans(deps, problems)
    return ()


def _write_backups(deps: ClaimDependencies) -> tuple[ClaimUid, ...]:
    deps.journal.write_all_backups()
    return ()


def _rewrite(deps: ClaimDependencies, entry: Entry) -> bool:
    _, document = verify_prepared(deps, entry, deps.snapshot(), within_s=LOOK_S)
    with deps.locks.acquire(entry.ref.uid, 0.0) as acquired, deps.journal.exclusive():
        now = deps.journal.entry(entry.ref.uid)
        if not acquired or now is None or now.attempt != entry.attempt or now.state is not State.PREPARED:
            return False  # somebody is at it
        return deps.writer.write_claim(entry.ref.uid, document)


def remove_orphans(deps: ClaimDependencies) -> tuple[ClaimUid, ...]:
    """Remove our CDI files that belong to no entry; none while it is unknown what was prepared."""
    with deps.journal.exclusive():  # otherwise another process could begin a claim and write its file in between
        if deps.journal.rebuild_pending:
            return ()
        removed = tuple(deps.writer.remove_orphans(deps.journal.uids()))
    for _ in removed:
        deps.count("orphan-removed")
    return removed


def _run_step(problems: list[str], step: Callable[[], tuple[ClaimUid, ...]]) -> tuple[ClaimUid, ...]:
    try:
        return step()
    except DraError as error:
        problems.append(str(error))
        return ()


def _report(found: Recovery) -> None:
    counts = {
        "earlier_boot": len(found.earlier_boot),
        "undone": len(found.undone),
        "adopted": len(found.adopted),
        "rewritten": len(found.rewritten),
        "orphans": len(found.orphans),
    }
    if any(counts.values()):
        log.info("claims recovered", extra=counts)
