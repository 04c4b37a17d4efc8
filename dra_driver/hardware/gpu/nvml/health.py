"""Health of real GPUs: one look at all of them, at a GPU that hangs and at those that are gone, too.

Each GPU is asked in a thread that is left behind when a call does not return (``reads.py``), and in the GPU's turn
(``turns.py``), so a GPU that hangs keeps one thread in all. Handles are looked up by index at each look, which answers
GPU_IS_LOST for a lost one: one kept from earlier is invalid after a change of MIG mode.
"""

from collections.abc import Collection, Mapping, Set
from functools import partial
from operator import itemgetter
from pathlib import Path

import pynvml
from msgspec import Struct, field

from dra_driver.core.errors import DeviceLostError
from dra_driver.core.model.health import HealthReading, RecoveryAction
from dra_driver.core.model.ids import GpuUuid
from dra_driver.hardware.gpu.nvml.errors import driver_call, is_passing, optional
from dra_driver.hardware.gpu.nvml.health_probes import Vitals, read_vitals
from dra_driver.hardware.gpu.nvml.last_values import KEPT_LOOKS
from dra_driver.hardware.gpu.nvml.node import Known, Node
from dra_driver.hardware.gpu.nvml.pci import sysfs_address
from dra_driver.hardware.gpu.nvml.reads import NoAnswerError, Reads
from dra_driver.hardware.gpu.nvml.session import Session
from dra_driver.hardware.gpu.nvml.turns import GiveWay, Patience

PCI_DEVICES = "bus/pci/devices"


class _Seen(Struct):
    """What is known of one GPU. ``were_up`` are NVLinks that this process has seen up."""

    bus_id: str | None = None
    vitals: Vitals = field(default_factory=Vitals)
    were_up: Set[int] = frozenset()
    had_links_down: bool = False
    failed_looks: int = 0


