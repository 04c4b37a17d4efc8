"""Derive conditions and metrics from faults: one condition with a message per cause and device, states, counts."""

from collections import Counter
from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import Final

from msgspec import Struct

from dra_driver.core.model.health import HealthCause, HealthCondition, HealthEvent, RecoveryAction, Severity
from dra_driver.core.model.ids import GpuUuid
from dra_driver.node.health.fault import RANK, FaultKey, FaultPhase, Faults, HealthFault, calm_s
from dra_driver.node.health.machine import FAILED, Moment
from dra_driver.node.health.xids import XidRecovery, label, xid

_MOST_OTHERS: Final = 5

_SEEN: Final = {
    HealthCause.ECC: "The {device} has an uncorrectable (double-bit) memory error.",
    HealthCause.LOST: "The GPU does not answer: {detail}.",
    HealthCause.HANG: "A call to the GPU has not returned: {detail}.",
    HealthCause.ROW_REMAP: "Remapping of the GPU's memory rows is pending.",
    HealthCause.RETIRED_PAGES: "Retirement of the GPU's memory pages is pending.",
    HealthCause.RECOVERY_ACTION: "The NVIDIA driver reports that the GPU needs a recovery: {detail}.",
    HealthCause.NVLINK: "NVLinks of the GPU are down: {detail}.",
    HealthCause.FABRIC: "The GPU's NVLink fabric is not healthy: {detail}.",
}
_RESET: Final = "Drain the node and reset the GPU."
_REBOOT: Final = "Drain the node and reboot it."
_REPLACE: Final = "Replace the GPU; contact NVIDIA."
_TO_DO: Final = {
    HealthCause.ECC: _RESET,
    HealthCause.LOST: "Reset the GPU or reboot the node.",
    HealthCause.HANG: "If it persists, reboot the node.",
    HealthCause.ROW_REMAP: "Drain the node and reset the GPU, which remaps the rows.",
    HealthCause.RETIRED_PAGES: "Drain the node and reset the GPU, which retires the pages.",
    HealthCause.RECOVERY_ACTION: "Drain the node and perform that recovery.",
    HealthCause.NVLINK: "Check nvidia-smi nvlink; reset the GPUs that the links connect.",
    HealthCause.FABRIC: "Check the log of Fabric Manager.",
}
_XID_TO_DO: Final = {
    XidRecovery.NONE: "The GPU needs no recovery.",
    XidRecovery.RESTART_APP: "Restart the program; the GPU needs no recovery.",
    XidRecovery.GPU_RESET: _RESET,
    XidRecovery.NODE_REBOOT: _REBOOT,
    XidRecovery.CONTACT_SUPPORT: "Drain the node; reset the GPU or reboot the node. If it returns, contact NVIDIA.",
}
_STRENGTH: Final = (
    *(_REPLACE, _REBOOT),
    *(_XID_TO_DO[XidRecovery.CONTACT_SUPPORT], _TO_DO[HealthCause.LOST], _TO_DO[HealthCause.HANG]),
    *(_TO_DO[HealthCause.ROW_REMAP], _TO_DO[HealthCause.RETIRED_PAGES], _RESET),
)
"""Advice in order of strength: each advice includes all before it; other advice is weaker."""


def conditions(gpu: GpuUuid, faults: Faults, at: Moment) -> tuple[HealthCondition, ...]:
    """The conditions of one GPU that taint, by instance and cause, the whole GPU first.

    Of several XIDs the worst sets value, time and message: the strongest, then an open one, then the oldest. Open
    conditions of one device share a message: each fact once, with the strongest advice.
    """
    groups: dict[tuple[int, HealthCause], list[tuple[FaultKey, HealthFault]]] = {}
    for key, fault in faults.items():
        if fault.phase is not FaultPhase.OVER and fault.severity is not Severity.COUNTED:
            groups.setdefault((-1 if key.gi_id is None else key.gi_id, key.cause), []).append((key, fault))
    for same in groups.values():
        same.sort(key=lambda item: (-RANK[item[1].severity], item[1].phase, item[1].since, item[0].xid))
    opened = [place for place in sorted(groups) if groups[place][0][1].phase is FaultPhase.OPEN]
    return tuple(
        _condition(
            gpu,
            groups[place],
            _message(
                [groups[each] for each in opened if each[0] == place[0]] if place in opened else [groups[place]], at
            ),
        )
        for place in sorted(groups)
    )


