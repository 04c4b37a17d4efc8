"""NodePrepareResources for one claim.

Owns the order of the steps and what is waited for. Refuses to know what a device needs in a container (``cdi``), how
GPUs are changed (`make`) and how entries are stored.

    1. an entry in state ``prepared``: answer from it, after checking devices and files again; no API call
    2. GET the claim, make the plan; while a new journal is not rebuilt, a claim that was prepared before is adopted
    3. journal: begin (takes the devices, or names who holds them)      undo: forget
    4. make GPUs into what is needed                                    undo: take it back
    5. write the claim's CDI file                                       undo: remove it
    6. journal: finish; from here on the claim is prepared, whoever dies

Most claims are for whole GPUs as they are. For them there is no step 4 unless a note tells of something to put right,
``begin`` is not synced, and no GPU is locked: having it in the journal keeps everybody else away. For the others 3 to
6 happen under the locks of the claim's GPUs, and ``begin`` is durable before hardware changes.

A failure in 4 to 6 is undone at once; what a dead process left in state ``preparing`` was never answered to the kubelet
and is undone by whoever comes across it: the next call for the claim, a claim that wants the device, or `recover`.
"""

import logging
import threading
from contextlib import suppress

from dra_driver.claims.dependencies import Tools
from dra_driver.claims.entry import Attempt, Entry, State, gpus_of
from dra_driver.claims.hardware.apply import look, make, taken_over
from dra_driver.claims.planning.plan import ClaimPlan, names_of, plan
from dra_driver.claims.waiting import FIRST_PAUSE_S, LONGEST_PAUSE_S, Budget, ClaimBusyError, GpuLockedError
from dra_driver.claims.workflow.cdi_document import document_of
from dra_driver.claims.workflow.contention import busy, make_way
from dra_driver.claims.workflow.rebuild import adopt
from dra_driver.claims.workflow.teardown import LEAST_S, is_left_over, is_of_earlier_boot, remove_stray_file, undo
from dra_driver.claims.workflow.verify import restored
from dra_driver.errors import DraError, DriverUnavailableError, RetryableError, ServerBusyError
from dra_driver.model.claim import AllocatedClaim, ClaimRef, PreparedDevice
from dra_driver.model.gpu import Snapshot

log = logging.getLogger(__name__)

_ROUNDS = 4  # a claim has at most 32 devices, but rarely more than one leftover is in the way
LOCK_S = 10.0
"""For how long one attempt waits for a GPU's lock; longer waits are for the few calls that may wait (`waiting`)."""


