"""Change a real GPU through NVML. The caller looks up the handle and holds the locks.

Each function cleans up after its own failure and does not retry. Sources, all in nvml.h: nvmlDeviceSetMigMode (returns
its outcome as a value and may leave a mode pending until the next reset), nvmlDeviceCreateGpuInstanceWithPlacement (one
code for "taken" and "exists already"), nvmlGpuInstanceCreateComputeInstance, nvmlDeviceSetComputeMode.
"""

import contextlib
import ctypes
from collections.abc import Callable
from typing import Final, TypeVar

import pynvml

from dra_driver.core.errors import (
    DeviceLostError,
    DraError,
    GpuBusyError,
    HardwareError,
    MigUnsupportedError,
    NoRoomError,
)
from dra_driver.core.model.ids import GpuUuid
from dra_driver.core.model.mig import ComputeInstance, MigInstance
from dra_driver.hardware.gpu.backend import ComputeMode, MigModes, ModeAnswer
from dra_driver.hardware.gpu.nvml import mig
from dra_driver.hardware.gpu.nvml.errors import ABSENT, GONE, change, optional, refusal, required

Handle = pynvml.c_nvmlDevice_t
Instance = TypeVar("Instance")


def mig_mode(handle: Handle, gpu: GpuUuid) -> bool:
    """Raises MigUnsupportedError for a GPU without MIG, but DeviceLostError for a missing permission: callers that
    release partitions rely on the answer."""
    known = ABSENT - {pynvml.NVML_ERROR_NO_PERMISSION}
    mode = optional(pynvml.nvmlDeviceGetMigMode, handle, absent=known)
    if mode is None:
        raise MigUnsupportedError(f"GPU {gpu} has no MIG mode: request the whole GPU, or another model")
    return bool(mode[0] == pynvml.NVML_DEVICE_MIG_ENABLE)


def set_mig_mode(handle: Handle, gpu: GpuUuid, enabled: bool, instances: tuple[MigInstance, ...]) -> None:
    """Request the mode. After a refusal no change stays pending. Then ``handle`` is invalid; check the mode."""
    doing = _switching(gpu, enabled, instances)
    try:
        status = change(doing, pynvml.nvmlDeviceSetMigMode, handle, int(enabled))
        if status != 0:
            seen = pynvml.NVMLError(status)
            raise refusal(doing, "nvmlDeviceSetMigMode", status, f"{seen} (activation status {status})")
    except HardwareError:
        revert_pending_mode(handle)
        raise


_ANSWERS: Final = {
    0: ModeAnswer.DONE,
    pynvml.NVML_ERROR_IN_USE: ModeAnswer.IN_USE,
    pynvml.NVML_ERROR_RESET_REQUIRED: ModeAnswer.NEEDS_RESET,
    pynvml.NVML_ERROR_NOT_SUPPORTED: ModeAnswer.NEEDS_REBOOT,
}
"""By activation status (nvml.h, nvmlDeviceSetMigMode)."""


def mig_modes(handle: Handle, gpu: GpuUuid) -> MigModes:
    mig_mode(handle, gpu)  # raises for a GPU without MIG
    current, pending = required(pynvml.nvmlDeviceGetMigMode, handle)
    return MigModes(current=bool(current), pending=bool(pending))


def request_mig_mode(handle: Handle, gpu: GpuUuid, enabled: bool, instances: tuple[MigInstance, ...]) -> ModeAnswer:
    """See ``GpuControl.request_mig_mode``. ``handle`` may be invalid afterwards."""
    doing = _switching(gpu, enabled, instances)
    status = change(doing, pynvml.nvmlDeviceSetMigMode, handle, int(enabled))
    answer = _ANSWERS.get(status)
    if answer is None:
        revert_pending_mode(handle)
        raise refusal(doing, "nvmlDeviceSetMigMode", status, f"activation status {status}")
    return answer


def _switching(gpu: GpuUuid, enabled: bool, instances: tuple[MigInstance, ...]) -> str:
    doing = f"switching MIG mode of GPU {gpu} {'on' if enabled else 'off'}"
    if instances:  # nvml.h does not say whether NVML refuses or destroys them
        raise GpuBusyError(
            f"{doing} failed: {len(instances)} GPU instances exist ({_listed(instances)}); "
            "destroy them first, with nvidia-smi mig -dci and -dgi if they are not this driver's"
        )
    return doing


def revert_pending_mode(handle: Handle) -> bool:
    """Revert a pending change of MIG mode, so that no later reset applies it; whether one was pending. Best effort."""
    with contextlib.suppress(pynvml.NVMLError):
        current, pending = pynvml.nvmlDeviceGetMigMode(handle)
        if pending != current:
            pynvml.nvmlDeviceSetMigMode(handle, current)
            return True
    return False