def unmonitored(gpu: GpuUuid, reason: str, since: float) -> HealthCondition:
    """The informational condition of a GPU whose driver cannot report events."""
    return HealthCondition(
        cause=HealthCause.UNMONITORED,
        gpu_uuid=gpu,
        severity=Severity.COUNTED,
        value="",
        since=since,
        message=f"The driver receives no error events of the GPU: {reason}. Readings of the GPU still count.",
    )


def _condition(gpu: GpuUuid, same: list[tuple[FaultKey, HealthFault]], message: str) -> HealthCondition:
    key, fault = same[0]
    return HealthCondition(
        cause=key.cause,
        gpu_uuid=gpu,
        gi_id=key.gi_id,
        severity=fault.severity,
        value=_value(key, fault),
        since=fault.since,
        message=message,
    )


def _value(key: FaultKey, fault: HealthFault) -> str:
    if key.cause is HealthCause.XID:
        return str(key.xid)
    return fault.detail if key.cause in {HealthCause.RECOVERY_ACTION, HealthCause.ROW_REMAP} else ""


def _message(groups: list[list[tuple[FaultKey, HealthFault]]], at: Moment) -> str:
    firsts = [same[0] for same in groups]
    device = "GPU" if firsts[0][0].gi_id is None else "MIG partition"
    seen = " ".join(_seen(*same[0], device, [other.xid for other, _ in same[1:]]) for same in groups)
    calm = max(calm_s(key.cause, fault.repeats, at.rules, at.longest_calm_s) for key, fault in firsts)
    if firsts[0][1].phase is FaultPhase.RECOVERING:
        evidence = firsts[0][1].evidence
        return f"{seen} Recovery detected: {evidence}. The {device} accepts new claims after {calm:g} s without errors."
    advice = [_to_do(*each) for same in groups for each in same if each[1].phase is FaultPhase.OPEN]
    do = min(advice, key=lambda do: _STRENGTH.index(do) if do in _STRENGTH else len(_STRENGTH))
    ends = " Running pods are evicted." if any(fault.severity is Severity.EVICT for _, fault in firsts) else ""
    return f"{seen} {do} New claims do not get the {device} until {calm:g} s after detected recovery.{ends}"


def _seen(key: FaultKey, fault: HealthFault, device: str, others: list[int]) -> str:
    if key.cause is HealthCause.XID:
        more = f", and XID {', '.join(map(str, others[:_MOST_OTHERS]))}" if others else ""
        return f"The {device} reported XID {key.xid}{more}: {xid(key.xid).meaning}."
    if key.cause is HealthCause.ROW_REMAP and fault.detail == FAILED:
        return "A row of the GPU's memory could not be remapped."
    return _SEEN[key.cause].format(device=device, detail=fault.detail)


def _to_do(key: FaultKey, fault: HealthFault) -> str:
    if key.cause is HealthCause.XID:
        return _XID_TO_DO[xid(key.xid).recovery]
    if key.cause is HealthCause.ROW_REMAP and fault.detail == FAILED:
        return _REPLACE
    reboots = key.cause is HealthCause.RECOVERY_ACTION and fault.detail == RecoveryAction.NODE_REBOOT
    return _REBOOT if reboots else _TO_DO[key.cause]


class HealthState(StrEnum):
    """The state of a GPU or GPU instance: that of its worst condition."""

    HEALTHY = "healthy"
    RECOVERING = "recovering"
    NO_NEW_CLAIMS = "no-new-claims"
    EVICT = "evict"


