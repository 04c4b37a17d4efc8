"""Makes simulated GPUs ill as an annotation of the Node asks (``hardware/gpu/simulated/faults.py``), and well
again.

Only a node process with simulated GPUs has this: on a real node the annotation means nothing. The faults are kept with
the state of the GPUs, so a restart changes nothing, and an annotation that is removed while no process runs ends them
at the next start.
"""

import logging
from collections.abc import Callable, Mapping
from functools import partial
from typing import Final

from dra_driver.core.errors import DraError
from dra_driver.core.model.ids import DeviceName
from dra_driver.core.telemetry import metrics
from dra_driver.core.worker import Worker
from dra_driver.hardware.gpu.simulated.backend import SimulatedBackend
from dra_driver.hardware.gpu.simulated.faults import ANNOTATION, FaultOrder, GpuFault, is_partition, parse_orders
from dra_driver.kube.own_node import OwnNode
from dra_driver.node.process.node_events import Tell

log = logging.getLogger(__name__)

THREAD_NAME: Final = "simulated-faults"
SOURCE: Final = "annotation"
RETRY_S: Final = 5.0


class SimulatedFaults:
    """``worker`` runs it; wake it when the Node object may have changed.

    ``node`` gives the last known Node object, None before the first; ``tell`` records an event on it.
    """

    def __init__(self, gpus: SimulatedBackend, node: Callable[[], OwnNode | None], tell: Tell) -> None:
        self._gpus, self._node, self._tell = gpus, node, tell
        self._applied: str | None = None  # the annotation that was followed last
        self.worker = Worker(
            THREAD_NAME, self._turn, on_error=partial(metrics.internal_error, "health"), after_error_s=RETRY_S
        )

    def _turn(self) -> float | None:
        try:
            self.step()
        except DraError as error:
            log.warning("simulated faults cannot be changed; will retry", extra={"reason": error})
            return RETRY_S
        return None

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


def _missing(device: str, known: Mapping[DeviceName, object]) -> str:
    if is_partition(device) and DeviceName(device.partition("-mig-")[0]) in known:
        existing = ", ".join(sorted(name for name in known if is_partition(name))) or "none"
        return f"this partition does not exist now, so nothing can be wrong with it; existing ones: {existing:.200}"
    gpus = ", ".join(sorted(name for name in known if not is_partition(name)))
    return f"this node has no such device, only {gpus or 'none'}"
