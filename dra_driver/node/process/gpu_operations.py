"""Run guarded operations: switch the MIG mode of a GPU, or reset it, one at a time on a node.

    waiting     the GPU is tainted; wait until no claim, process or other manager uses it
    changing    prepares are paused, the usage exporter closes the driver; request the mode (nvmlDeviceSetMigMode)
    resetting   the node process detaches from the driver; one ``nvidia-smi --gpu-reset``; reattach
    verifying   a new session shows the wanted state; publish it, remove the taint, admit prepares
    undoing     write the former mode back; after a failed reset, check that the GPU answers
    blocked     the former mode could not be written back, a reset hangs, or the GPU does not answer after it: the taint
                stays until a reboot

Several GPUs can be waiting. Only one is in a later step, and a request does not wait for the claims of another GPU.

`OperationsFile` has each step before it begins, so that a restart continues: it compares the GPU with the record. An
administrator requests an operation by annotation of the Node (``core/model/gpu_operation.py``), a policy by
``mig.mode`` and ``health.reset``. Nothing is evicted here: ``kubectl dra gpu`` frees the GPU first.
"""

import logging
import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import AbstractContextManager, ExitStack, nullcontext
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from msgspec import Struct
from msgspec.structs import replace

from dra_driver.core import errors
from dra_driver.core.model.gpu import Gpu, Snapshot
from dra_driver.core.model.gpu_operation import (
    DONE_EVENT,
    FAILED_EVENT,
    OPERATION_ANNOTATION,
    OPERATION_TAINT,
    Operation,
    OperationRequest,
    requests_of,
)
from dra_driver.core.model.health import HealthReading
from dra_driver.core.model.ids import GpuUuid
from dra_driver.core.model.terms import GpuTerms, Taint, Terms, terms_of
from dra_driver.core.telemetry import metrics
from dra_driver.core.text import printable
from dra_driver.core.worker import Worker
from dra_driver.hardware.gpu.backend import MIG_MODE, GpuControl, GpuNotes, ModeAnswer
from dra_driver.hardware.gpu.inventory import Inventory
from dra_driver.hardware.gpu.reset import RESET_S, TIMEOUT, Persistence, Reset
from dra_driver.kube.own_node import OwnNode
from dra_driver.node.claims import Claims, PrepareGate
from dra_driver.node.process.detaching import Detaching, DetachRequest
from dra_driver.node.process.node_events import Tell
from dra_driver.node.process.operation_record import FILE, Finished, OperationRecord, OperationsFile, Step
from dra_driver.node.process.operation_rules import (
    REBOOT,
    asks_for_reset,
    describe_modes,
    may_reset_again,
    other_manager,
    reading_of,
    wanted_by_policy,
    why_no_reset,
    why_refused,
    why_silent,
    why_unverified,
)
from dra_driver.node.process.usage_exporter import ExporterLock

if TYPE_CHECKING:
    from dra_driver.node.process.hardware import Hardware

log = logging.getLogger(__name__)

THREAD_NAME: Final = "gpu-operations"
LOOK_S: Final = 1.0
REST_S: Final = 30.0
POLL_S: Final = 0.2
BUSY_TRIES: Final = 2
BUSY_S: Final = 30.0
"""A reset that is refused because the GPU is in use is tried once more after this pause."""
HOLDERS_S: Final = 15.0
"""Pause after a process was found that has the GPU open: each search pauses prepares."""
SETTLE_S: Final = 5.0
"""Seconds without a claim before the GPU is touched: a scheduler may have allocated it before it saw the taint."""
SIMULATED_SETTLE_S: Final = 1.0
WORK_S: Final = 45.0
LOCK_S: Final = 10.0
DETACH_S: Final = 75.0
REATTACH_S: Final = 60.0
VERIFY_S: Final = 90.0
TRIES: Final = 2
"""Resets of one operation, and retries of one step after a restart."""
DAILY: Final = 3
"""Operations that policies may begin on one GPU within `DAY_S`."""
DAY_S: Final = 86_400.0
GATE: Final = "gpu-operation"
_AT_REST: Final = (Step.WAITING, Step.BLOCKED)
"""Steps in which the GPU is not being changed."""


