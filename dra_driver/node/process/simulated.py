"""Apply annotations to simulated GPUs: the Node's annotation sets faults, a claim's sets usage.

Only a node process with simulated GPUs imports this (``hardware/gpu/simulated/faults.py`` and ``usage.py``). Faults are
kept with the state of the GPUs over restarts. Each claim is read once after it was prepared.
"""

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Final

from dra_driver.core.errors import DraError, NotFoundError
from dra_driver.core.model.ids import DeviceName
from dra_driver.core.telemetry import metrics
from dra_driver.core.worker import Worker
from dra_driver.hardware.gpu.simulated.backend import SimulatedBackend
from dra_driver.hardware.gpu.simulated.faults import ANNOTATION as FAULTS
from dra_driver.hardware.gpu.simulated.faults import FaultOrder, GpuFault, is_partition, parse_orders
from dra_driver.hardware.gpu.simulated.usage import ANNOTATION as USAGE
from dra_driver.hardware.gpu.simulated.usage import NAME, SimulatedUse, UseStep, change_uses, parse_steps
from dra_driver.kube import paths
from dra_driver.kube.own_node import OwnNode
from dra_driver.kube.rest import RestClient
from dra_driver.node.claims import Entry
from dra_driver.node.process.node_events import Tell

log = logging.getLogger(__name__)

__all__ = ["NAME", "SimulatedFaults", "SimulatedUses"]
SOURCE: Final = "annotation"
RETRY_S: Final = 5.0
CHECK_S: Final = 60.0
"""Interval without a notification, in case a change of a claim is missed."""
READ_S: Final = 10.0


class SimulatedFaults:
    """``worker`` runs it; wake it when the Node object may have changed. ``node`` returns the last known Node object;
    ``tell`` records an event on it."""

    def __init__(self, gpus: SimulatedBackend, node: Callable[[], OwnNode | None], tell: Tell) -> None:
        self._gpus, self._node, self._tell = gpus, node, tell
        self._applied: str | None = None  # the last applied annotation
        self.worker = Worker(
            "simulated-faults", self._turn, on_error=partial(metrics.internal_error, "health"), after_error_s=RETRY_S
        )

    def _turn(self) -> float | None:
        try:
            self.step()
        except DraError as error:
            log.warning("cannot change simulated faults; will retry", extra={"reason": error})
            return RETRY_S
        return None

    def step(self) -> None:
        """Apply the annotation. Raises DraError: call it again later."""
        node = self._node()
        if node is None:
            return
        text = node.annotations.get(FAULTS, "").strip()
        if text == self._applied:
            return
        try:
            orders = parse_orders(text)
        except ValueError as error:
            self._refuse(f"annotation {FAULTS}: {error}; nothing changes")
        else:
            self._follow(text, orders)
        self._applied = text

    def _follow(self, text: str, orders: tuple[FaultOrder, ...]) -> None:
        devices = self._gpus.devices()
        found = []
        for order in orders:
            place = devices.get(order.device)
            if place is None:
                self._refuse(f"annotation {FAULTS}: {order}: {_missing(order.device, devices)}")
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
        return f"this partition does not exist, so it cannot fail; existing partitions: {existing:.200}"
    gpus = ", ".join(sorted(name for name in known if not is_partition(name)))
    return f"this node has no such device, only {gpus or 'none'}"


class SimulatedUses:
    """``worker`` runs it; wake it when a claim was prepared or unprepared. ``entries`` returns the journal's and can
    raise StorageError; ``file`` is written for the usage exporter."""

    def __init__(self, rest: RestClient, entries: Callable[[], Iterable[Entry]], file: Path) -> None:
        self._rest, self._entries, self._file = rest, entries, file
        self._steps: dict[str, tuple[UseStep, ...]] = {}  # by the UID of a claim; () without a valid annotation
        self.worker = Worker(
            "simulated-uses", self._turn, on_error=partial(metrics.internal_error, "assignments"), after_error_s=RETRY_S
        )

    def _turn(self) -> float:
        try:
            self.step()
        except DraError as error:
            log.warning("cannot change simulated usage; will retry", extra={"reason": error})
            return RETRY_S
        return CHECK_S

    def step(self) -> None:
        """Write the use of prepared claims, and drop deleted claims; uses by process id stay. Raises DraError."""
        prepared = {entry.ref.uid: entry for entry in self._entries() if entry.state == "prepared"}
        self._steps = {uid: self._read(entry) for uid, entry in prepared.items()}
        uses = tuple(use for uid, entry in prepared.items() for use in _uses(entry, self._steps[uid]))
        change_uses(self._file, lambda former: (*(use for use in former if use.claim_uid is None), *uses))

    def _read(self, entry: Entry) -> tuple[UseStep, ...]:
        ref = entry.ref
        if ref.uid in self._steps:
            return self._steps[ref.uid]
        try:
            claim = self._rest.get(paths.resource_claim(ref.namespace, ref.name), within_s=READ_S)
        except NotFoundError:
            return ()
        metadata = claim.get("metadata") or {}
        text = (metadata.get("annotations") or {}).get(USAGE)
        if text is None or metadata.get("uid") != ref.uid:
            return ()
        try:
            return parse_steps(text)
        except ValueError as error:
            log.warning(
                "refused an invalid usage annotation", extra={"claim": ref, "annotation": USAGE, "reason": error}
            )
            return ()


def _uses(entry: Entry, steps: tuple[UseStep, ...]) -> Sequence[SimulatedUse]:
    if not steps:
        return ()
    return [
        SimulatedUse(
            key=f"{entry.ref.uid}/{device.request}/{device.device}/{device.share_id or ''}",
            gpu_uuid=device.gpu_uuid,
            gi_id=device.partition.live.gi_id if device.partition is not None and device.partition.live else None,
            since=entry.changed_at,
            claim_uid=entry.ref.uid,
            steps=steps,
        )
        for device in entry.devices
        if not device.admin_access and (device.partition is None or device.partition.live is not None)
    ]
