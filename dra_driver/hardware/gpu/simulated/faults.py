"""Name faults of simulated GPUs, and compute their effect on a GPU's health (docs/simulated-gpus.md). No I/O.

A fault is written ``xid=79`` or ``row-remap=failed*2`` (two times, which counts for events); the annotation of a Node
lists ``gpu-0 xid=79, gpu-1-mig-1g10gb-19-0 ecc``. A `FailureMode` is how a GPU fails its calls, here and in the fake
NVML library. Sources: NVIDIA's XID catalogue; nvml.h for the reports of a board.
"""

import operator
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Set
from enum import StrEnum
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from dra_driver.core.errors import DeviceLostError, GpuBusyError
from dra_driver.core.model.fabric import FabricState
from dra_driver.core.model.gpu import Gpu
from dra_driver.core.model.health import HealthEvent, HealthEventKind, HealthReading, RecoveryAction
from dra_driver.core.model.ids import DeviceName, GpuUuid

HANG_S = 15.0
"""The wait for a call of a GPU that hangs, as for a real one (``nvml/call_locks.py``)."""
HANG_POLL_S = 0.05


class FailureMode(StrEnum):
    UNBOUND = "unbound"
    HANGS = "hangs"
    CALLS_FAIL = "calls fail"
    SUBSCRIBED = "subscribed"
    NO_PLACEMENTS = "no placements"
    NO_EVENTS = "no events"


def parse_failure_modes(names: Iterable[object]) -> frozenset[FailureMode]:
    """Raises ValueError with the expected names."""
    found = set()
    for name in names:
        if name not in list(FailureMode):
            raise ValueError(f"troubles of {', '.join(FailureMode)}, not {name!r:.60}")
        found.add(FailureMode(str(name)))
    return frozenset(found)


def why_left_out(gpu: GpuUuid, troubles: Collection[FailureMode]) -> str | None:
    """The reason why the GPU is on the node and not usable; None when it is usable."""
    return hang_reason(gpu) if FailureMode.HANGS in troubles else None


def meet_failure_modes(
    method: str, gpu: GpuUuid, troubles: Callable[[], Collection[FailureMode]], sleep: Callable[[float], None]
) -> None:
    """Fail or delay a call of ``method`` as the GPU's modes demand, which ``troubles`` reads. Raises DeviceLostError,
    and GpuBusyError for subscribed instances. Waits at most ``HANG_S``."""
    found = troubles()
    if FailureMode.UNBOUND in found:
        raise DeviceLostError(f"GPU {gpu} is not on this node", reason="GpuNotFound")
    left_s = HANG_S
    while FailureMode.HANGS in troubles():
        if left_s <= 0:
            raise DeviceLostError(hang_reason(gpu))
        sleep(HANG_POLL_S)
        left_s -= HANG_POLL_S
    if FailureMode.CALLS_FAIL in found:
        raise DeviceLostError(f"{method} of GPU {gpu} failed: Unknown Error (NVML code 999)")
    if FailureMode.SUBSCRIBED in found and method == "destroy_gpu_instance":
        raise GpuBusyError(f"no GPU instance of {gpu} can be destroyed: another process has asked for it")


def hang_reason(gpu: GpuUuid) -> str:
    return f"GPU {gpu} does not answer: a simulated call has not returned for {HANG_S:.0f} s"


MAX_XID: Final = 9999
MAX_LINK: Final = 17
MAX_COUNT: Final = 1_000_000
OFF_THE_BUS: Final = 79
PROGRAM_ERRORS: Final = frozenset({13, 31, 43, 45, 68, 109})
PAGES: Final = frozenset({"Volta", "Turing"})
"""Architectures that retire pages; later ones remap rows."""
LINKS: Final[Mapping[str, int]] = {
    "Tesla V100-SXM2-16GB": 6,
    "Tesla V100-SXM2-32GB": 6,
    "NVIDIA A100-SXM4-40GB": 12,
    "NVIDIA A100-SXM4-80GB": 12,
    "NVIDIA H100 80GB HBM3": 18,
    "NVIDIA H200": 18,
    "NVIDIA B200": 18,
    "NVIDIA GB200": 18,
    "NVIDIA B300": 18,
    "NVIDIA GB300": 18,
}
"""NVLinks by product name, of boards on which all are always connected (NVIDIA's data sheets)."""
DEGRADED: Final = "route unhealthy"
_FORM: Final = re.compile(r"([a-z-]{1,20})(?:=([a-z0-9-]{1,20}))?(?:\*(\d{1,7}))?")