class OperationTools(Struct, frozen=True, kw_only=True):
    """The components that an operation uses. ``holders`` names the processes that have a GPU open, None when they
    cannot be listed; ``fabric_manager``: whether it runs. ``exporter_closed`` keeps the usage exporter from opening the
    driver inside. ``detach_phase`` is "" while attached. ``readings`` and ``repaired`` are of the node's health.
    ``uses`` are the GPUs of claims."""

    control: GpuControl
    reset: Reset
    has_reset: Callable[[str], bool]
    notes: GpuNotes
    file: OperationsFile
    inventory: Inventory
    gate: PrepareGate
    lock: Callable[[GpuUuid, float], AbstractContextManager[bool]]
    node: Callable[[], OwnNode | None]
    terms: Callable[[], Terms]
    uses: Callable[[], Iterable[GpuUuid]]
    holders: Callable[[GpuUuid], tuple[str, ...] | None]
    fabric_manager: Callable[[], bool | None]
    readings: Callable[[], tuple[HealthReading, ...]]
    detach_phase: Callable[[], str]
    is_detached: Callable[[], bool]
    wake_detaching: Callable[[], None]
    changed: Callable[[], None]
    published: Callable[[], bool]
    tell: Tell
    boot_id: str
    repaired: Callable[[Collection[GpuUuid]], None] = lambda _: None
    exporter_closed: Callable[[], AbstractContextManager[object]] = nullcontext
    persistence: Persistence | None = None
    settle_s: float = SETTLE_S
    busy_s: float = BUSY_S
    poll_s: float = POLL_S
    clock: Callable[[], float] = time.monotonic
    now: Callable[[], float] = time.time


class _FailedError(Exception):
    """The operation failed; the GPU may need its former mode."""


class _StoppedError(Exception):
    """This process stops: the record stays, and the next process continues."""


