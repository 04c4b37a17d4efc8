"""Read the health of real GPUs (nvml.h, by function); docs/health.md describes its use.

Each property is optional, as boards and drivers lack some. A property that fails keeps its last value, except "no
recovery needed". So do remapped rows, which NVML does not report while GPU instances exist.

NVLinks and MIG exclude each other (open-gpu-kernel-modules 595.45.04). With MIG enabled, the driver reports no link
(kmigmgrIsMIGNvlinkP2PSupported, subdeviceCtrlCmdBusGetNvlinkStatus). It enables MIG with the first GPU instance on
Hopper and with the mode on Ampere, and shuts a direct link down at both ends
(nvlink_core_powerdown_intranode_conns_from_active_to_off); a link to an NVSwitch belongs to one GPU.
"""

import logging
from collections.abc import Callable, Collection, Mapping, Set
from functools import partial
from operator import itemgetter
from typing import Final, TypeVar

import pynvml
from msgspec import Struct, field

from dra_driver.core.errors import DeviceLostError
from dra_driver.core.model.health import HealthReading, RecoveryAction
from dra_driver.core.model.ids import GpuUuid
from dra_driver.hardware.gpu.nvml import errors
from dra_driver.hardware.gpu.nvml.call_locks import NoAnswerError, Patience, Reads, YieldToWriter
from dra_driver.hardware.gpu.nvml.last_values import KEPT_LOOKS
from dra_driver.hardware.gpu.nvml.node import Known, Node
from dra_driver.hardware.gpu.nvml.properties import FABRIC, SWITCH, link_end, link_states, read_address, read_info
from dra_driver.hardware.gpu.nvml.session import Session

log = logging.getLogger(__name__)

Handle = pynvml.c_nvmlDevice_t
T = TypeVar("T")

RECOVERY_ACTION: Final = 230  # NVML_FI_DEV_GET_GPU_RECOVERY_ACTION, drivers from 565 on
ACTIONS: Final = {
    0: RecoveryAction.NONE,
    1: RecoveryAction.GPU_RESET,
    2: RecoveryAction.NODE_REBOOT,
    3: RecoveryAction.DRAIN_P2P,
    4: RecoveryAction.DRAIN_AND_RESET,
    5: RecoveryAction.IMEX_DOMAIN,
    6: RecoveryAction.BUS_RESET,
    7: RecoveryAction.NODE_REBOOT,  # NVML_GPU_RECOVERY_ACTION_SYSTEM_REBOOT
}
FIELDS: Final = "nvmlDeviceGetFieldValues"
ROWS: Final = "nvmlDeviceGetRemappedRows"
PAGES: Final = "nvmlDeviceGetRetiredPagesPendingStatus"
LINK: Final = "nvmlDeviceGetNvLinkState"
LINK_END: Final = "nvmlDeviceGetNvLinkRemotePciInfo_v2"
ADDRESS: Final = "nvmlDeviceGetPciInfo_v3"
MODE: Final = "nvmlDeviceGetMigMode"
FABRIC_FLAGS: Final = ((0, "degraded bandwidth"), (2, "route recovery"), (4, "route unhealthy"), (6, "access timeouts"))
"""First bit of each pair in the fabric's health mask in which 1 stands for the trouble (nvml.h)."""
FABRIC_CONFIGURATION: Final = 8, 0xF
CONFIGURED: Final = (0, 1)  # not supported, none
CONFIGURATIONS: Final = {
    2: "incorrect system GUID",
    3: "incorrect chassis serial number",
    4: "no partition",
    5: "insufficient NVLinks",
    6: "incompatible GPU firmware",
    7: "invalid location",
    8: "invalid GPU state",
}


class Vitals(Struct):
    """The last answers of one GPU; None for unreported values. ``links``: its NVLinks that are up; None with MIG.
    ``mig``: MIG mode is on or pending; instances exist only then."""

    recovery_action: RecoveryAction | None = None
    rows: tuple[bool, bool] | None = None
    pages_pending: bool | None = None
    mig: bool | None = None
    links: Mapping[int, bool] | None = None
    fabric_unhealthy: str | None = None


def read_vitals(handle: Handle, vitals: Vitals) -> None:
    """Read all into ``vitals``. Raises DeviceLostError for a lost GPU, and DriverUnavailableError."""
    vitals.recovery_action = _read(FIELDS, lambda: _recovery_action(handle), _needed(vitals.recovery_action))
    vitals.rows = _read(ROWS, lambda: _rows(handle), vitals.rows, absent=vitals.rows)
    if vitals.rows is None:  # boards before Ampere retire pages
        vitals.pages_pending = _read(
            PAGES, lambda: bool(pynvml.nvmlDeviceGetRetiredPagesPendingStatus(handle)), vitals.pages_pending
        )
    links = _read(LINK, lambda: dict(link_states(handle, vitals.links or {})) or None, vitals.links)
    # After the links: they go down when another program enables MIG mode between both reads.
    vitals.mig = _read(MODE, lambda: any(pynvml.nvmlDeviceGetMigMode(handle)), vitals.mig, absent=False)
    vitals.links = links if vitals.mig is False else None
    vitals.fabric_unhealthy = _read(FABRIC, lambda: _fabric(handle), vitals.fabric_unhealthy)