class FaultKind(StrEnum):
    XID = "xid"
    ECC = "ecc"
    LOST = "lost"
    HANG = "hang"
    ROW_REMAP = "row-remap"
    RETIRED_PAGES = "retired-pages"
    RECOVERY_ACTION = "recovery-action"
    NVLINK = "nvlink"
    FABRIC = "fabric"


class HardwareFault(Struct, frozen=True):
    """A fault of no particular GPU. ``value`` is checked text, "" where the kind has none."""

    kind: FaultKind
    value: str = ""
    count: int = 1

    @classmethod
    def parse(cls, text: str) -> "HardwareFault":
        """Parse ``xid=79*2``. Raises ValueError with the expected form."""
        match = _FORM.fullmatch(text)
        if match is None or match[1] not in list(FaultKind):
            raise ValueError(f"a fault such as {', '.join(_EXAMPLES.values())} expected, not {text!r:.60}")
        kind, count = FaultKind(match[1]), int(match[3] or 1)
        if not 1 <= count <= MAX_COUNT:
            raise ValueError(f"{kind}: 1 to {MAX_COUNT} times expected, not {count}")
        value = match[2] or _DEFAULTS.get(kind, "")
        if not _VALUES.get(kind, operator.not_)(value):
            raise ValueError(f"{_EXPECTED.get(kind, f'{kind} without a value')} expected, not {text!r:.60}")
        return cls(kind, value, count)

    def __str__(self) -> str:
        value = f"={self.value}" if self.value else ""
        return f"{self.kind}{value}{f'*{self.count}' if self.count > 1 else ''}"


class GpuFault(Struct, frozen=True, kw_only=True):
    """A fault of one GPU, or with ``gi_id`` of a GPU instance. ``source`` may replace its own faults; "" for a test."""

    gpu: GpuUuid
    fault: HardwareFault
    gi_id: int | None = None
    source: str = ""

    @property
    def ends_with_reset(self) -> bool:
        """Return whether a reset of the GPU repairs it."""
        kind, value = self.fault.kind, self.fault.value
        if kind is FaultKind.RECOVERY_ACTION:
            return value in (RecoveryAction.GPU_RESET, RecoveryAction.DRAIN_AND_RESET)
        if kind is FaultKind.ROW_REMAP:
            return value == "pending"
        return kind in (FaultKind.XID, FaultKind.ECC) and value != str(OFF_THE_BUS)


class GpuHealth(Struct, frozen=True, kw_only=True):
    """``recovery_action`` is None while an instance is unhealthy: NVML's "none" would report recovery."""

    lost: str | None = None
    hangs: bool = False
    recovery_action: RecoveryAction | None = RecoveryAction.NONE
    rows_pending: bool = False
    rows_failed: bool = False
    pages_pending: bool = False
    links_down: frozenset[int] = frozenset()
    fabric_unhealthy: str = ""


def health_of(faults: Iterable[GpuFault]) -> GpuHealth:
    health = GpuHealth()
    for found in faults:
        effect = _EFFECTS[found.fault.kind] if found.gi_id is None else _of_instance
        health = effect(health, found.fault.value)
    return health


def events_of(faults: Iterable[GpuFault]) -> Counter[HealthEvent]:
    """The events that these faults have caused so far, with how many of each; the events themselves have count 1."""
    found: Counter[HealthEvent] = Counter()
    for one in faults:
        kind = _EVENTS.get(one.fault.kind)
        if kind is not None:
            xid = int(one.fault.value) if kind is HealthEventKind.XID else None
            ci_id = None if one.gi_id is None else 0
            event = HealthEvent(kind=kind, gpu_uuid=one.gpu, xid=xid, gi_id=one.gi_id, ci_id=ci_id)
            found[event] += one.fault.count
    return found


def reading_of(
    gpu: Gpu, health: GpuHealth, unreachable: str | None = None, unknown_links: Set[int] = frozenset()
) -> HealthReading:
    """The health of ``gpu``; None for values that its board does not report. ``unreachable``: why it is lost;
    ``unknown_links``: links that MIG took down (`links_shut`)."""
    reason = unreachable or health.lost
    if reason is not None:
        return HealthReading(gpu_uuid=gpu.uuid, unreachable=reason, hangs=health.hangs)
    retires = gpu.architecture in PAGES
    in_fabric = gpu.fabric is not None and gpu.fabric.state is FabricState.COMPLETED
    down = tuple(sorted(health.links_down - unknown_links))
    has_links = links_of(gpu) and not gpu.mig_enabled and (down or not unknown_links)
    return HealthReading(
        gpu_uuid=gpu.uuid,
        recovery_action=health.recovery_action,
        rows_pending=None if retires else health.rows_pending,
        rows_failed=None if retires else health.rows_failed,
        pages_pending=health.pages_pending if retires else None,
        links_down=down if has_links else None,
        fabric_unhealthy=health.fabric_unhealthy if in_fabric else None,
    )