class GpuOperations:
    """``step`` in ``worker``'s thread; the rest from any thread. Call ``load`` before anything is published."""

    def __init__(self, tools: OperationTools) -> None:
        self._tools = tools
        self._records: Mapping[
            GpuUuid, OperationRecord
        ] = {}  # replaced as a whole, so that any thread reads it without a lock
        self.detach_request: DetachRequest | None = None
        """The request to detach from the driver for a reset; None without one."""
        # Replaced as wholes, too.
        self._notes: Mapping[GpuUuid, str] = {}
        self._refusals: Mapping[GpuUuid, str] = {}
        self._problems: tuple[str, ...] = ()
        self._free_since: dict[GpuUuid, float] = {}
        self._not_before: dict[GpuUuid, float] = {}
        self._resume_until: float | None = None
        self._policies_at = 0.0  # they are read rarely while an operation waits: it may wait for days
        self._seen_terms: Terms = {}
        self._seen_gpus: Mapping[GpuUuid, Gpu] = {}  # as last read, for a GPU that answers only that it needs a reset
        self._resumes: set[GpuUuid] = set()
        self._has_reported_loss = False
        self._stopping = threading.Event()
        self.worker = Worker(
            THREAD_NAME,
            self.step,
            on_error=partial(metrics.internal_error, "gpu-operations"),
            after_error_s=REST_S,
            interrupt=self._stopping.set,
            hang_after_s=2 * (DETACH_S + RESET_S + REATTACH_S),
        )

    def load(self) -> None:
        """Read the records of an earlier run. Its prepares stay paused while a GPU was being changed."""
        self._records = self._tools.file.load()
        self._resumes = set(self._records)
        if any(record.step not in _AT_REST for record in self._records.values()):
            self._tools.gate.close(_PAUSED, by=GATE)

    @property
    def remarks(self) -> list[str]:
        notes = self._notes
        found = [f"{_what(gpu, record)}: {notes.get(gpu) or record.step}" for gpu, record in self._records.items()]
        return [*found, *(f"{gpu}: {why}" for gpu, why in self._refusals.items()), *self._problems]

    def amend(self, snapshot: Snapshot, terms: Terms) -> Mapping[GpuUuid, GpuTerms]:
        """The terms of GPUs with an operation, tainted. New terms may ask for one."""
        self._seen_gpus = {**self._seen_gpus, **{gpu.uuid: gpu for gpu in snapshot.gpus}}
        if terms != self._seen_terms:
            self._seen_terms = terms
            self.worker.wake()
        known = {gpu.uuid for gpu in snapshot.gpus}
        found = {gpu: (record, terms_of(terms, gpu)) for gpu, record in self._records.items() if gpu in known}
        return {
            gpu: replace(
                of, taints=(*of.taints, Taint(key=OPERATION_TAINT, value=record.operation, effect="NoSchedule"))
            )
            for gpu, (record, of) in found.items()
        }

    def step(self) -> float:
        """Take the next step of the GPU that is being changed, else of every waiting one; return the seconds until
        another."""
        changing = next((gpu for gpu, each in self._records.items() if each.step not in _AT_REST), None)
        if changing is not None:
            return self._take_step(changing)
        if self._begin_next():
            return LOOK_S
        for gpu, record in self._records.items():
            if record.step is Step.BLOCKED:
                self._look_at_blocked(gpu, record)
            elif self._not_before.get(gpu, 0.0) <= self._tools.clock():
                self._not_before[gpu] = self._tools.clock() + self._take_step(gpu)
                if gpu in self._records and self._records[gpu].step not in _AT_REST:
                    return 0.0
        return LOOK_S if any(each.step is Step.WAITING for each in self._records.values()) else REST_S

    def _take_step(self, gpu: GpuUuid) -> float:
        record = self._records[gpu]
        try:
            if gpu in self._resumes:
                record = self._resume(gpu, record)
                self._resumes.discard(gpu)
                self._save(gpu, record)
                if record.step is Step.WAITING:
                    self._tools.gate.open(by=GATE)
            return self._advance(gpu, record)
        except _StoppedError:
            return LOOK_S
        except errors.HardwareError as error:
            self._note(gpu, str(error))
            if gpu in self._resumes and self._resume_ends():
                self._resumes.discard(gpu)
                self._save(gpu, replace(record, step=Step.UNDOING, problem=f"after a restart: {error}"))
        except _FailedError as error:
            self._undo_or_end(gpu, self._records.get(gpu, record), str(error))
        except errors.StorageError as error:
            self._note(gpu, str(error))
            return REST_S
        return LOOK_S

    def _resume_ends(self) -> bool:
        """Return whether the GPU failed to answer for `VERIFY_S` after a restart, although the driver works."""
        tools = self._tools
        if tools.detach_phase() or tools.inventory.problem is not None:
            self._resume_until = None
        elif self._resume_until is None:
            self._resume_until = tools.clock() + VERIFY_S
        return self._resume_until is not None and tools.clock() >= self._resume_until

    # --- Requests

    def _begin_next(self) -> bool:
        tools, node = self._tools, self._tools.node()
        snapshot = tools.inventory.current()
        text = node.annotations.get(OPERATION_ANNOTATION) if node is not None else None
        requests, unknown = requests_of(text)
        self._problems = self._lost_records(node, requests)
        if unknown:
            self._problems += (
                f"annotation {OPERATION_ANNOTATION} has requests that cannot be read: "
                f"{printable(', '.join(unknown))[:200]}; use kubectl dra gpu",
            )
        for request in requests:
            before = self._records.get(request.gpu)
            if tools.file.finished(request.gpu).number == request.number:
                continue
            if before is not None and before.step is Step.BLOCKED and before.number != request.number:
                self._refuse_blocked(request, before)
            elif before is None or (before.step is Step.WAITING and not before.number):  # it replaces a policy's
                record = OperationRecord(
                    operation=request.operation,
                    number=request.number,
                    by=f"annotation {OPERATION_ANNOTATION}",
                    boot_id=tools.boot_id,
                )
                return self._begin(snapshot, request.gpu, record)
        if self._records and tools.clock() < self._policies_at:
            return False
        self._policies_at = tools.clock() + REST_S
        return self._begin_for_policy(snapshot)

    def _lost_records(self, node: OwnNode | None, requests: Iterable[OperationRequest]) -> tuple[str, ...]:
        """Report records that could not be read. Requests of that time may have run, so that they are refused."""
        tools = self._tools
        lost = tools.file.lost
        if lost is None:
            return ()
        if node is not None and not self._has_reported_loss:
            self._has_reported_loss = True
            tools.tell("Warning", FAILED_EVENT, lost)
            for request in requests:
                record = OperationRecord(operation=request.operation, number=request.number, by="annotation")
                self._end(request.gpu, record, f"refused, because it may have run already: {lost}", failed=True)
        return (lost,)

    def _refuse_blocked(self, request: OperationRequest, blocked: OperationRecord) -> None:
        asked = OperationRecord(operation=request.operation, number=request.number, by="annotation")
        why = f"refused, nothing was changed: {blocked.operation.phrase} is blocked, because {blocked.problem}"
        self._tools.tell("Warning", FAILED_EVENT, self._result(request.gpu, asked, why))
        finished = replace(self._tools.file.finished(request.gpu), number=request.number)
        self._records = self._tools.file.save(request.gpu, blocked, finished)

    def _begin_for_policy(self, snapshot: Snapshot) -> bool:
        tools = self._tools
        try:
            terms = tools.terms()
            readings = tools.readings() if any(each.health.resets_when_free for each in terms.values()) else ()
        except errors.DraError:  # detached, or nothing was read yet
            return False
        asked = {
            uuid: wanted
            for uuid, gpu in {**self._seen_gpus, **{gpu.uuid: gpu for gpu in snapshot.gpus}}.items()
            if uuid not in self._records
            and (wanted := wanted_by_policy(gpu, terms_of(terms, uuid), reading_of(readings, uuid))) is not None
        }
        self._refusals = {gpu: why for gpu, why in self._refusals.items() if gpu in asked}
        for gpu, wanted in asked.items():
            if self._not_before.get(gpu, 0.0) > tools.clock():
                continue
            begun = [each for each in tools.file.finished(gpu).begun if tools.now() - each < DAY_S]
            if len(begun) >= DAILY:
                why = (
                    f"{wanted.phrase} was tried {DAILY} times within a day and is not tried again: use kubectl dra gpu"
                )
                self._refusals = {**self._refusals, gpu: why}
                continue
            record = OperationRecord(
                operation=wanted, by=f"policy {terms_of(terms, gpu).policy}", boot_id=tools.boot_id
            )
            if self._begin(snapshot, gpu, record):
                return True
        return False

    def _begin(self, snapshot: Snapshot, uuid: GpuUuid, record: OperationRecord) -> bool:
        """Record the operation, or report why it is refused or has nothing to do."""
        tools, gpu = self._tools, self._find(snapshot, uuid, record.operation)
        if tools.inventory.problem is not None:
            return False
        if gpu is None:
            self._end(
                uuid, record, f"GPU {uuid} is missing or does not answer; the node process changed nothing", failed=True
            )
            return True
        fabric = gpu.fabric is not None and gpu.fabric.is_ready
        record = replace(record, old=gpu.mig_enabled, needed=asks_for_reset(self._reading(uuid)), fabric=fabric)
        try:
            refused = self._why_refused(gpu, record)
        except errors.HardwareError as error:
            refused = str(error)
        if refused is None and gpu.mig_enabled == record.operation.mig_mode and not record.number:
            return False
        if refused is not None and not record.number:
            if self._refusals.get(uuid) != refused:
                log.warning("an operation that a policy asks for is refused", extra={"gpu": uuid, "reason": refused})
                tools.tell("Warning", FAILED_EVENT, f"{_what(uuid, record)} is refused: {refused}")
            self._refusals = {**self._refusals, uuid: refused}
            self._not_before[uuid] = tools.clock() + REST_S
            return False
        if refused is not None:
            self._end(uuid, record, f"refused, nothing was changed: {refused}", failed=True)
        elif gpu.mig_enabled == record.operation.mig_mode:
            self._end(uuid, record, "nothing to do: the GPU is in that mode")
        else:
            self._refusals = {gpu: why for gpu, why in self._refusals.items() if gpu != uuid}
            self._save(uuid, record)
            self._free_since.pop(uuid, None)
            self._not_before.pop(uuid, None)
            tools.tell("Normal", "GpuOperationBegun", f"{_what(uuid, record)} begins, requested by {record.by}")
            tools.changed()
        return True

    def _find(self, snapshot: Snapshot, uuid: GpuUuid, operation: Operation) -> Gpu | None:
        found = snapshot.gpu_by_uuid(uuid)
        return self._seen_gpus.get(uuid) if found is None and operation is Operation.RESET else found

    def _why_refused(self, gpu: Gpu, record: OperationRecord) -> str | None:
        tools = self._tools
        reading = reading_of(tools.readings(), gpu.uuid)
        answers = reading is None or not reading.needs_reset
        modes = tools.control.mig_modes(gpu.uuid) if gpu.mig_capable and answers else None
        if modes is not None and not modes.is_settled:
            pending, now = ("on", 0) if modes.pending else ("off", 1)
            return (
                f"MIG mode {pending} is pending, which this driver did not request: write the present mode back on the "
                f"node (nvidia-smi -i {gpu.uuid} -mig {now}), then repeat the request"
            )
        return why_refused(
            record.operation,
            gpu,
            reading,
            has_reset=tools.has_reset,
            fabric_manager=tools.fabric_manager(),
        )

    # --- The steps

    def _advance(self, gpu: GpuUuid, record: OperationRecord) -> float:
        if record.step is Step.WAITING:
            return self._wait(gpu, record)
        if record.step is Step.VERIFYING:
            return self._verify(gpu, record)
        try:
            if record.step is Step.CHANGING:
                self._change(gpu, record)
            elif record.step is Step.RESETTING:
                self._reset(gpu, record)
            else:
                return self._undo(gpu, record)
        except errors.HardwareError as error:
            raise _FailedError(str(error)) from error
        return 0.0

    def _wait(self, gpu: GpuUuid, record: OperationRecord) -> float:
        """Wait until the GPU is free, then pause prepares and look again."""
        tools = self._tools
        if not self._is_wanted(gpu, record):
            self._end(gpu, record, "withdrawn, nothing was changed")
            return LOOK_S
        if obstacle := self._obstacle(gpu):
            self._note(gpu, obstacle)
            self._free_since.pop(gpu, None)
            return LOOK_S
        since = self._free_since.setdefault(gpu, tools.clock())
        if not tools.published() or tools.clock() - since < tools.settle_s:
            self._note(gpu, "waiting for the taint to take effect")
            return LOOK_S
        tools.gate.close(_PAUSED, by=GATE)
        if not tools.gate.wait_idle(WORK_S) or self._obstacle(gpu):
            return self._wait_on(gpu, "calls of the kubelet are in progress", LOOK_S)
        with tools.exporter_closed():
            holders = tools.holders(gpu)
        if holders is None:
            return self._wait_on(
                gpu, "the node's processes cannot be listed: mount the host's root (hostRoot)", HOLDERS_S
            )
        if holders:
            return self._wait_on(gpu, f"the GPU is open in {'; '.join(holders)}", HOLDERS_S)
        next_step = Step.RESETTING if record.operation is Operation.RESET else Step.CHANGING
        self._save(gpu, replace(record, step=next_step))
        return 0.0

    def _wait_on(self, gpu: GpuUuid, note: str, pause_s: float) -> float:
        self._note(gpu, note)
        self._free_since.pop(gpu, None)
        self._tools.gate.open(by=GATE)
        return pause_s

    def _obstacle(self, gpu: GpuUuid) -> str:
        tools, node = self._tools, self._tools.node()
        if node is None:
            return "the Node was not read yet, so that other managers of MIG are unknown"
        if manager := other_manager(node.labels):
            return f"NVIDIA's MIG manager is at work (label {manager})"
        if phase := tools.detach_phase():
            return phase
        left = sum(used == gpu for used in tools.uses())
        if left:
            return f"waiting for {left} device{'s' if left > 1 else ''} of claims to be released"
        operation = self._records[gpu].operation
        found = self._find(tools.inventory.current(), gpu, operation)
        if found is None:
            raise _FailedError(f"GPU {gpu} is no longer usable on this node")
        return "waiting for MIG instances to be destroyed" if found.mig_instances else ""

    def _is_wanted(self, gpu: GpuUuid, record: OperationRecord) -> bool:
        tools, node = self._tools, self._tools.node()
        if record.number:
            text = node.annotations.get(OPERATION_ANNOTATION) if node is not None else None
            return node is None or any(request.number == record.number for request in requests_of(text)[0])
        found = self._find(tools.inventory.current(), gpu, record.operation)
        if found is None:
            return True
        terms = terms_of(tools.terms(), gpu)
        return wanted_by_policy(found, terms, reading_of(tools.readings(), gpu)) is record.operation

    def _change(self, gpu: GpuUuid, record: OperationRecord) -> None:
        """Request the mode. After a restart, the GPU may have it already, or pending."""
        tools, wanted = self._tools, record.operation.mig_mode
        assert wanted is not None  # noqa: S101 - a reset has no such step
        record = self._tried(gpu, record)
        with self._locked(gpu), tools.exporter_closed():
            answer = tools.control.request_mig_mode(gpu, wanted)
        found = tools.inventory.current().gpu_by_uuid(gpu)
        if answer is ModeAnswer.DONE:
            self._save(gpu, replace(record, step=Step.VERIFYING))
            return
        if answer is ModeAnswer.NEEDS_REBOOT:
            raise _FailedError(f"{REBOOT} this machine cannot reset the GPU (SetMigMode answered: not supported)")
        why_not = (
            "it is not listed"
            if found is None
            else why_no_reset(found, has_reset=tools.has_reset, fabric_manager=tools.fabric_manager())
        )
        if answer is ModeAnswer.IN_USE and found is not None and found.mig_resetless:
            why_not = f"this GPU needs no reset: end {self._named_holders(gpu)}, and request the mode again"
        if why_not is not None:
            raise _FailedError(f"{answer.value}, and {why_not}")
        self._save(gpu, replace(record, step=Step.RESETTING, tries=0))

    def _named_holders(self, gpu: GpuUuid) -> str:
        with self._tools.exporter_closed():
            return "; ".join(self._tools.holders(gpu) or ()) or "the client, which is not a visible process"

    def _reset(self, gpu: GpuUuid, record: OperationRecord) -> None:
        """Detach, reset once, reattach. A reset that hangs blocks the GPU: no second one is started."""
        tools = self._tools
        record = self._tried(gpu, record)
        try:
            self._ask_detach(gpu, record)
            record = self._without_persistence(gpu, record)
            for left in (*range(BUSY_TRIES - 1), None):
                try:
                    self._reset_once(gpu)
                    break
                except errors.GpuBusyError as error:
                    if left is None:
                        raise
                    if self._stopping.wait(self._tools.busy_s):
                        raise _StoppedError from error
        except errors.CommandError as error:
            if error.reason != TIMEOUT:
                raise
            self._block(gpu, record, f"{REBOOT} {error}")
            return
        finally:
            self.detach_request = None
            tools.wake_detaching()
        self._save(gpu, replace(record, step=Step.VERIFYING))

    def _without_persistence(self, gpu: GpuUuid, record: OperationRecord) -> OperationRecord:
        """Switch persistence mode off for the reset; `_end` switches it on again."""
        persistence = self._tools.persistence
        if persistence is None or not persistence.is_on(gpu):
            return record
        record = replace(record, persistence=True)
        self._save(gpu, record)
        persistence.switch(gpu, False)
        return record

    def _with_persistence(self, gpu: GpuUuid, record: OperationRecord) -> str:
        """Switch persistence mode on again; return the problem, "" without one. A reboot restores it."""
        persistence = self._tools.persistence
        if persistence is None or not record.persistence or self._was_rebooted(record):
            return ""
        try:
            persistence.switch(gpu, True)
        except errors.HardwareError as error:
            log.warning("cannot restore persistence mode", extra={"gpu": gpu, "reason": error})
            return f"; persistence mode is off, and was on before: run nvidia-smi -pm 1 -i {gpu} on the node"
        return ""

    def _reset_once(self, gpu: GpuUuid) -> None:
        holders = self._tools.holders(gpu)
        if holders is None:
            raise errors.GpuBusyError(
                "the node's processes cannot be listed, so that the GPU may be open in one of them"
            )
        if holders:
            raise errors.GpuBusyError(f"the GPU is open in {'; '.join(holders)}")
        with self._locked(gpu):
            self._tools.reset(gpu, RESET_S)

    def _ask_detach(self, gpu: GpuUuid, record: OperationRecord) -> None:
        tools = self._tools
        self.detach_request = DetachRequest(
            source=f"{record.operation.phrase} of {gpu}", reason=record.by, ends="it ends with the operation"
        )
        tools.wake_detaching()
        if not self._await(tools.is_detached, DETACH_S):
            raise _FailedError(f"the node process did not detach from the driver: {tools.detach_phase()}")

    def _verify(self, gpu: GpuUuid, record: OperationRecord) -> float:
        """Compare the GPU with the wanted state in a new session, and publish it before the taint is removed."""
        if self._awaits_driver(gpu):
            return LOOK_S
        lacks = self._await_state(lambda: self._lacking(gpu, record), VERIFY_S)
        if lacks is None:
            self._finish(gpu, record)
        elif self._awaits_driver(gpu):
            return LOOK_S
        elif record.operation is Operation.RESET and record.tries < TRIES and may_reset_again(self._reading(gpu)):
            self._save(gpu, replace(record, step=Step.RESETTING))
        else:
            raise _FailedError(f"after {record.operation.phrase}: {lacks}")
        return 0.0

    def _awaits_driver(self, gpu: GpuUuid) -> bool:
        """Return whether the driver is closed: after a reset until it is open again, and while an upgrade needs it."""
        phase = self._tools.detach_phase() or self._tools.inventory.problem or ""
        if phase:
            self._note(gpu, phase)
        return bool(phase)

    def _await_state(self, look: Callable[[], str | None], within_s: float) -> str | None:
        """Read the GPUs until ``look`` returns None or the time ends; return its last difference."""
        lacks: str | None = ""

        def is_right() -> bool:
            nonlocal lacks
            self._tools.inventory.refresh()
            try:
                lacks = look()
            except errors.DraError as error:
                lacks = str(error)
            return lacks is None

        self._await(is_right, within_s)
        return lacks

    def _reading(self, gpu: GpuUuid) -> HealthReading | None:
        try:
            return reading_of(self._tools.readings(), gpu)
        except errors.DraError:
            return None

    def _lacking(self, gpu: GpuUuid, record: OperationRecord) -> str | None:
        tools = self._tools
        if phase := tools.detach_phase():
            return phase
        found = tools.inventory.current().gpu_by_uuid(gpu)
        modes = tools.control.mig_modes(gpu) if found is not None and found.mig_capable else None
        pair = None if modes is None else (modes.current, modes.pending)
        reading = reading_of(tools.readings(), gpu)
        return why_unverified(record.operation, found, pair, reading, fabric_was_ready=record.fabric)

    def _finish(self, gpu: GpuUuid, record: OperationRecord) -> None:
        tools = self._tools
        if record.operation is Operation.RESET:
            tools.repaired([gpu])
        else:
            tools.notes.clear_gpu_note(gpu, MIG_MODE)  # the mode is the administrator's now
        self._end(gpu, record, "done")

    # --- Failures

    def _undo_or_end(self, gpu: GpuUuid, record: OperationRecord, why: str) -> None:
        if record.step is Step.WAITING:
            self._end(gpu, record, f"nothing was changed: {why}", failed=True)
        elif record.step is not Step.UNDOING:
            self._save(gpu, replace(record, step=Step.UNDOING, problem=why))
        elif record.operation is Operation.RESET:
            self._block(gpu, record, f"{REBOOT} {record.problem}; {why}")
        else:
            self._block(gpu, record, f"{record.problem}; the former MIG mode could not be written back: {why}")

    def _undo(self, gpu: GpuUuid, record: OperationRecord) -> float:
        """Write the former mode back, so that no later reset or reboot applies the wanted one. A failed reset leaves
        nothing to write: the GPU has to answer before the taint is removed."""
        if self._awaits_driver(gpu):
            return LOOK_S
        if record.operation is Operation.RESET:
            current = self._tools.inventory.current
            silent = self._await_state(lambda: why_silent(current().gpu_by_uuid(gpu), self._reading(gpu)), REATTACH_S)
            if silent is not None:
                raise _FailedError(silent)
            self._end(gpu, record, record.problem, failed=True)
            return 0.0
        tools, old = self._tools, not record.operation.mig_mode
        try:
            with self._locked(gpu), tools.exporter_closed():
                tools.control.request_mig_mode(gpu, old)
                modes = tools.control.mig_modes(gpu)
        except errors.DeviceLostError as error:
            raise _FailedError(f"{REBOOT} {error}") from error
        if modes.current is not old or not modes.is_settled:
            raise _FailedError(f"the next reset or reboot switches MIG mode {'on' if modes.pending else 'off'}")
        self._end(gpu, record, f"undone, the GPU is as before: {record.problem}", failed=True)
        return 0.0

    def _block(self, gpu: GpuUuid, record: OperationRecord, why: str) -> None:
        self._tools.gate.open(by=GATE)
        self._save(gpu, replace(record, step=Step.BLOCKED, problem=why))
        self._tools.tell("Warning", FAILED_EVENT, self._result(gpu, record, f"the GPU keeps its taint: {why}"))

    def _look_at_blocked(self, gpu: GpuUuid, record: OperationRecord) -> None:
        """End the operation after a reboot, or when the GPU's pending mode has settled."""
        tools, wanted = self._tools, record.operation.mig_mode
        self._note(gpu, record.problem)
        try:
            modes = None if wanted is None else tools.control.mig_modes(gpu)
        except errors.DraError:
            modes = None
        rebooted = self._was_rebooted(record)
        if not rebooted and (modes is None or not modes.is_settled):
            return
        how = "the node was rebooted" if rebooted else "its MIG mode is no longer pending"
        if wanted is None:
            self._end(gpu, record, f"{how}; the taint is removed")
            return
        mode = describe_modes(None if modes is None else (modes.current, modes.pending))
        failed = modes is None or (modes.current, modes.pending) != (wanted, wanted)
        self._end(gpu, record, f"{how}; the taint is removed, and MIG mode is {mode}", failed=failed)

    def _was_rebooted(self, record: OperationRecord) -> bool:
        return bool(self._tools.boot_id) and record.boot_id not in ("", self._tools.boot_id)

    def _resume(self, gpu: GpuUuid, record: OperationRecord) -> OperationRecord:
        """Compare the GPU with the record of a run that died, and return the record for the next step."""
        tools, wanted = self._tools, record.operation.mig_mode
        if record.step in (Step.WAITING, Step.UNDOING, Step.BLOCKED):
            return record
        if wanted is None:
            # A GPU that asked for no reset looks the same before and after one: it is reset again.
            repaired = record.needed and record.tries > 0 and self._lacking(gpu, record) is None
            done = repaired or self._was_rebooted(record)
            return replace(record, step=Step.VERIFYING) if done else record
        modes = tools.control.mig_modes(gpu)
        if modes.current is wanted and modes.is_settled:
            return replace(record, step=Step.VERIFYING)
        return replace(record, step=Step.RESETTING if modes.pending is wanted else Step.WAITING)

    # --- Small parts

    def _tried(self, gpu: GpuUuid, record: OperationRecord) -> OperationRecord:
        """Count an attempt before it is made. Raises after the last."""
        if record.tries >= TRIES:
            raise _FailedError(f"{REBOOT} {TRIES} attempts failed")
        record = replace(record, tries=record.tries + 1, boot_id=self._tools.boot_id)
        self._save(gpu, record)
        return record

    def _locked(self, gpu: GpuUuid) -> AbstractContextManager[object]:
        stack = ExitStack()
        if not stack.enter_context(self._tools.lock(gpu, LOCK_S)):
            stack.close()
            raise _FailedError("another process of this driver changes the GPU")
        return stack

    def _await(self, look: Callable[[], bool], within_s: float) -> bool:
        deadline = self._tools.clock() + within_s
        while not look():
            if self._tools.clock() >= deadline:
                return False
            if self._stopping.wait(self._tools.poll_s):
                raise _StoppedError
        return True

    def _save(self, gpu: GpuUuid, record: OperationRecord) -> None:
        before = self._records.get(gpu)
        self._records = self._tools.file.save(gpu, record)
        if before is None or before.step is not record.step:
            facts = {"gpu": gpu, "operation": record.operation, "step": record.step, "reason": record.problem}
            log.info("GPU operation", extra=facts)
            self._note(gpu, "")

    def _note(self, gpu: GpuUuid, text: str) -> None:
        """Keep the obstacle of an operation for ``remarks``."""
        self._notes = {other: each for other, each in self._notes.items() if other in self._records} | {gpu: text}

    def _end(self, gpu: GpuUuid, record: OperationRecord, result: str, *, failed: bool = False) -> None:
        """Record the end, then remove the taint and admit prepares."""
        tools, last = self._tools, self._tools.file.finished(gpu)
        begun = last.begun if record.number else (*last.begun, tools.now())[-DAILY:]
        finished = Finished(number=record.number or last.number, begun=begun)
        result += self._with_persistence(gpu, record)
        # Before the record is removed, so that a process that dies in between reports it again.
        tools.tell(
            *(("Warning", FAILED_EVENT) if failed else ("Normal", DONE_EVENT)), self._result(gpu, record, result)
        )
        self._records = tools.file.save(gpu, None, finished)
        self._free_since.pop(gpu, None)
        tools.gate.open(by=GATE)
        facts = {"gpu": gpu, "operation": record.operation, "result": result}
        log.log(logging.WARNING if failed else logging.INFO, "GPU operation ended", extra=facts)
        tools.changed()

    def _result(self, gpu: GpuUuid, record: OperationRecord, result: str) -> str:
        return f"{_what(gpu, record)}{f' (request {record.number})' if record.number else ''}: {result}"