def _read(function: str, call: Callable[[], T | None], last: T | None, absent: T | None = None) -> T | None:
    """Return the answer; ``absent`` for a value that the GPU does not report, ``last`` after another failure."""
    try:
        return call()
    except pynvml.NVMLError as error:
        if error.value in errors.ABSENT:
            return absent
        if error.value in errors.WITHDRAWS or error.value in errors.DRIVER_TROUBLE:
            errors.raise_translated(function, error)
        log.debug("health of a GPU cannot be read", extra={"function": function, "reason": errors.describe(error)})
        return last
    except (ValueError, pynvml.NVMLLibraryMismatchError):  # as `errors.optional`
        return absent


def _needed(action: RecoveryAction | None) -> RecoveryAction | None:
    return None if action is RecoveryAction.NONE else action


def _recovery_action(handle: Handle) -> RecoveryAction | None:
    (value,) = pynvml.nvmlDeviceGetFieldValues(handle, [RECOVERY_ACTION])
    if value.nvmlReturn != 0:
        raise pynvml.NVMLError(value.nvmlReturn)
    return ACTIONS.get(value.value.uiVal, RecoveryAction.UNKNOWN)


def _rows(handle: Handle) -> tuple[bool, bool]:
    _, _, pending, failed = pynvml.nvmlDeviceGetRemappedRows(handle)
    return bool(pending), bool(failed)


def _fabric(handle: Handle) -> str | None:
    info = read_info(handle)
    if info.state & 0xFF != pynvml.NVML_GPU_FABRIC_STATE_COMPLETED or info.status != 0:
        return None
    return fabric_trouble(info.healthMask)


def fabric_trouble(mask: int) -> str:
    found = [words for shift, words in FABRIC_FLAGS if mask >> shift & 3 == 1]
    shift, bits = FABRIC_CONFIGURATION
    configuration = mask >> shift & bits
    if configuration not in CONFIGURED:
        found.append(CONFIGURATIONS.get(configuration, f"incorrect configuration {configuration}"))
    return ", ".join(found)


class _Seen(Struct):
    """State of one GPU. ``were_up``: NVLinks that were up in an earlier read, ``ends``: their remote ends (as
    `link_end`). ``due``: links that went down with MIG, here or at the remote end, and stayed
    down; ``after_mig``: MIG was on, and its links may not be up again."""

    bus_id: str | None = None
    vitals: Vitals = field(default_factory=Vitals)
    were_up: Set[int] = frozenset()
    ends: dict[int, str | None] = field(default_factory=dict)
    due: Set[int] = frozenset()
    after_mig: bool = False
    had_links_down: bool = False
    failed_looks: int = 0

    def saw_up(self, links: Set[int]) -> None:
        self.were_up, self.due = self.were_up | links, self.due - links

    def expect_down(self, links: Set[int]) -> None:
        self.were_up, self.due = self.were_up - links, self.due | links


