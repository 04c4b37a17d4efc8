"""Makes simulated GPUs ill as an annotation of the Node asks (``hardware/gpu/simulated/fault_orders.py``), and well
again.

Only a node process with simulated GPUs has this: on a real node the annotation means nothing. The faults are kept with
the state of the GPUs, so a restart changes nothing, and an annotation that is removed while no process runs ends them
at the next start.
"""

import logging
import threading
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Final, Literal, Protocol

from dra_driver.core.errors import DraError
from dra_driver.core.model.ids import DeviceName, GpuUuid
from dra_driver.core.telemetry import metrics
from dra_driver.hardware.gpu.simulated.fault_orders import ANNOTATION, FaultOrder, is_partition, parse_orders
from dra_driver.hardware.gpu.simulated.faults import GpuFault
from dra_driver.kube.events import EventRecorder
from dra_driver.kube.own_node import OwnNode, OwnNodeWatch
from dra_driver.node.process.node_events import tell

log = logging.getLogger(__name__)

THREAD_NAME: Final = "simulated-faults"
SOURCE: Final = "annotation"
RETRY_S: Final = 5.0
LONGEST_WAIT_S: Final = 3600.0

Tell = Callable[[Literal["Normal", "Warning"], str, str], None]


class FaultyGpus(Protocol):
    """The part of ``gpu.simulated.health.SimulatedHealth`` that is needed here."""

    def devices(self) -> Mapping[DeviceName, tuple[GpuUuid, int | None]]: ...
    def injected(self, source: str) -> tuple[GpuFault, ...]: ...
    def replace_injected(self, source: str, found: Iterable[GpuFault]) -> None: ...


class SimulatedFaults:
    """``start`` and ``stop`` once, by one owner; ``wake`` from any thread.

    ``node`` gives the last known Node object, None before the first; ``tell`` records an event on it.
    """

    def __init__(self, gpus: FaultyGpus, node: Callable[[], OwnNode | None], tell: Tell) -> None:
        self._gpus, self._node, self._tell = gpus, node, tell
        self._applied: str | None = None  # the annotation that was followed last
        self._awake = threading.Event()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name=THREAD_NAME, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self, timeout_s: float) -> None:
        """Ends the thread; the GPUs stay as they are. Idempotent."""
        self._stopping.set()
        self._awake.set()
        if self._thread.is_alive():
            self._thread.join(timeout_s)

    def wake(self) -> None:
        """The Node object may have changed. Returns at once."""
        self._awake.set()

    def step(self) -> None:
        """Follow the annotation. The thread calls it after each change. Raises DraError: call it again later."""
        node = self._node()
        if node is None:
            return
        text = node.annotations.get(ANNOTATION, "").strip()
        if text == self._applied:
            return
        try:
            orders = parse_orders(text)
        except ValueError as error:
            self._refuse(f"annotation {ANNOTATION}: {error}; nothing changes")
        else:
            self._follow(text, orders)
        self._applied = text

    def _follow(self, text: str, orders: tuple[FaultOrder, ...]) -> None:
        devices = self._gpus.devices()
        found = []
        for order in orders:
            place = devices.get(order.device)
            if place is None:
                self._refuse(f"annotation {ANNOTATION}: {order}: {_missing(order.device, devices)}")
                continue
            gpu, gi_id = place
            found.append(GpuFault(gpu=gpu, fault=order.fault, gi_id=gi_id, source=SOURCE))
        if tuple(found) == self._gpus.injected(SOURCE):
            return
        self._gpus.replace_injected(SOURCE, found)
        log.info("simulated faults changed", extra={"faults": text or "none"})
        self._tell("Normal", "SimulatedFault", f"simulated faults: {text or 'none'}")

    def _refuse(self, message: str) -> None:
        log.warning("simulated fault refused", extra={"reason": message})
        self._tell("Warning", "SimulatedFaultRefused", message)

    def _run(self) -> None:
        while not self._stopping.is_set():
            self._awake.clear()
            wait_s = LONGEST_WAIT_S
            try:
                self.step()
            except DraError as error:
                log.warning("simulated faults cannot be changed; will retry", extra={"reason": error})
                wait_s = RETRY_S
            except Exception:  # thread boundary: the next change may be followed
                log.exception("following simulated faults failed with an internal error")
                metrics.internal_error("health")
                wait_s = RETRY_S
            self._awake.wait(wait_s)


def follow_faults(gpus: FaultyGpus, own_node: OwnNodeWatch, events: EventRecorder) -> Callable[[float], None]:
    """Begin to follow the annotation; returns what ends it within a number of seconds."""
    faults = SimulatedFaults(gpus, own_node.current, partial(tell, own_node, events))
    own_node.subscribe(faults.wake)
    faults.start()
    return faults.stop


def _missing(device: str, known: Mapping[DeviceName, object]) -> str:
    if is_partition(device) and DeviceName(device.partition("-mig-")[0]) in known:
        existing = ", ".join(sorted(name for name in known if is_partition(name))) or "none"
        return f"this partition does not exist now, so nothing can be wrong with it; existing ones: {existing:.200}"
    gpus = ", ".join(sorted(name for name in known if not is_partition(name)))
    return f"this node has no such device, only {gpus or 'none'}"