class DeviceHealth(Struct, frozen=True, kw_only=True):
    """The state of one GPU (``gi_id`` None) or of a GPU instance with conditions; ``seconds`` is the time in this
    state.

    `HealthState.RECOVERING`: each condition has recovered, but its stabilization period has not passed; taints stay.
    """

    gpu_uuid: GpuUuid
    gi_id: int | None
    state: HealthState
    seconds: float


class HealthStatus(Struct, frozen=True, kw_only=True):
    """The health at one moment. ``xids`` counts XIDs since this process started; one that the table lacks is ``other``.
    ``recoveries`` counts conditions that ended after recovery."""

    devices: tuple[DeviceHealth, ...] = ()
    xids: Mapping[tuple[GpuUuid, str], int]
    recoveries: Mapping[tuple[GpuUuid, HealthCause], int]


def state(faults: Iterable[HealthFault]) -> HealthState:
    tainting = [
        fault for fault in faults if fault.phase is not FaultPhase.OVER and fault.severity is not Severity.COUNTED
    ]
    if not tainting:
        return HealthState.HEALTHY
    held = [fault.severity for fault in tainting if fault.phase is FaultPhase.OPEN]
    if not held:
        return HealthState.RECOVERING
    return HealthState.EVICT if Severity.EVICT in held else HealthState.NO_NEW_CLAIMS


class Statistics:
    """Counts for metrics. Not thread-safe."""

    def __init__(self) -> None:
        self._xids: Counter[tuple[GpuUuid, str]] = Counter()
        self._recoveries: Counter[tuple[GpuUuid, HealthCause]] = Counter()
        self._states: dict[tuple[GpuUuid, int | None], tuple[HealthState, float]] = {}

    def count(self, event: HealthEvent) -> None:
        if event.xid is not None:
            self._xids[event.gpu_uuid, label(event.xid)] += max(event.count, 1)

    def count_ends(self, gpu: GpuUuid, before: Faults, after: Faults) -> None:
        """Count the faults that tainted and have ended."""
        for key, fault in after.items():
            was = before.get(key)
            ended = was is not None and was.phase is not FaultPhase.OVER and fault.phase is FaultPhase.OVER
            if ended and fault.severity is not Severity.COUNTED:
                self._recoveries[gpu, key.cause] += 1

    def note_states(self, gpus: Mapping[GpuUuid, Faults], now: float) -> None:
        """``now`` is in monotonic seconds."""
        found: dict[tuple[GpuUuid, int | None], HealthState] = {}
        for gpu, faults in gpus.items():
            found[gpu, None] = state(fault for key, fault in faults.items() if key.gi_id is None)
            for gi_id in {key.gi_id for key in faults if key.gi_id is not None}:
                level = state(fault for key, fault in faults.items() if key.gi_id == gi_id)
                if level is not HealthState.HEALTHY:
                    found[gpu, gi_id] = level
        self._states = {place: self._since(place, level, now) for place, level in found.items()}

    def forget(self, gpu: GpuUuid) -> None:
        self._xids = Counter({key: count for key, count in self._xids.items() if key[0] != gpu})
        self._recoveries = Counter({key: count for key, count in self._recoveries.items() if key[0] != gpu})

    def status(self, now: float) -> HealthStatus:
        devices = tuple(
            DeviceHealth(gpu_uuid=gpu, gi_id=gi_id, state=level, seconds=max(0.0, now - since))
            for (gpu, gi_id), (level, since) in self._states.items()
        )
        return HealthStatus(devices=devices, xids=dict(self._xids), recoveries=dict(self._recoveries))

    def _since(self, place: tuple[GpuUuid, int | None], level: HealthState, now: float) -> tuple[HealthState, float]:
        before = self._states.get(place)
        return before if before is not None and before[0] is level else (level, now)
