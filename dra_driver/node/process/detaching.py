"""Detach from the NVIDIA driver on request, for a driver upgrade or a GPU reset; reattach when the request ends.

    attached     a request comes             new prepares are refused, all devices tainted
    waiting      for claims to end, where the request requires it; then for calls in progress
    closing      every NVML handle is closed; a call that hangs keeps the process here
    detached     the request ends            a new session is opened with the installed library
    reattaching  the GPUs have been read     the taint is removed, prepares are admitted

A request is the Node's annotation ``gpu.dra-driver.io/detach: <reason>`` (any value but ``false``), the file ``detach``
in the driver's directory, or one of `LABELS`, which waits until no claim is prepared. k8s-driver-manager (bd62ca7,
cmd/driver-manager/main.go:47, 656-740) sets a label that is ``true`` to ``paused-for-driver-upgrade``, and any other
value to ``<value>_paused-for-driver-upgrade``. It sets the label of GPU clients, evicts the pods that have claims, then
sets the label of DRA drivers and unloads the kernel modules.
"""

import errno
import logging
import os
import stat
import time
from collections.abc import Callable
from enum import Enum
from functools import partial
from pathlib import Path
from typing import Final

from msgspec import Struct

from dra_driver.core.errors import DraError
from dra_driver.core.model.drain import DETACH_ANNOTATION, clean
from dra_driver.core.telemetry import metrics
from dra_driver.core.worker import Worker
from dra_driver.hardware.gpu.backend import Detachable
from dra_driver.hardware.gpu.inventory import Inventory
from dra_driver.kube.own_node import OwnNode
from dra_driver.node.claims import PrepareGate
from dra_driver.node.process.node_events import Tell

log = logging.getLogger(__name__)

ANNOTATION: Final = DETACH_ANNOTATION
FILE: Final = "detach"
LABELS: Final = ("nvidia.com/gpu.deploy.client", "nvidia.com/gpu.deploy.dra-driver")
PAUSED: Final = "paused-for-driver-upgrade"
MAX_FILE_BYTES: Final = 4096
# Errors of open() that prove that the file exists. Others, such as EIO, prove nothing.
_EXISTS: Final = frozenset({errno.EACCES, errno.EPERM, errno.ELOOP, errno.ENXIO})


class DetachRequest(Struct, frozen=True, kw_only=True):
    """``source`` is the annotation, file or label as a noun; ``ends`` says how to end the request."""

    source: str
    reason: str
    ends: str
    when_unused: bool = False

    @property
    def taint_value(self) -> str:
        return "driver-upgrade" if self.when_unused else "requested"

    def __str__(self) -> str:
        return f"{self.source}: {self.reason}"


def find_request(node: OwnNode | None, file: "str | None", path: Path) -> DetachRequest | None:
    """The request in force: annotation, then file, then label. ``file`` is the content of ``path``."""
    if node is not None and (asked := node.annotations.get(ANNOTATION)) is not None and asked.lower() != "false":
        return DetachRequest(
            source=f"annotation {ANNOTATION} of node {node.name}",
            reason=clean(asked),
            ends=f"remove the annotation: kubectl annotate node {node.name} {ANNOTATION}-",
        )
    if file is not None:
        return DetachRequest(source=f"file {path}", reason=clean(file), ends="remove the file")
    label = next((key for key in LABELS if node is not None and PAUSED in node.labels.get(key, "")), None)
    if node is None or label is None:
        return None
    return DetachRequest(
        source=f"label {label} of node {node.name}",
        reason=PAUSED,
        ends="it ends when the driver upgrade resets the label",
        when_unused=True,
    )


