"""Prepare one claim (NodePrepareResources).

    1. an entry in state ``prepared``: verify devices and files, answer from it; no API call
    2. GET the claim, make the plan; while a rebuild is pending, adopt a claim that was prepared before
    3. journal: begin (takes the devices, or names the claims that have them)   on failure: forget
    4. change GPUs as the claim needs them                                      on failure: release them
    5. write the claim's metadata and CDI files                                 on failure: remove them
    6. journal: finish; from here on the claim is prepared, also if the process dies

`whole_gpus` prepares most claims earlier. Other claims for whole GPUs skip step 4 unless a note requires a restore. For
all other claims steps 3 to 6 run under the locks of the GPUs, and ``begin`` is durable before hardware changes. An
entry that a dead process left is torn down by the next call for the claim, a claim that needs the device, or `recover`.
"""

import logging
import threading
from collections.abc import Callable
from contextlib import suppress

from dra_driver.core.backoff import Backoff
from dra_driver.core.errors import DraError, DriverUnavailableError, RetryableError, ServerBusyError
from dra_driver.core.model.claim import AllocatedClaim, ClaimRef, PreparedDevice
from dra_driver.core.model.gpu import Snapshot
from dra_driver.node.claims.dependencies import ClaimDependencies, require_hardware
from dra_driver.node.claims.entry import AttemptToken, Entry, State, gpus_of
from dra_driver.node.claims.hardware.apply import apply_plan, require_fabric, taken_over
from dra_driver.node.claims.hardware.partitions import inspect_partitions
from dra_driver.node.claims.planning.plan import PreparePlan, names_of, plan_claim, recorded_answer
from dra_driver.node.claims.waiting import (
    FIRST_PAUSE_S,
    LONGEST_PAUSE_S,
    CallBudget,
    ClaimBusyError,
    GpuLockedError,
    PreparesPausedError,
)
from dra_driver.node.claims.workflow import teardown
from dra_driver.node.claims.workflow.cdi_document import document_of, fresh_snapshot, places_of_claim, verify_prepared
from dra_driver.node.claims.workflow.metadata import metadata_of
from dra_driver.node.claims.workflow.rebuild import adopt

log = logging.getLogger(__name__)

_ROUNDS = 4  # a claim has at most 32 devices, but rarely conflicts with more than one leftover
LOCK_S = 10.0
"""Seconds that one attempt waits for a GPU's lock; only the few calls that may wait longer try again (`waiting`)."""


Read = Callable[[], AllocatedClaim | DraError | None]


