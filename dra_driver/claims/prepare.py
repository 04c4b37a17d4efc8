"""NodePrepareResources for one claim.

Owns the order of the steps and what is waited for. Refuses to know what a device needs in a container (``cdi``) and how
entries are stored.

    1. an entry in state ``prepared``: answer from it, after checking devices and files again; no API call
    2. GET the claim, make the plan, make sure of the base document
    3. journal: begin (takes the devices, or names who holds them)      undo: forget
    4. write the claim's CDI file                                       undo: remove it
    5. journal: finish; from here on the claim is prepared, whoever dies

A failure in 4 or 5 is undone at once; what a dead process left in state ``preparing`` was never answered to the kubelet
and is undone by whoever comes across it: the next call for the claim, a claim that wants the device, or `recover`.
"""

import logging
import threading
from contextlib import suppress

from dra_driver.cdi.edits import claim_spec
from dra_driver.cdi.spec import CdiSpec
from dra_driver.claims.entry import Attempt, Entry, State
from dra_driver.claims.plan import ClaimPlan, plan, restore
from dra_driver.claims.tools import Tools
from dra_driver.claims.undo import is_left_over, remove_stray_file, undo
from dra_driver.claims.waiting import FIRST_PAUSE_S, LONGEST_PAUSE_S, Budget, ClaimBusyError
from dra_driver.errors import DeviceInUseError, DraError, DriverUnavailableError, RetryableError, ServerBusyError
from dra_driver.model.claim import AllocatedClaim, ClaimRef, PreparedDevice
from dra_driver.model.gpu import Snapshot

log = logging.getLogger(__name__)

_ROUNDS = 4  # a claim has at most 32 devices, but rarely more than one leftover is in the way


