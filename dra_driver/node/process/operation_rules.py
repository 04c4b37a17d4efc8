"""Decide whether a guarded operation of a GPU may begin, and find the operation that a policy requires. No I/O.

Sources: nvidia-smi(1), option --gpu-reset; NVIDIA's MIG user guide, "GPU Reset"; nvml.h,
NVML_FI_DEV_GET_GPU_RECOVERY_ACTION.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Final

from dra_driver.core.model.gpu import Gpu
from dra_driver.core.model.gpu_operation import Operation
from dra_driver.core.model.health import HealthReading, RecoveryAction
from dra_driver.core.model.terms import GpuTerms

NO_MUTUAL_RESET: Final = frozenset({"Kepler", "Maxwell", "Pascal", "Volta", "Turing"})
"""Architectures on which all GPUs that are linked by NVLink must be reset by one command."""
RESETS: Final = frozenset({RecoveryAction.GPU_RESET, RecoveryAction.DRAIN_AND_RESET})
MANAGER_LABELS: Final = ("nvidia.com/mig.config.state", "nvidia.com/gpu.deploy.device-plugin")
_AT_WORK: Final = ("pending", "rebooting", "paused-for-mig-change")
REBOOT: Final = "a reboot of the node is needed, because"


def why_refused(
    operation: Operation,
    gpu: Gpu,
    reading: HealthReading | None,
    *,
    has_reset: Callable[[str], bool],
    fabric_manager: bool | None,
) -> str | None:
    """The reason why the operation can never begin in the GPU's present state; None when it can."""
    if reading is None:
        return "the health of the GPU is unknown, and with it the recovery that the NVIDIA driver asks for"
    action = reading.recovery_action
    answers_reset = reading.needs_reset and operation is Operation.RESET
    if reading.unreachable is not None and not answers_reset:
        return f"{REBOOT} the GPU does not answer: {reading.unreachable}"
    if action is not None and action not in RESETS and action is not RecoveryAction.NONE:
        return f"the NVIDIA driver asks for another recovery first: {action}"
    foreign = [one for one in gpu.mig_instances if not one.owned]
    if foreign:
        return (
            f"{len(foreign)} MIG instances of another manager exist: remove them with nvidia-smi mig -dci and -dgi "
            f"-i {gpu.uuid}"
        )
    if operation is Operation.RESET:
        return why_no_reset(gpu, has_reset=has_reset, fabric_manager=fabric_manager)
    if not gpu.mig_capable:
        return "the GPU does not support MIG"
    return None if gpu.mig_resetless else why_no_reset(gpu, has_reset=has_reset, fabric_manager=fabric_manager)


def why_no_reset(gpu: Gpu, *, has_reset: Callable[[str], bool], fabric_manager: bool | None) -> str | None:
    """The reason why the GPU cannot be reset alone; None when it can."""
    if gpu.pci_bus_id is None or not has_reset(gpu.pci_bus_id):
        return f"{REBOOT} the kernel cannot reset the GPU (sysfs has no `reset` of {gpu.pci_bus_id})"
    if gpu.architecture is None:
        return "the architecture of the GPU is unknown, so it is unknown which GPUs must be reset together"
    if gpu.architecture in NO_MUTUAL_RESET and gpu.nvlinks.peers:
        return f"{REBOOT} a {gpu.architecture} GPU can be reset only together with the GPUs at its NVLinks"
    if gpu.architecture == "Ampere" and gpu.nvlinks.switch_links and fabric_manager is not True:
        seen = "does not run" if fabric_manager is False else "may not run: the node's processes cannot be listed"
        return (
            f"Fabric Manager {seen}, and without it all GPUs of this board must be reset together: start "
            "nvidia-fabricmanager"
        )
    return None


def other_manager(labels: Mapping[str, str]) -> str | None:
    """The label by which NVIDIA's MIG manager announces a change of its own; None without one."""
    return next(
        (f"{key}={labels[key]}" for key in MANAGER_LABELS if any(word in labels.get(key, "") for word in _AT_WORK)),
        None,
    )


def asks_for_reset(reading: HealthReading | None) -> bool:
    """Return whether the NVIDIA driver asks for a reset of the GPU."""
    if reading is None:
        return False
    pending = reading.rows_pending or reading.pages_pending
    return reading.needs_reset or reading.recovery_action in RESETS or bool(pending)


def may_reset_again(reading: HealthReading | None) -> bool:
    """Return whether a second reset can repair the GPU after the first: not one that is lost or needs a reboot."""
    if reading is None or not asks_for_reset(reading):
        return False
    if reading.unreachable is not None and not reading.needs_reset:
        return False
    return reading.recovery_action in (None, RecoveryAction.NONE, *RESETS)


def why_silent(gpu: Gpu | None, reading: HealthReading | None) -> str | None:
    """The sign that the GPU may be lost; None when it answers."""
    if reading is None:
        return "the health of the GPU cannot be read"
    if reading.needs_reset:
        return None
    if gpu is None or reading.unreachable is not None:
        return f"the GPU does not answer: {reading.unreachable or 'it is not listed'}"
    return None


def wanted_by_policy(gpu: Gpu, terms: GpuTerms, reading: HealthReading | None) -> Operation | None:
    """The operation that the terms of a GPU ask for now."""
    if terms.health.resets_when_free and asks_for_reset(reading):
        return Operation.RESET
    if terms.mig_mode is None or terms.mig_mode == gpu.mig_enabled or not gpu.mig_capable or gpu.mig_resetless:
        return None
    return Operation.MIG_ON if terms.mig_mode else Operation.MIG_OFF


def why_unverified(
    operation: Operation,
    gpu: Gpu | None,
    modes: tuple[bool, bool] | None,
    reading: HealthReading | None,
    *,
    fabric_was_ready: bool,
) -> str | None:
    """The difference between the GPU and the result of the operation; None without one. ``modes``: now and pending."""
    if gpu is None or (reading is not None and reading.unreachable is not None):
        return "the GPU does not answer"
    wanted = operation.mig_mode
    if wanted is not None:
        if modes != (wanted, wanted):
            return f"MIG mode is {describe_modes(modes)}, expected {describe_modes((wanted, wanted))}"
        if gpu.mig_enabled is not wanted:
            return "the inventory does not show the new MIG mode yet"
        if gpu.mig_instances:
            return f"{len(gpu.mig_instances)} MIG instances exist"
        return None
    if reading is None:
        return "its health was not read yet"
    if asks_for_reset(reading):
        return "the NVIDIA driver still asks for a reset"
    if reading.recovery_action is RecoveryAction.NODE_REBOOT:
        return f"{REBOOT} the NVIDIA driver asks for it"
    if reading.recovery_action not in (None, RecoveryAction.NONE):
        return f"the NVIDIA driver asks for another recovery: {reading.recovery_action}"
    if fabric_was_ready and (gpu.fabric is None or not gpu.fabric.is_ready):
        return "its NVLink fabric is not ready, and was before: check Fabric Manager"
    return None


def describe_modes(modes: tuple[bool, bool] | None) -> str:
    if modes is None:
        return "unknown"
    now, pending = ("on" if each else "off" for each in modes)
    return now if now == pending else f"{now} and pending {pending}"


def reading_of(readings: Iterable[HealthReading], uuid: str) -> HealthReading | None:
    return next((reading for reading in readings if reading.gpu_uuid == uuid), None)