class Preparer:
    """Prepares claims, one call per claim at a time. Thread-safe."""

    def __init__(self, deps: ClaimDependencies) -> None:
        self._deps = deps
        self._slots = threading.BoundedSemaphore(max(1, deps.retry_policy.waiting))

    def prepare(self, ref: ClaimRef, *, budget: CallBudget, read: Read = lambda: None) -> tuple[PreparedDevice, ...]:
        """Prepare the claim and return its devices, by ``budget.deadline`` unless disk or hardware itself hangs.

        ``read`` returns the claim, or the error, that this call read a moment ago; else None.

        Idempotent: a repeat returns an equal answer. Raises a `DraError` whose message names the next step, after
        waiting for temporary errors (`waiting.RetryPolicy`). After an error nothing of the claim remains on disk or on
        a GPU, unless removing it fails too; then the entry keeps the devices until the next call or start.
        """
        try:
            return self._attempt(ref, budget, read)
        except DraError as error:
            if self._pause_left_s(error, budget) <= 0 or not self._slots.acquire(blocking=False):
                raise
            error_before = error
        try:
            return self._retry(ref, budget, error_before)
        finally:
            self._slots.release()

    def _retry(self, ref: ClaimRef, budget: CallBudget, last: DraError) -> tuple[PreparedDevice, ...]:
        """Retry until it works, an error is not temporary, or time has run out: then raise the ``last`` error."""
        clock, backoff = self._deps.clock, Backoff(first_s=FIRST_PAUSE_S, longest_s=LONGEST_PAUSE_S)
        pause_s = backoff.next_s()
        self._deps.count("waited")
        while True:
            clock.wait(pause_s)
            if self._left_s(budget) < self._deps.retry_policy.read_s:
                raise last
            try:
                return self._attempt(ref, budget)
            except DraError as error:
                last = error
                left_s = self._pause_left_s(error, budget)
                if left_s <= 0:
                    raise
                asked_s = error.retry_after_s if isinstance(error, ServerBusyError) else 0.0
                pause_s = min(max(backoff.next_s(), asked_s), left_s)

    def _pause_left_s(self, error: DraError, budget: CallBudget) -> float:
        return self._deps.retry_policy.pause_left_s(error, budget, self._deps.clock.now())

    def _attempt(self, ref: ClaimRef, budget: CallBudget, read: Read = lambda: None) -> tuple[PreparedDevice, ...]:
        # The lock is not kept between attempts, so that an unprepare of the same claim can run.
        deps = self._deps
        with deps.locks.acquire(ref.uid, self._left_s(budget)) as acquired, deps.gate.work():
            if not acquired:
                raise RetryableError(
                    f"claim {ref} is still in use by an earlier call after "
                    f"{deps.retry_policy.call_s:g} s; the kubelet tries again",
                    reason="ClaimLocked",
                )
            entry = self._current_entry(ref, budget)
            return self._prepare_again(entry, budget) if entry else self._prepare(ref, budget, read)

    def _left_s(self, budget: CallBudget) -> float:
        return budget.deadline - self._deps.clock.now()

    def _current_entry(self, ref: ClaimRef, budget: CallBudget) -> Entry | None:
        """The claim's entry if it is prepared; None without one, and after tearing down an abandoned one."""
        deps = self._deps
        entry = deps.journal.entry(ref.uid)
        if entry is not None and entry.state is State.PREPARED and not teardown.is_of_earlier_boot(deps, entry):
            return entry
        deps.gate.check(ref)
        if entry is None:
            return None
        if not teardown.is_abandoned(deps, entry):
            raise teardown.busy(entry)
        teardown.teardown(deps, ref.uid, only=entry.attempt, within_s=self._left_s(budget))
        deps.count("undone")
        return None

    def _prepare_again(self, entry: Entry, budget: CallBudget) -> tuple[PreparedDevice, ...]:
        deps = self._deps
        if deps.gate.closed is not None:
            return self._answer_while_paused(entry)
        deps.provider.ensure_base()
        again, document = verify_prepared(deps, entry, self._snapshot(), within_s=min(LOCK_S, self._left_s(budget)))
        if deps.writer.write_claim(entry.ref.uid, document):
            deps.count("file-rewritten")
            log.warning("CDI file was missing or different; written again", extra={"claim": str(entry.ref)})
        deps.count("repeated")
        log.info("claim was already prepared", extra={"claim": str(entry.ref), "devices": names_of(again.devices)})
        return again.prepared

    def _answer_while_paused(self, entry: Entry) -> tuple[PreparedDevice, ...]:
        """Answer from the journal only: verifying could open the driver that is being closed."""
        if entry.ref.uid not in self._deps.writer.claim_uids():
            raise PreparesPausedError(
                f"claim {entry.ref} is prepared, but its CDI file is missing and is not written again now: "
                f"{self._deps.gate.closed}; the kubelet tries again"
            )
        self._deps.count("repeated")
        log.info("claim was already prepared; not verified while prepares are paused", extra={"claim": str(entry.ref)})
        return recorded_answer(entry, self._deps.names)

    def _prepare(self, ref: ClaimRef, budget: CallBudget, read: Read) -> tuple[PreparedDevice, ...]:
        deps, claim = self._deps, read() or self._read(ref, budget)
        if isinstance(claim, DraError):
            raise claim
        if deps.journal.rebuild_pending and adopt(deps, claim) and (entry := deps.journal.entry(ref.uid)):
            return self._prepare_again(entry, budget)
        snapshot = self._snapshot()
        places = places_of_claim(claim, snapshot)
        if places:
            snapshot = fresh_snapshot(deps, ref, places, snapshot, within_s=self._lock_s(budget))
        todo = plan_claim(claim, snapshot, deps.names, deps.pool, deps.terms())
        require_fabric(deps, todo)
        deps.provider.ensure_base()  # if it fails no container can start, so no GPU is changed before
        done = self._prepare_hardware(todo, budget) if todo.changes_hardware else self._prepare_unchanged(todo, budget)
        deps.count("prepared")
        log.info("claim prepared", extra={"claim": str(ref), "devices": names_of(done.devices)})
        return done.prepared

    def _prepare_unchanged(self, todo: PreparePlan, budget: CallBudget) -> PreparePlan:
        """Prepare whole GPUs, which are changed only if a note requires a restore."""
        deps = self._deps
        document = document_of(deps, todo)
        attempt = self._begin(todo, budget)
        try:
            # Read after ``begin``: from then on no other claim can write a note about these GPUs.
            noted = frozenset(gpus_of(todo.assigned)) & deps.journal.noted_gpus().keys()
            if noted:
                with deps.gpu_locks.acquire(noted, self._lock_s(budget)) as acquired:
                    self._require_lock(todo, acquired=acquired)
                    apply_plan(deps, todo, attempt, budget)
            deps.writer.write_metadata(todo.ref.uid, metadata_of(deps, todo))
            deps.writer.write_claim(todo.ref.uid, document)
            self._finish(todo, attempt)
        except DraError:
            self._teardown_best_effort(todo, attempt, budget)
            raise
        return todo

    def _prepare_hardware(self, todo: PreparePlan, budget: CallBudget) -> PreparePlan:
        """Prepare partitions, shares and GPUs with settings, under the locks of the claim's GPUs."""
        deps = self._deps
        require_hardware(deps)
        for _ in range(_ROUNDS):
            attempt: AttemptToken | None = None
            try:
                with deps.gpu_locks.acquire(gpus_of(todo.assigned), self._lock_s(budget)) as acquired:
                    self._require_lock(todo, acquired=acquired)
                    todo = inspect_partitions(deps, todo)
                    result = deps.journal.begin(todo.ref, todo.assigned, durable=True)
                    if isinstance(result, AttemptToken):
                        attempt = result
                        return self._apply_and_finish(todo, attempt, budget)
            except DraError:
                if attempt is not None:  # teardown takes the locks itself; they are free again
                    self._teardown_best_effort(todo, attempt, budget)
                raise
            teardown.resolve_conflicts(deps, todo, result, within_s=self._left_s(budget))
        raise _changing_concurrently(todo)

    def _apply_and_finish(self, todo: PreparePlan, attempt: AttemptToken, budget: CallBudget) -> PreparePlan:
        done = apply_plan(self._deps, todo, attempt, budget)
        self._deps.writer.write_metadata(todo.ref.uid, metadata_of(self._deps, done))
        self._deps.writer.write_claim(todo.ref.uid, document_of(self._deps, done))
        self._finish(done, attempt)
        return done

    def _finish(self, done: PreparePlan, attempt: AttemptToken) -> None:
        deps, ref = self._deps, done.ref
        if not deps.journal.finish(ref.uid, attempt, done.assigned if done.changes_hardware else ()):
            teardown.remove_file_without_entry(deps, ref.uid)
            raise taken_over(done)

    def _teardown_best_effort(self, todo: PreparePlan, attempt: AttemptToken, budget: CallBudget) -> None:
        with suppress(DraError):  # the first error is the one to report; the next call or start continues
            teardown.teardown(
                self._deps, todo.ref.uid, only=attempt, within_s=max(teardown.LEAST_S, self._left_s(budget))
            )

    def _begin(self, todo: PreparePlan, budget: CallBudget) -> AttemptToken:
        """Take the claim's devices. Raises as `resolve_conflicts`."""
        for _ in range(_ROUNDS):
            result = self._deps.journal.begin(todo.ref, todo.assigned)
            if isinstance(result, AttemptToken):
                return result
            teardown.resolve_conflicts(self._deps, todo, result, within_s=self._left_s(budget))
        raise _changing_concurrently(todo)

    def _lock_s(self, budget: CallBudget) -> float:
        return max(0.0, min(LOCK_S, self._left_s(budget)))

    @staticmethod
    def _require_lock(todo: PreparePlan, *, acquired: bool) -> None:
        if not acquired:
            raise GpuLockedError(
                f"a GPU of claim {todo.ref} ({', '.join(names_of(todo.devices))}) has been locked by another call for "
                f"more than {LOCK_S:g} s; the driver tries again"
            )

    def _read(self, ref: ClaimRef, budget: CallBudget) -> AllocatedClaim:
        left_s = self._left_s(budget)
        if left_s < self._deps.retry_policy.read_s:
            raise RetryableError(
                f"claim {ref} was not read from the API server: earlier work left only {max(0.0, left_s):.1f} s of "
                "this call's time; the kubelet tries again"
            )
        return self._deps.reader.read(ref, within_s=left_s)

    def _snapshot(self) -> Snapshot:
        snapshot = self._deps.snapshot()
        if not snapshot.gpus and not snapshot.left_out:
            raise DriverUnavailableError(
                "no GPU of this node has been read yet: the NVIDIA driver is missing or still being loaded; "
                "check the node's NVIDIA driver and the log of the node process"
            )
        return snapshot


def _changing_concurrently(todo: PreparePlan) -> ClaimBusyError:
    return ClaimBusyError(
        f"devices of claim {todo.ref} are being released or claimed concurrently; the kubelet tries again"
    )