class DetachFile:
    def __init__(self, path: Path) -> None:
        self.path = path
        self._last: str | None = None

    def read(self) -> str | None:
        """The content, at most `MAX_FILE_BYTES`; None if the file does not exist. An unreadable file requests a detach
        too. After an error that does not show whether it exists, the last result counts. For one thread."""
        try:
            descriptor = os.open(self.path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        except FileNotFoundError:
            self._last = None
        except OSError as error:
            if error.errno in _EXISTS:
                self._last = f"it cannot be read ({error.strerror})"
        else:
            self._last = _content(descriptor)
        return self._last


def _content(descriptor: int) -> str:
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            return "it is not a regular file"
        return os.read(descriptor, MAX_FILE_BYTES).decode("utf-8", "replace")
    except OSError as error:
        return f"it cannot be read ({error.strerror})"
    finally:
        os.close(descriptor)


THREAD_NAME: Final = "detach"
LOOK_S: Final = 1.0
REST_S: Final = 30.0
"""Interval without a request, in case a wakeup is missed."""
REATTACH_LOOK_S: Final = 0.2
PUBLISH_LOOK_S: Final = 0.02
WORK_S: Final = 45.0
"""Limit for calls in progress before the driver is closed; they end within 40 s."""
PUBLISH_S: Final = 2.0
"""Limit for the taint to reach the API server before the driver is closed."""
CLOSE_S: Final = 10.0
"""Seconds that one attempt waits for running NVML calls."""

_STUCK: Final = (
    "an NVML call has not returned, or a device file is still open: see the log of the node process; if this persists, "
    "delete its pod: the next pod starts without the driver"
)
_EXPORTER: Final = (
    "the usage exporter of this node has the driver open: see its log; if this persists, delete its pod: the next pod "
    "starts without the driver"
)


class Phase(Enum):
    ATTACHED = ""
    WAITING = "waiting to detach from the NVIDIA driver"
    CLOSING = "detaching from the NVIDIA driver"
    DETACHED = "detached from the NVIDIA driver"
    REATTACHING = "reattaching to the NVIDIA driver"


class _State(Struct, frozen=True):
    """``note`` names the present obstacle. Replaced as a whole, so that any thread reads it without a lock."""

    phase: Phase = Phase.ATTACHED
    request: DetachRequest | None = None
    note: str = ""


class Detaching:
    """Call ``step`` before the hardware is opened, then start ``worker``; the rest from any thread.

    Wake the worker when a request or the number of claims may have changed. ``prepared`` counts the claims in the
    journal and can raise StorageError. ``changed`` is called when the taint changes; ``published`` returns whether the
    API server has the result. ``exporter_closed`` waits briefly and returns whether the usage exporter has closed the
    driver.
    """

    def __init__(
        self,
        gpus: Detachable,
        inventory: Inventory,
        gate: PrepareGate,
        *,
        find: Callable[[], DetachRequest | None],
        prepared: Callable[[], int],
        changed: Callable[[], None],
        published: Callable[[], bool],
        tell: Tell,
        exporter_closed: Callable[[], bool] = lambda: True,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._gpus, self._inventory, self._gate = gpus, inventory, gate
        self._find, self._prepared, self._changed, self._tell = find, prepared, changed, tell
        self._published, self._exporter_closed, self._clock = published, exporter_closed, clock
        self._state = _State()
        self.worker = Worker(
            THREAD_NAME, self.step, on_error=partial(metrics.internal_error, "detach"), after_error_s=LOOK_S
        )

    @property
    def taint_value(self) -> str | None:
        """The value of the taint of all devices; None without one."""
        request = self._state.request
        return request.taint_value if request is not None else None

    @property
    def is_detached(self) -> bool:
        return self._state.phase in (Phase.CLOSING, Phase.DETACHED)

    @property
    def is_closed(self) -> bool:
        """Return whether every handle is closed, also the usage exporter's."""
        return self._state.phase is Phase.DETACHED

    @property
    def detached(self) -> str | None:
        """The reason why the driver must not be used; None while it can be."""
        return self.problem if self.is_detached else None

    @property
    def problem(self) -> str | None:
        """The reason why no new claim is prepared; None while attached."""
        state = self._state
        if state.request is None:
            return None
        return f"{state.phase.value} ({state.request}){'; ' if state.note else ''}{state.note}"

    def step(self) -> float:
        """Take the next step; return the seconds until another. Takes up to `WORK_S` and `CLOSE_S` while calls are in
        progress."""
        request = self._find()
        if request is not None:
            self._detach(request)
        elif self._state.phase is Phase.REATTACHING:
            problem = self._inventory.problem
            if problem is None:  # the first successful read ends the reattachment
                self._attached("reattached to the NVIDIA driver")
            else:
                self._set(Phase.REATTACHING, self._state.request, problem)
            return REATTACH_LOOK_S
        elif self._state.phase in (Phase.CLOSING, Phase.DETACHED):
            log.info("reattaching to the NVIDIA driver")
            self._gpus.reattach()
            self._set(Phase.REATTACHING, self._state.request, "")
            self._inventory.refresh()
            return REATTACH_LOOK_S
        elif self._state.phase is Phase.WAITING:
            self._attached("the NVIDIA driver stays attached: the detach request was withdrawn")
        else:
            return REST_S
        return LOOK_S

    def _detach(self, request: DetachRequest) -> None:
        state = self._state
        if state.phase is Phase.DETACHED:
            if request != state.request:  # the source or the reason of the request changed
                self._close(request)
            return
        self._gate.close(_refusal(request))
        if state.phase in (Phase.ATTACHED, Phase.REATTACHING) or state.request != request:
            log.info("detach from the NVIDIA driver requested", extra={"by": request.source, "reason": request.reason})
            self._tell("Normal", "DriverDetaching", f"{Phase.WAITING.value} ({request})")
        if state.phase is not Phase.CLOSING:
            self._set(Phase.WAITING, request, self._waits_for(request))
            if self._state.note:
                return
            if not self._gate.wait_idle(WORK_S):
                log.warning("kubelet calls are still in progress; detaching from the NVIDIA driver anyway")
            if self._find() != request:
                return  # the next step reads the new request
            if note := self._waits_for(request):  # one of these calls prepared a claim
                self._set(Phase.WAITING, request, note)
                return
            # The next run may find only the slices that this run published: they need the taint.
            until = self._clock() + PUBLISH_S
            while not self._published() and self._clock() < until and not self.worker.pause(PUBLISH_LOOK_S):
                pass
        self._close(request)

    def _waits_for(self, request: DetachRequest) -> str:
        """The obstacles to closing the driver; "" without one."""
        if not request.when_unused:
            return ""
        try:
            left = self._prepared()
        except DraError as error:
            return f"cannot read whether claims are prepared: {error}"
        return f"waiting for {left} prepared claim{'s' if left > 1 else ''} to end" if left else ""

    def _close(self, request: DetachRequest) -> None:
        was, asked_anew = self._state.phase, self._state.request != request
        if was is Phase.WAITING:  # before the call: no other thread may use the driver, such as a search for its files
            self._set(Phase.CLOSING, request, "NVML calls are in progress")
        done = self._gpus.detach(str(request), CLOSE_S)
        self._inventory.refresh()
        note = _STUCK if not done else "" if self._exporter_closed() else _EXPORTER
        if not note:
            self._gate.close(_refusal(request))
            self._set(Phase.DETACHED, request)
            if was is not Phase.DETACHED or asked_anew:
                log.info("detached from the NVIDIA driver", extra={"by": request.source, "reason": request.reason})
                self._tell("Normal", "DriverDetached", f"{Phase.DETACHED.value} ({request})")
            return
        if self._state.note != note:
            self._tell("Warning", "DriverDetachIncomplete", f"{Phase.CLOSING.value} ({request}); {note}")
        self._set(Phase.CLOSING, request, note)

    def _attached(self, message: str) -> None:
        self._gate.open()
        self._set(Phase.ATTACHED, None)
        log.info(message)
        self._tell("Normal", "DriverReattached", message)

    def _set(self, phase: Phase, request: DetachRequest | None, note: str = "") -> None:
        before, self._state = self._state, _State(phase, request, note)
        metrics.detached.set(phase is Phase.DETACHED)
        if (before.request and before.request.taint_value) != self.taint_value or before.phase is not phase:
            self._changed()


def _refusal(request: DetachRequest) -> str:
    return f"this node detaches from its NVIDIA driver, requested by {request}; {request.ends}"


def wake_for_file(detaching: Detaching, plugin_dir: Path) -> None:
    if os.path.lexists(plugin_dir / FILE):
        detaching.worker.wake()