def links_of(gpu: Gpu) -> int:
    """Return the number of connected NVLinks, from the description or else the board."""
    known = gpu.nvlinks.switch_links + sum(peer.links for peer in gpu.nvlinks.peers)
    return known or LINKS.get(gpu.product_name or "", 0)


def links_shut(gpu: Gpu, health: GpuHealth, partitioned: Set[str | None]) -> Set[int]:
    """The links that MIG takes down, as on a real GPU (``nvml/health.py``): all of ``gpu``, or those to GPUs at the
    addresses in ``partitioned``. One with a fault and an undescribed end may lead to such a GPU."""
    if gpu.mig_enabled or not partitioned:
        return frozenset(range(MAX_LINK + 1 if gpu.mig_enabled else 0))
    peers = [peer.pci_bus_id for peer in gpu.nvlinks.peers for _ in range(peer.links)]
    ends = dict(enumerate(peers, gpu.nvlinks.switch_links))
    undescribed = {link for link in health.links_down if link >= gpu.nvlinks.switch_links and link not in ends}
    return undescribed | {link for link, end in ends.items() if end in partitioned}


def _after_xid(health: GpuHealth, value: str) -> GpuHealth:
    """NVML requests a reset after most XIDs; after 79 the GPU does not answer."""
    number = int(value)
    if number == OFF_THE_BUS:
        return _lost(health, f"it has fallen off the bus (simulated XID {OFF_THE_BUS})")
    return health if number in PROGRAM_ERRORS else _needs(health, RecoveryAction.GPU_RESET)


def _lost(health: GpuHealth, why: str) -> GpuHealth:
    return replace(health, lost=health.lost or why)


def _needs(health: GpuHealth, action: RecoveryAction) -> GpuHealth:
    """The first action stays: a simulated GPU with two faults needs one of them."""
    if health.recovery_action not in {None, RecoveryAction.NONE}:
        return health
    return replace(health, recovery_action=action)


def _of_instance(health: GpuHealth, value: str) -> GpuHealth:
    passes = value.isdecimal() and int(value) in PROGRAM_ERRORS
    unreported = passes or health.recovery_action is not RecoveryAction.NONE
    return health if unreported else replace(health, recovery_action=None)


def _remap(health: GpuHealth, value: str) -> GpuHealth:
    return replace(health, rows_failed=True) if value == "failed" else replace(health, rows_pending=True)


_ACTIONS: Final = frozenset(RecoveryAction) - {RecoveryAction.NONE, RecoveryAction.UNKNOWN}
_EVENTS: Final[Mapping[FaultKind, HealthEventKind]] = {
    FaultKind.XID: HealthEventKind.XID,
    FaultKind.ECC: HealthEventKind.DOUBLE_BIT_ECC,
}
_EFFECTS: Final[Mapping[FaultKind, Callable[[GpuHealth, str], GpuHealth]]] = {
    FaultKind.XID: _after_xid,
    FaultKind.ECC: lambda health, _: _needs(health, RecoveryAction.GPU_RESET),
    FaultKind.LOST: lambda health, _: _lost(health, "it has been lost (simulated)"),
    FaultKind.HANG: lambda health, _: replace(health, hangs=True),
    FaultKind.ROW_REMAP: _remap,
    FaultKind.RETIRED_PAGES: lambda health, _: replace(health, pages_pending=True),
    FaultKind.RECOVERY_ACTION: lambda health, value: _needs(health, RecoveryAction(value)),
    FaultKind.NVLINK: lambda health, value: replace(health, links_down=health.links_down | {int(value)}),
    FaultKind.FABRIC: lambda health, _: replace(health, fabric_unhealthy=DEGRADED),
}
_DEFAULTS: Final[Mapping[FaultKind, str]] = {
    FaultKind.ROW_REMAP: "pending",
    FaultKind.RECOVERY_ACTION: RecoveryAction.GPU_RESET,
    FaultKind.NVLINK: "0",
}
_VALUES: Final[Mapping[FaultKind, Callable[[str], bool]]] = {
    FaultKind.XID: lambda value: value.isdecimal() and 1 <= int(value) <= MAX_XID,
    FaultKind.ROW_REMAP: lambda value: value in ("pending", "failed"),
    FaultKind.RECOVERY_ACTION: lambda value: value in _ACTIONS,
    FaultKind.NVLINK: lambda value: value.isdecimal() and int(value) <= MAX_LINK,
}
_EXPECTED: Final[Mapping[FaultKind, str]] = {
    FaultKind.XID: f"xid=N with a number from 1 to {MAX_XID}",
    FaultKind.ROW_REMAP: "row-remap, row-remap=pending or row-remap=failed",
    FaultKind.RECOVERY_ACTION: f"recovery-action=X with one of {', '.join(sorted(_ACTIONS))}",
    FaultKind.NVLINK: f"nvlink=N with the number of a link from 0 to {MAX_LINK}",
}
_EXAMPLES: Final[Mapping[FaultKind, str]] = {
    kind: f"{kind}=79" if kind is FaultKind.XID else str(kind) for kind in FaultKind
}