def create_gpu_instance(handle: Handle, gpu: GpuUuid, facts: mig.MigFacts, profile_id: int, start: int) -> int:
    """See ``GpuControl.create_gpu_instance``. Destroys the new instance when its id cannot be read."""
    profile = next((profile for profile in facts.profiles if profile.profile_id == profile_id), None)
    if profile is None or start not in profile.starts:
        offered = ", ".join(f"{p.name} (id {p.profile_id}) at {_numbers(p.starts)}" for p in facts.profiles) or "none"
        raise MigUnsupportedError(
            f"GPU {gpu} has no MIG profile {profile_id} at memory slice {start}; profiles and the memory slices "
            f"at which they may start: {offered}"
        )
    doing = f"creating {profile.name} at memory slice {start} of GPU {gpu}"
    if not mig_mode(handle, gpu):
        raise MigUnsupportedError(f"{doing} failed: MIG mode is off; switch it on first")
    placement = pynvml.c_nvmlGpuInstancePlacement_t(start, profile.memory_slices)
    try:
        create = pynvml.nvmlDeviceCreateGpuInstanceWithPlacement
        instance = change(doing, create, handle, profile_id, ctypes.byref(placement))
    except NoRoomError as error:
        raise NoRoomError(f"{error}. GPU instances now: {_now(handle, facts)}") from error
    try:
        return required(pynvml.nvmlGpuInstanceGetInfo, instance).id
    except DraError:
        with contextlib.suppress(pynvml.NVMLError):
            pynvml.nvmlGpuInstanceDestroy(instance)
        raise


def create_compute_instance(handle: Handle, gpu: GpuUuid, facts: mig.MigFacts, gi_id: int) -> ComputeInstance:
    """See ``GpuControl.create_compute_instance``. Destroys the new instance when its UUID cannot be read."""
    doing = f"creating the compute instance of GPU instance {gi_id} of GPU {gpu}"
    existing = next((one for one in mig.read_instances(handle, facts) if one.gi_id == gi_id), None)
    if existing is None:
        raise DeviceLostError(f"{doing} failed: that GPU instance does not exist; create it again")
    if existing.compute:
        ids = _numbers(tuple(one.ci_id for one in existing.compute))
        raise NoRoomError(f"{doing} failed: it has one already (id {ids}); destroy it first")
    instance = required(pynvml.nvmlDeviceGetGpuInstanceById, handle, gi_id)
    profiles = mig.compute_profiles(instance, existing.profile_id, facts)
    made = _create(doing, instance, mig.spanning(profiles, facts.slices.get(existing.profile_id)))
    compute: ComputeInstance | None = None
    try:
        compute = mig.read_compute_instance(made, spans=True)
    finally:
        if compute is None or compute.uuid is None:
            with contextlib.suppress(pynvml.NVMLError):
                pynvml.nvmlComputeInstanceDestroy(made)
    if compute is None or compute.uuid is None:
        raise DeviceLostError(f"{doing} failed: its MIG device has no readable UUID; it was removed, try again")
    return compute


def destroy_compute_instance(handle: Handle, gpu: GpuUuid, gi_id: int, ci_id: int) -> None:
    instance = _gpu_instance(handle, gi_id)
    if instance is None:
        return
    compute = optional(pynvml.nvmlGpuInstanceGetComputeInstanceById, instance, ci_id, absent=GONE)
    if compute is None:
        return
    doing = f"destroying compute instance {ci_id} of GPU instance {gi_id} of GPU {gpu}"
    _destroy(doing, pynvml.nvmlComputeInstanceDestroy, compute)


def destroy_gpu_instance(handle: Handle, gpu: GpuUuid, gi_id: int) -> None:
    instance = _gpu_instance(handle, gi_id)
    if instance is not None:
        doing = f"destroying GPU instance {gi_id} of GPU {gpu}"
        _destroy(doing, pynvml.nvmlGpuInstanceDestroy, instance)


def compute_mode(handle: Handle) -> ComputeMode:
    """Raises DeviceLostError also for a mode that nvml.h does not define."""
    mode = required(pynvml.nvmlDeviceGetComputeMode, handle)
    try:
        return ComputeMode(mode)
    except ValueError as error:
        raise DeviceLostError(f"the GPU has the unknown compute mode {mode}; set one with nvidia-smi -c") from error


def set_compute_mode(handle: Handle, gpu: GpuUuid, mode: ComputeMode) -> None:
    """Set the compute mode. Raises MigUnsupportedError with MIG mode on: the GPU has no compute mode then."""
    doing = f"setting the compute mode of GPU {gpu} to {mode.name}"
    change(doing, pynvml.nvmlDeviceSetComputeMode, handle, int(mode))


def _gpu_instance(handle: Handle, gi_id: int) -> pynvml.c_nvmlGpuInstance_t | None:
    return optional(pynvml.nvmlDeviceGetGpuInstanceById, handle, gi_id, absent=GONE)


def _create(
    doing: str, instance: pynvml.c_nvmlGpuInstance_t, candidates: tuple[mig.ComputeProfile, ...]
) -> pynvml.c_nvmlComputeInstance_t:
    refused = MigUnsupportedError(f"{doing} failed: no compute instance profile spans it; see nvidia-smi mig -lcip")
    for profile in candidates:
        try:
            return change(doing, pynvml.nvmlGpuInstanceCreateComputeInstance, instance, profile.profile_id)
        except MigUnsupportedError as error:
            refused = error
    raise refused


def _destroy(doing: str, call: Callable[[Instance], object], instance: Instance) -> None:
    try:
        change(doing, call, instance)
    except HardwareError as error:
        if getattr(error.__cause__, "value", None) != pynvml.NVML_ERROR_NOT_FOUND:
            raise


def _now(handle: Handle, facts: mig.MigFacts) -> str:
    try:
        return _listed(mig.read_instances(handle, facts)) or "none"
    except DraError as error:
        return str(error)


def _listed(instances: tuple[MigInstance, ...]) -> str:
    return ", ".join(
        f"{one.profile_name} at memory slices {one.start}-{one.start + one.size - 1} (id {one.gi_id})"
        for one in instances
    )


def _numbers(values: tuple[int, ...]) -> str:
    return ", ".join(map(str, values))