class HealthLooks:
    def __init__(self, session: Session, node: Node, patience: Patience) -> None:
        self._session, self._node, self._patience = session, node, patience
        self._reads: Reads[GpuUuid] = Reads()
        self._seen: dict[GpuUuid, _Seen] = {}  # outlives sessions

    @property
    def known(self) -> Collection[GpuUuid]:
        """GPUs that were read and not dropped. For any thread."""
        return tuple(self._seen)

    def forget(self, gpu: GpuUuid) -> None:
        self._seen.pop(gpu, None)

    def mig_changes(self, gpu: GpuUuid) -> None:
        """MIG mode of the GPU is switched, perhaps on and off between two reads. The caller has the GPU's lock."""
        seen = self._seen.get(gpu)
        if seen is not None:
            _drop_links(seen)

    def read(self, generation: int) -> tuple[HealthReading, ...]:
        """The caller uses session ``generation``."""
        known = self._node.knowledge(generation)
        count = errors.driver_call(pynvml.nvmlDeviceGetCount)
        answers = self._answers(known, count)
        troubles: dict[GpuUuid, tuple[int, Exception | None]] = {}
        for index, answer in answers.items():
            uuid = known.uuids.get(index) if isinstance(answer, Exception) else answer
            if uuid is not None:
                troubles[uuid] = index, answer if isinstance(answer, Exception) else None
        for uuid in troubles:
            self._seen.setdefault(uuid, _Seen())
        peers_up = self._links_in_fabric(troubles)
        seen_gpus = tuple(self._seen.values())
        partitioned = {seen.bus_id for seen in seen_gpus if seen.after_mig}
        for seen in seen_gpus:
            _drop_links_to(seen, partitioned)
        return tuple(
            self._reading(known, uuid, seen, troubles.get(uuid), peers_up)
            for uuid, seen in sorted(self._seen.items(), key=itemgetter(0))
        )

    def _answers(self, known: Known, count: int) -> Mapping[int, GpuUuid | Exception]:
        """By index, the UUID of each GPU that was read, or the error."""
        stuck = [index for index in range(count) if self._node.is_stuck(index)]
        jobs = [
            (index, partial(self._look, known, index), self._patience.look_s)
            for index in range(count)
            if index not in stuck
        ]
        answers = {**self._reads.run(jobs), **{index: NoAnswerError() for index in stuck}}
        for answer in answers.values():
            if isinstance(answer, Exception) and not isinstance(
                answer, DeviceLostError | YieldToWriter | NoAnswerError
            ):
                raise answer  # the driver as a whole, or a defect here
        return answers

    def _look(self, known: Known, index: int) -> GpuUuid:
        with self._session.use(known.generation, joins=True), self._node.opened(known, index) as (uuid, handle):
            seen = self._seen.setdefault(uuid, _Seen())
            if seen.bus_id is None:
                seen.bus_id = _read(ADDRESS, partial(read_address, handle), None)
            read_vitals(handle, seen.vitals)
            if seen.vitals.mig:
                _drop_links(seen)
            up = frozenset(link for link, up in (seen.vitals.links or {}).items() if up)
            seen.saw_up(up)
            for link in up - seen.ends.keys():
                seen.ends[link] = _read(LINK_END, partial(link_end, handle, link), None)
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
        reason, hangs = self._why_unreachable(known, uuid, seen, found)
        if reason is not None:
            problem = found[1] if found is not None else None
            passing = isinstance(problem, DeviceLostError) and errors.is_passing(problem)
            code = getattr(problem.__cause__, "value", None) if isinstance(problem, DeviceLostError) else None
            return HealthReading(
                gpu_uuid=uuid,
                unreachable=reason,
                hangs=hangs,
                passing=passing,
                needs_reset=code == pynvml.NVML_ERROR_RESET_REQUIRED,
            )
        vitals = seen.vitals
        pending, failed = vitals.rows or (None, None)
        answered, action = found is not None and found[1] is None, vitals.recovery_action
        return HealthReading(
            gpu_uuid=uuid,
            # An outdated "none" would clear errors that came after it.
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
            passes = errors.is_passing(problem) and seen.failed_looks <= KEPT_LOOKS
            return (None if passes else str(problem)), False
        hangs = self._node.hangs(known, index) or self._reads.stuck_s(index) >= self._patience.stuck_s
        if problem is None or not hangs:
            return None, False
        return self._node.call_lock(uuid).why_stuck(), True


def _drop_links(seen: _Seen) -> None:
    seen.expect_down(seen.were_up)
    seen.after_mig = True


def _drop_links_to(seen: _Seen, partitioned: Collection[str | None]) -> None:
    """Expect links down that lead to a GPU with MIG, or may: whose other end is unknown."""
    links = seen.vitals.links or {}
    down = {link for link in seen.were_up if not links.get(link)} if partitioned else set()
    ends = {link: seen.ends.get(link) for link in down}
    seen.expect_down(
        {link for link, end in ends.items() if end != SWITCH and (None in partitioned or end in {None, *partitioned})}
    )


def _links_down(seen: _Seen, peers_up: frozenset[int]) -> tuple[int, ...] | None:
    """The links that should be up: they were, or in an NVSwitch fabric they are on another GPU. None if that is
    unknown: MIG is on, a link has not been up since, a bridge may be missing, or the link went down before this process
    began."""
    links = seen.vitals.links
    if not links:
        return None
    down = [link for link, up in links.items() if not up]
    has_switch = SWITCH in seen.ends.values() or not seen.ends
    # All GPUs of a fabric may train their links at once, and all links of such a board are connected.
    seen.after_mig = seen.after_mig and bool(down) and (has_switch or bool(seen.due))
    in_fabric = peers_up if seen.vitals.fabric_unhealthy is not None and not seen.after_mig else frozenset()
    wrong = tuple(link for link in down if link in seen.were_up or link in in_fabric)
    seen.had_links_down = seen.had_links_down or bool(wrong)
    is_unknown = seen.due or seen.after_mig or not seen.had_links_down
    return None if down and not wrong and is_unknown else wrong