ANNOTATION: Final = "gpu.dra-driver.io/simulate-fault"
MAX_LENGTH: Final = 1000
"""Characters of the annotation: below the limit of ``kube/own_node.py``, which truncates longer ones."""
MAX_ORDERS: Final = 32
OF_PARTITIONS: Final = frozenset({FaultKind.XID, FaultKind.ECC})
_DEVICE: Final = re.compile(r"gpu-\d{1,3}(-mig-[a-z0-9-]{1,48})?")


class FaultOrder(Struct, frozen=True):
    """One device that is to have one fault."""

    device: DeviceName
    fault: HardwareFault

    @classmethod
    def parse(cls, device: str, fault: str) -> "FaultOrder":
        """Raises ValueError with the expected form."""
        if _DEVICE.fullmatch(device) is None:
            raise ValueError(f"a device such as gpu-0 or gpu-0-mig-1g10gb-19-0 expected, not {device!r:.60}")
        found = HardwareFault.parse(fault)
        if is_partition(device) and found.kind not in OF_PARTITIONS:
            whole = device.partition("-mig-")[0]
            raise ValueError(f"{found.kind} is a fault of a whole GPU: {whole} expected, not {device:.60}")
        return cls(DeviceName(device), found)

    def is_like(self, other: "FaultOrder") -> bool:
        """Return whether both are the same fault of the same device, however often."""
        kind, value = other.fault.kind, other.fault.value
        return (self.device, self.fault.kind, self.fault.value) == (other.device, kind, value)

    def __str__(self) -> str:
        return f"{self.device} {self.fault}"


def is_partition(device: str) -> bool:
    return "-mig-" in device


def parse_orders(text: str) -> tuple[FaultOrder, ...]:
    """Parse the annotation. Raises ValueError with the expected form."""
    if len(text) > MAX_LENGTH:
        raise ValueError(f"at most {MAX_LENGTH} characters expected")
    found = []
    for part in filter(None, (part.strip() for part in text.split(","))):
        words = part.split()
        if len(words) != 2:
            raise ValueError(f"DEVICE FAULT such as gpu-0 xid=79 expected, several joined by commas, not {part!r:.60}")
        found.append(FaultOrder.parse(*words))
    if len(found) > MAX_ORDERS:
        raise ValueError(f"at most {MAX_ORDERS} faults expected, not {len(found)}")
    return tuple(found)


def format_orders(orders: Iterable[FaultOrder]) -> str:
    """The text that `parse_orders` reads. Raises ValueError when they are too many."""
    text = ", ".join(map(str, orders))
    parse_orders(text)
    return text


def with_order(orders: Iterable[FaultOrder], order: FaultOrder) -> tuple[FaultOrder, ...]:
    """Return the faults with one more; a repeated fault counts up and is reported again."""
    found, again = [], False
    for one in orders:
        if one.is_like(order):
            count = min(MAX_COUNT, one.fault.count + order.fault.count)
            found.append(FaultOrder(one.device, replace(one.fault, count=count)))
            again = True
        else:
            found.append(one)
    return tuple(found) if again else (*found, order)


def without_order(orders: Iterable[FaultOrder], order: FaultOrder) -> tuple[FaultOrder, ...]:
    return tuple(one for one in orders if not one.is_like(order))


def without_device(orders: Iterable[FaultOrder], device: str) -> tuple[FaultOrder, ...]:
    return tuple(one for one in orders if one.device != device and not one.device.startswith(f"{device}-mig-"))
