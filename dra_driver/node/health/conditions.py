"""What faults mean to those who publish them: one condition for each cause on a device, with a sentence. Pure."""

from typing import Final

from dra_driver.core.model.health import HealthCause, HealthCondition, Severity
from dra_driver.core.model.ids import GpuUuid
from dra_driver.node.health.fault import RANK, FaultKey, FaultPhase, Faults, HealthFault
from dra_driver.node.health.machine import FAILED, Moment
from dra_driver.node.health.rules import calm_s
from dra_driver.node.health.xids import XidRecovery, xid

_MOST_OTHERS: Final = 5

_SEEN: Final = {
    HealthCause.ECC: "The {device} has an uncorrectable (double-bit) memory error.",
    HealthCause.LOST: "The GPU does not answer: {detail}.",
    HealthCause.HANG: "A call to the GPU has not returned: {detail}.",
    HealthCause.ROW_REMAP: "Rows of the GPU's memory are to be remapped.",
    HealthCause.RETIRED_PAGES: "Pages of the GPU's memory are to be retired.",
    HealthCause.RECOVERY_ACTION: "The NVIDIA driver reports that the GPU needs a recovery: {detail}.",
    HealthCause.NVLINK: "NVLinks of the GPU are down: {detail}.",
    HealthCause.FABRIC: "The GPU's NVLink fabric is not healthy: {detail}.",
}
_TO_DO: Final = {
    HealthCause.ECC: "Drain the node and reset the GPU.",
    HealthCause.LOST: "Reset the GPU or reboot the node.",
    HealthCause.HANG: "If it does not pass, reboot the node.",
    HealthCause.ROW_REMAP: "Drain the node and reset the GPU; the rows are remapped then.",
    HealthCause.RETIRED_PAGES: "Drain the node and reset the GPU; the pages are retired then.",
    HealthCause.RECOVERY_ACTION: "Drain the node and do that.",
    HealthCause.NVLINK: "Look at nvidia-smi nvlink; reset the GPUs that the links connect.",
    HealthCause.FABRIC: "Look at the log of Fabric Manager.",
}
_XID_TO_DO: Final = {
    XidRecovery.NONE: "The GPU needs no recovery.",
    XidRecovery.RESTART_APP: "The program has to be restarted; the GPU needs no recovery.",
    XidRecovery.GPU_RESET: "Drain the node and reset the GPU.",
    XidRecovery.NODE_REBOOT: "Drain the node and reboot it.",
    XidRecovery.CONTACT_SUPPORT: "Drain the node, reset the GPU or reboot the node; ask NVIDIA if it comes back.",
}


def conditions(gpu: GpuUuid, faults: Faults, at: Moment) -> tuple[HealthCondition, ...]:
    """The conditions of one GPU that taint, by instance and cause, the whole GPU first.

    Of several XIDs the worst gives value, time and sentence: the strongest, then one that holds, then the oldest.
    """
    groups: dict[tuple[int, HealthCause], list[tuple[FaultKey, HealthFault]]] = {}
    for key, fault in faults.items():
        if fault.phase is not FaultPhase.OVER and fault.severity is not Severity.COUNTED:
            groups.setdefault((-1 if key.gi_id is None else key.gi_id, key.cause), []).append((key, fault))
    return tuple(_condition(gpu, groups[place], at) for place in sorted(groups))


def unmonitored(gpu: GpuUuid, reason: str, since: float) -> HealthCondition:
    """The informational condition of a GPU whose events cannot be waited for."""
    return HealthCondition(
        cause=HealthCause.UNMONITORED,
        gpu_uuid=gpu,
        severity=Severity.COUNTED,
        value="",
        since=since,
        message=f"Errors of the GPU cannot be waited for: {reason}. What is read of it still counts.",
    )


def _condition(gpu: GpuUuid, same: list[tuple[FaultKey, HealthFault]], at: Moment) -> HealthCondition:
    same.sort(key=lambda item: (-RANK[item[1].severity], item[1].phase, item[1].since, item[0].xid))
    key, fault = same[0]
    return HealthCondition(
        cause=key.cause,
        gpu_uuid=gpu,
        gi_id=key.gi_id,
        severity=fault.severity,
        value=_value(key, fault),
        since=fault.since,
        message=_message(key, fault, [other.xid for other, _ in same[1:]], at),
    )


def _value(key: FaultKey, fault: HealthFault) -> str:
    """The taint's value: a label value of Kubernetes."""
    if key.cause is HealthCause.XID:
        return str(key.xid)
    return fault.detail if key.cause in {HealthCause.RECOVERY_ACTION, HealthCause.ROW_REMAP} else ""


def _message(key: FaultKey, fault: HealthFault, others: list[int], at: Moment) -> str:
    device = "GPU" if key.gi_id is None else "MIG partition"
    if key.cause is HealthCause.XID:
        known = xid(key.xid)
        more = f", and XID {', '.join(map(str, others[:_MOST_OTHERS]))}" if others else ""
        seen, do = f"The {device} reported XID {key.xid}{more}: {known.meaning}.", _XID_TO_DO[known.recovery]
    else:
        seen, do = _SEEN[key.cause].format(device=device, detail=fault.detail), _TO_DO[key.cause]
    if key.cause is HealthCause.ROW_REMAP and fault.detail == FAILED:
        seen, do = "A row of the GPU's memory could not be remapped.", "The GPU has to be replaced; ask NVIDIA."
    calm = calm_s(key.cause, fault.repeats, at.rules, at.longest_calm_s)
    if fault.phase is FaultPhase.RECOVERING:
        return (
            f"{seen} Recovery was seen: {fault.evidence}. The {device} is used again after {calm:g} s without an error."
        )
    ends = " Running pods are evicted." if fault.severity is Severity.EVICT else ""
    return f"{seen} {do} New claims do not get the {device} until recovery was seen and {calm:g} s have passed.{ends}"