class Preparer:
    """Prepares claims, one call per claim at a time. Thread-safe."""

    def __init__(self, tools: Tools) -> None:
        self._tools = tools
        self._slots = threading.BoundedSemaphore(max(1, tools.patience.waiting))

    def prepare(self, ref: ClaimRef, *, budget: Budget) -> tuple[PreparedDevice, ...]:
        """The claim's devices, prepared, or an error, by ``budget.deadline`` unless the disk itself hangs.

        Idempotent: a repeat gives an equal answer. Raises a `DraError` whose message says what to do, after waiting out
        what may pass by itself (see `waiting.Patience`). On an error nothing of the claim is left on disk, except when
        the disk itself refuses; then the entry keeps the devices until the next call or start.
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
        bell, pause_s = self._tools.bell, FIRST_PAUSE_S
        self._tools.count("waited")
        while True:
            bell.wait(pause_s)
            try:
                return self._once(ref, budget)
            except DraError as error:
                left_s = self._pause_left_s(error, budget)
                if left_s <= 0:
                    raise
                asked_s = error.retry_after_s if isinstance(error, ServerBusyError) else 0.0
                pause_s = min(max(min(2 * pause_s, LONGEST_PAUSE_S), asked_s), left_s)

    def _pause_left_s(self, error: DraError, budget: Budget) -> float:
        return self._tools.patience.pause_left_s(error, budget, self._tools.bell.now())

    def _once(self, ref: ClaimRef, budget: Budget) -> tuple[PreparedDevice, ...]:
        # The lock is not kept while waiting for anything else: an unprepare of the same claim must get in.
        with self._tools.locks.hold(ref.uid, self._left_s(budget)) as held:
            if not held:
                raise RetryableError(
                    f"claim {ref} is still being worked on by an earlier call after {self._tools.patience.call_s:g} s; "
                    "the kubelet tries again"
                )
            entry = self._settled(ref)
            return self._repeat(entry) if entry else self._prepare(ref, budget)

    def _left_s(self, budget: Budget) -> float:
        return budget.deadline - self._tools.bell.now()

    def _settled(self, ref: ClaimRef) -> Entry | None:
        """The claim's entry if it is prepared, None when there is none (any more)."""
        tools = self._tools
        entry = tools.journal.entry(ref.uid)
        if entry is None or entry.state is State.PREPARED:
            return entry
        if not is_left_over(tools, entry):
            raise _busy(entry)
        undo(tools, ref.uid, only=entry.attempt)
        tools.count("undone")
        return None

    def _repeat(self, entry: Entry) -> tuple[PreparedDevice, ...]:
        """Answer again, from the journal: no API call, but devices and files are looked at."""
        tools = self._tools
        again = restore(entry, self._snapshot(), tools.names)
        if tools.writer.write_claim(entry.ref.uid, self._document(again)):
            tools.count("file-rewritten")
            log.warning("CDI file was missing or different and is written again", extra={"claim": str(entry.ref)})
        tools.count("repeated")
        log.info("claim was prepared before", extra={"claim": str(entry.ref), "devices": _names(again)})
        return again.prepared

    def _prepare(self, ref: ClaimRef, budget: Budget) -> tuple[PreparedDevice, ...]:
        tools = self._tools
        todo = plan(self._read(ref, budget), self._snapshot(), tools.names, tools.pool)
        document = self._document(todo)
        attempt = self._begin(todo)
        try:
            tools.writer.write_claim(ref.uid, document)
            finished = tools.journal.finish(ref.uid, attempt)
        except DraError:
            with suppress(DraError):  # the first failure is the one to report; what stays is undone later
                undo(tools, ref.uid, only=attempt)
            raise
        if not finished:
            remove_stray_file(tools, ref.uid)
            raise RetryableError(
                f"claim {ref} was unprepared by another run of the driver while it was being prepared; "
                "the kubelet tries again if the pod still needs it"
            )
        tools.count("prepared")
        log.info("claim prepared", extra={"claim": str(ref), "devices": _names(todo)})
        return todo.prepared

    def _read(self, ref: ClaimRef, budget: Budget) -> AllocatedClaim:
        left_s = self._left_s(budget)
        if left_s < self._tools.patience.read_s:
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

    def _document(self, todo: ClaimPlan) -> CdiSpec:
        provider = self._tools.provider
        provider.ensure_base()
        return claim_spec(self._tools.names, [(d.cdi_device, provider.edits_for(d.gpu)) for d in todo.devices])

    def _begin(self, todo: ClaimPlan) -> Attempt:
        """Take the claim's devices. Raises `DeviceInUseError` naming the claim that has one, or `ClaimBusyError`."""
        tools = self._tools
        for _ in range(_ROUNDS):
            result = tools.journal.begin(todo.ref, todo.held)
            if isinstance(result, Attempt):
                return result
            if result.by[0].ref.uid == todo.ref.uid:
                raise _busy(result.by[0])
            if not all(self._clear(entry) for entry in result.by):
                raise _in_use(todo, result.by)
        raise ClaimBusyError(f"the devices of claim {todo.ref} are changing hands; the kubelet tries again")

    def _clear(self, blocker: Entry) -> bool:
        """Undo another claim's entry if it is a leftover; False when somebody has it."""
        tools = self._tools
        if blocker.state is State.PREPARED:
            return False
        with tools.locks.hold(blocker.ref.uid, 0.0) as held:  # never waits: two claims could wait for each other
            now = tools.journal.entry(blocker.ref.uid) if held else blocker
            if now is None:
                return True
            if not held or not is_left_over(tools, now):
                return False
            undo(tools, now.ref.uid, only=now.attempt)
        tools.count("undone")
        log.warning("what an earlier run left half done is undone", extra={"claim": str(blocker.ref)})
        return True


def _busy(entry: Entry) -> ClaimBusyError:
    return ClaimBusyError(f"claim {entry.ref} is {entry.state} in another run of the driver; the kubelet tries again")


def _in_use(todo: ClaimPlan, blockers: tuple[Entry, ...]) -> DeviceInUseError:
    wanted = {(device.pool, device.device) for device in todo.devices if not device.admin_access}
    for blocker in blockers:
        for held in blocker.devices:
            if not held.admin_access and (held.pool, held.device) in wanted:
                return DeviceInUseError(
                    f"device {held.device} of claim {todo.ref} is already {blocker.state} for claim {blocker.ref}; "
                    "it is free when the kubelet has unprepared that claim, which it does after its pod has ended"
                )
    return DeviceInUseError(
        f"a device of claim {todo.ref} was taken by claim {blockers[0].ref}; the kubelet tries again"
    )


def _names(todo: ClaimPlan) -> list[str]:
    return [device.device for device in todo.devices]