class HealthLooks:
    """For one thread at a time, but for ``forget``."""

    def __init__(self, session: Session, node: Node, sysfs_root: str, patience: Patience) -> None:
        self._session, self._node, self._patience = session, node, patience
        self._pci_devices = Path(sysfs_root, PCI_DEVICES)
        self._reads: Reads[GpuUuid] = Reads()
        self._seen: dict[GpuUuid, _Seen] = {}  # outlives sessions

    @property
    def known(self) -> Collection[GpuUuid]:
        """The GPUs that were seen and not forgotten. Any thread may read it."""
        return tuple(self._seen)

    def forget(self, gpu: GpuUuid) -> None:
        """See ``HealthSource.forget_gpu``."""
        self._seen.pop(gpu, None)

    def read(self, generation: int) -> tuple[HealthReading, ...]:
        """See ``HealthSource.health_readings``; the caller uses session ``generation``."""
        known = self._node.knowledge(generation)
        count = driver_call("nvmlDeviceGetCount_v2", pynvml.nvmlDeviceGetCount)
        answers = self._answers(known, count)
        troubles: dict[GpuUuid, tuple[int, Exception | None]] = {}
        for index, answer in answers.items():
            uuid = known.uuids.get(index) if isinstance(answer, Exception) else answer
            if uuid is not None:
                troubles[uuid] = index, answer if isinstance(answer, Exception) else None
        for uuid in troubles:
            self._seen.setdefault(uuid, _Seen())
        peers_up = self._links_in_fabric(troubles)
        return tuple(
            self._reading(known, uuid, seen, troubles.get(uuid), peers_up)
            for uuid, seen in sorted(self._seen.items(), key=itemgetter(0))
        )

    def _answers(self, known: Known, count: int) -> Mapping[int, GpuUuid | Exception]:
        """The UUID of each GPU that was read, by index, or why it was not."""
        stuck = [index for index in range(count) if self._node.is_stuck(index)]
        jobs = [
            (index, partial(self._look, known, index), self._patience.look_s)
            for index in range(count)
            if index not in stuck
        ]
        answers = {**self._reads.run(jobs), **{index: NoAnswerError() for index in stuck}}
        for answer in answers.values():
            if isinstance(answer, Exception) and not isinstance(answer, DeviceLostError | GiveWay | NoAnswerError):
                raise answer  # the driver as a whole, or a defect here
        return answers

    def _look(self, known: Known, index: int) -> GpuUuid:
        """Runs in a thread of its own. Raises as ``Node.opened``."""
        with self._session.use(known.generation, joins=True), self._node.opened(known, index) as (uuid, handle):
            seen = self._seen.setdefault(uuid, _Seen())
            if seen.bus_id is None:
                seen.bus_id = optional(
                    "nvmlDeviceGetPciInfo_v3", lambda: sysfs_address(pynvml.nvmlDeviceGetPciInfo(handle))
                )
            read_vitals(handle, seen.vitals)
            seen.were_up |= {link for link, up in (seen.vitals.links or {}).items() if up}
            seen.failed_looks = 0
            return uuid

    def _links_in_fabric(self, here: Mapping[GpuUuid, tuple[int, Exception | None]]) -> frozenset[int]:
        """Links that are up on any GPU in an NVSwitch fabric: there the GPUs of a node have the same ones."""
        vitals = [self._seen[uuid].vitals for uuid, (_, problem) in here.items() if problem is None]
        return frozenset(
            link for one in vitals if one.fabric_unhealthy is not None for link, up in (one.links or {}).items() if up
        )

    def _reading(
        self,
        known: Known,
        uuid: GpuUuid,
        seen: _Seen,
        found: tuple[int, Exception | None] | None,
        peers_up: frozenset[int],
    ) -> HealthReading:
        on_bus = self._is_on_bus(seen.bus_id)
        reason, hangs = self._why_unreachable(known, uuid, seen, found)
        if reason is not None:
            problem = found[1] if found is not None else None
            passing = isinstance(problem, DeviceLostError) and is_passing(problem)
            return HealthReading(gpu_uuid=uuid, unreachable=reason, hangs=hangs, passing=passing, on_bus=on_bus)
        vitals = seen.vitals
        pending, failed = vitals.rows or (None, None)
        answered, action = found is not None and found[1] is None, vitals.recovery_action
        return HealthReading(
            gpu_uuid=uuid,
            on_bus=on_bus,
            # An old word that no recovery is needed would heal errors that came after it.
            recovery_action=action if answered or action is not RecoveryAction.NONE else None,
            rows_pending=pending,
            rows_failed=failed,
            pages_pending=vitals.pages_pending,
            links_down=_links_down(seen, peers_up),
            fabric_unhealthy=vitals.fabric_unhealthy,
        )

    def _why_unreachable(
        self, known: Known, uuid: GpuUuid, seen: _Seen, found: tuple[int, Exception | None] | None
    ) -> tuple[str | None, bool]:
        """The reason, and whether it is that a call has not returned; None for a GPU that answers, or did last."""
        if found is None:
            return f"GPU {uuid} is not on this node any more: the NVIDIA driver does not list it", False
        index, problem = found
        if isinstance(problem, DeviceLostError):
            seen.failed_looks += 1
            passes = is_passing(problem) and seen.failed_looks <= KEPT_LOOKS
            return (None if passes else str(problem)), False
        if problem is None or not self._hangs(known, index):
            return None, False
        return self._node.turn(uuid).why_stuck(), True

    def _hangs(self, known: Known, index: int) -> bool:
        return self._node.hangs(known, index) or self._reads.stuck_s(index) >= self._patience.stuck_s

    def _is_on_bus(self, bus_id: str | None) -> bool | None:
        """None where sysfs does not show PCI devices."""
        if bus_id is None:
            return None
        return (self._pci_devices / bus_id).exists() or (False if self._pci_devices.is_dir() else None)


def _links_down(seen: _Seen, peers_up: frozenset[int]) -> tuple[int, ...] | None:
    """The links that should be up: they were, or in an NVSwitch fabric they are on another GPU.

    None where it is not known of a link that is down: a bridge may be missing, or the link went down before this
    process began.
    """
    links = seen.vitals.links
    if not links:
        return None
    in_fabric = peers_up if seen.vitals.fabric_unhealthy is not None else frozenset()
    down = [link for link, up in links.items() if not up]
    wrong = tuple(link for link in down if link in seen.were_up or link in in_fabric)
    seen.had_links_down = seen.had_links_down or bool(wrong)
    return None if down and not wrong and not seen.had_links_down else wrong