class Preparer:
    """Prepares claims, one call per claim at a time. Thread-safe."""

    def __init__(self, tools: Tools) -> None:
        self._tools = tools
        self._slots = threading.BoundedSemaphore(max(1, tools.retry_policy.waiting))

    def prepare(self, ref: ClaimRef, *, budget: Budget) -> tuple[PreparedDevice, ...]:
        """The claim's devices, prepared, or an error, by ``budget.deadline`` unless disk or hardware itself hangs.

        Idempotent: a repeat gives an equal answer. Raises a `DraError` whose message says what to do, after waiting out
        what may pass by itself (`waiting.RetryPolicy`). On an error nothing of the claim is left, on disk or on a GPU,
        except when those refuse; then the entry keeps the devices until the next call or start.
        """
        try:
            return self._once(ref, budget)
        except DraError as error:
            if self._pause_left_s(error, budget) <= 0 or not self._slots.acquire(blocking=False):
                raise
        try:
            return self._patiently(ref, budget)
        finally:
            self._slots.release()

    def _patiently(self, ref: ClaimRef, budget: Budget) -> tuple[PreparedDevice, ...]:
        """Try again until it works, the error is of a kind that stays, or time is up."""
        clock, pause_s = self._tools.clock, FIRST_PAUSE_S
        self._tools.count("waited")
        while True:
            clock.wait(pause_s)
            try:
                return self._once(ref, budget)
            except DraError as error:
                left_s = self._pause_left_s(error, budget)
                if left_s <= 0:
                    raise
                asked_s = error.retry_after_s if isinstance(error, ServerBusyError) else 0.0
                pause_s = min(max(min(2 * pause_s, LONGEST_PAUSE_S), asked_s), left_s)

    def _pause_left_s(self, error: DraError, budget: Budget) -> float:
        return self._tools.retry_policy.pause_left_s(error, budget, self._tools.clock.now())

    def _once(self, ref: ClaimRef, budget: Budget) -> tuple[PreparedDevice, ...]:
        # The lock is not kept while waiting for anything else: an unprepare of the same claim must get in.
        with self._tools.locks.hold(ref.uid, self._left_s(budget)) as held:
            if not held:
                raise RetryableError(
                    f"claim {ref} is still being worked on by an earlier call after "
                    f"{self._tools.retry_policy.call_s:g} s; "
                    "the kubelet tries again"
                )
            entry = self._settled(ref, budget)
            return self._repeat(entry, budget) if entry else self._prepare(ref, budget)

    def _left_s(self, budget: Budget) -> float:
        return budget.deadline - self._tools.clock.now()

    def _settled(self, ref: ClaimRef, budget: Budget) -> Entry | None:
        """The claim's entry if it is prepared, None when there is none (any more)."""
        tools = self._tools
        entry = tools.journal.entry(ref.uid)
        if entry is None or (entry.state is State.PREPARED and not is_of_earlier_boot(tools, entry)):
            return entry
        if not is_left_over(tools, entry):
            raise busy(entry)
        undo(tools, ref.uid, only=entry.attempt, within_s=self._left_s(budget))
        tools.count("undone")
        return None

    def _repeat(self, entry: Entry, budget: Budget) -> tuple[PreparedDevice, ...]:
        """Answer again, from the journal: no API call, but devices and files are looked at."""
        tools = self._tools
        tools.provider.ensure_base()
        again, document = restored(tools, entry, self._snapshot(), within_s=min(LOCK_S, self._left_s(budget)))
        if tools.writer.write_claim(entry.ref.uid, document):
            tools.count("file-rewritten")
            log.warning("CDI file was missing or different and is written again", extra={"claim": str(entry.ref)})
        tools.count("repeated")
        log.info("claim was prepared before", extra={"claim": str(entry.ref), "devices": names_of(again.devices)})
        return again.prepared

    def _prepare(self, ref: ClaimRef, budget: Budget) -> tuple[PreparedDevice, ...]:
        tools, claim = self._tools, self._read(ref, budget)
        if tools.journal.rebuild_pending and adopt(tools, claim) and (entry := tools.journal.entry(ref.uid)):
            return self._repeat(entry, budget)
        todo = plan(claim, self._snapshot(), tools.names, tools.pool, tools.terms())
        tools.provider.ensure_base()  # where no container could start, no GPU need be changed first
        done = self._with_hardware(todo, budget) if todo.changes_hardware else self._as_it_is(todo, budget)
        tools.count("prepared")
        log.info("claim prepared", extra={"claim": str(ref), "devices": names_of(done.devices)})
        return done.prepared

    def _as_it_is(self, todo: ClaimPlan, budget: Budget) -> ClaimPlan:
        """Whole GPUs, to which nothing has to be done unless a note says so."""
        tools = self._tools
        document = document_of(tools, todo)
        attempt = self._begun(todo, budget)
        try:
            # After ``begin``, so that nobody can leave a new note on these GPUs any more.
            noted = frozenset(gpus_of(todo.held)) & tools.journal.noted_gpus().keys()
            if noted:
                with tools.gpu_locks.hold(noted, self._lock_s(budget)) as held:
                    self._require_lock(todo, held=held)
                    make(tools, todo, attempt, budget)
            tools.writer.write_claim(todo.ref.uid, document)
            self._finish(todo, attempt)
        except DraError:
            self._undo_quietly(todo, attempt, budget)
            raise
        return todo

    def _with_hardware(self, todo: ClaimPlan, budget: Budget) -> ClaimPlan:
        """Partitions, shares and GPUs with settings; from intent to answer under the locks of the claim's GPUs."""
        tools = self._tools
        tools.require_hardware()
        for _ in range(_ROUNDS):
            attempt: Attempt | None = None
            try:
                with tools.gpu_locks.hold(gpus_of(todo.held), self._lock_s(budget)) as held:
                    self._require_lock(todo, held=held)
                    todo = look(tools, todo)
                    result = tools.journal.begin(todo.ref, todo.held, durable=True)
                    if isinstance(result, Attempt):
                        attempt = result
                        return self._made(todo, attempt, budget)
            except DraError:
                if attempt is not None:  # the locks are free again: undoing takes them itself
                    self._undo_quietly(todo, attempt, budget)
                raise
            make_way(tools, todo, result, within_s=self._left_s(budget))
        raise _changing_hands(todo)

    def _made(self, todo: ClaimPlan, attempt: Attempt, budget: Budget) -> ClaimPlan:
        done = make(self._tools, todo, attempt, budget)
        self._tools.writer.write_claim(todo.ref.uid, document_of(self._tools, done))
        self._finish(done, attempt)
        return done

    def _finish(self, done: ClaimPlan, attempt: Attempt) -> None:
        tools, ref = self._tools, done.ref
        if not tools.journal.finish(ref.uid, attempt, done.held if done.changes_hardware else ()):
            remove_stray_file(tools, ref.uid)
            raise taken_over(done)

    def _undo_quietly(self, todo: ClaimPlan, attempt: Attempt, budget: Budget) -> None:
        with suppress(DraError):  # the first failure is the one to report; what stays is undone later
            undo(self._tools, todo.ref.uid, only=attempt, within_s=max(LEAST_S, self._left_s(budget)))

    def _begun(self, todo: ClaimPlan, budget: Budget) -> Attempt:
        """Take the claim's devices. Raises `DeviceInUseError` naming the claim that has one, or `ClaimBusyError`."""
        for _ in range(_ROUNDS):
            result = self._tools.journal.begin(todo.ref, todo.held)
            if isinstance(result, Attempt):
                return result
            make_way(self._tools, todo, result, within_s=self._left_s(budget))
        raise _changing_hands(todo)

    def _lock_s(self, budget: Budget) -> float:
        return max(0.0, min(LOCK_S, self._left_s(budget)))

    @staticmethod
    def _require_lock(todo: ClaimPlan, *, held: bool) -> None:
        if not held:
            raise GpuLockedError(
                f"a GPU of claim {todo.ref} ({', '.join(names_of(todo.devices))}) is being changed by another call for "
                f"more than {LOCK_S:g} s; it is tried again"
            )

    def _read(self, ref: ClaimRef, budget: Budget) -> AllocatedClaim:
        left_s = self._left_s(budget)
        if left_s < self._tools.retry_policy.read_s:
            raise RetryableError(
                f"claim {ref} was not read from the API server: earlier work left only {max(0.0, left_s):.1f} s of "
                "this call's time; the kubelet tries again"
            )
        return self._tools.reader.read(ref, within_s=left_s)

    def _snapshot(self) -> Snapshot:
        snapshot = self._tools.snapshot()
        if not snapshot.gpus and not snapshot.left_out:
            raise DriverUnavailableError(
                "no GPU of this node has been read yet: the NVIDIA driver is missing or still being loaded; "
                "look at the node's driver and at the log of the node process"
            )
        return snapshot


def _changing_hands(todo: ClaimPlan) -> ClaimBusyError:
    return ClaimBusyError(f"the devices of claim {todo.ref} are changing hands; the kubelet tries again")