def _what(gpu: GpuUuid, record: OperationRecord) -> str:
    return f"{record.operation.phrase} of {gpu}"


_PAUSED: Final = "a guarded operation changes a GPU of this node, which takes up to a few minutes"


def open_operations(
    hardware: "Hardware",
    claims: Claims,
    inventory: Inventory,
    gate: PrepareGate,
    *,
    folder: Path,
    node: Callable[[], OwnNode | None],
    terms: Callable[[], Terms],
    detaching: Callable[[], Detaching],
    exporter: ExporterLock | None,
    repaired: Callable[[Collection[GpuUuid]], None],
    changed: Callable[[], None],
    published: Callable[[], bool],
    tell: Tell,
) -> GpuOperations:
    """``folder`` is the driver's directory; ``exporter`` is None without a usage exporter."""
    holders, journal = hardware.holders(inventory.current), claims.journal
    simulated = hardware.faulty is not None
    tools = OperationTools(
        control=hardware.control,
        reset=hardware.reset,
        has_reset=hardware.has_reset,
        notes=journal,
        file=OperationsFile(folder / FILE),
        inventory=inventory,
        gate=gate,
        lock=lambda gpu, within_s: claims.service.gpu_locks.acquire([gpu], within_s),
        node=node,
        terms=terms,
        uses=lambda: (use.gpu_uuid for use in journal.uses()),
        holders=(lambda _: ()) if simulated else holders.blocking,
        fabric_manager=(lambda: True) if simulated else partial(holders.is_running, "nv-fabricmanager"),
        readings=hardware.backend.health_readings,
        detach_phase=lambda: detaching().problem or "",
        is_detached=lambda: detaching().is_closed,
        wake_detaching=lambda: detaching().worker.wake(),  # noqa: PLW0108 - made later
        changed=changed,
        published=published,
        tell=tell,
        boot_id=journal.boot_id,
        repaired=repaired,
        settle_s=SIMULATED_SETTLE_S if simulated else SETTLE_S,
        exporter_closed=nullcontext if exporter is None else exporter.acquired,
        persistence=hardware.persistence,
    )
    return GpuOperations(tools)
