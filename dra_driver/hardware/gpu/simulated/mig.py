"""Apply the rules of MIG to the state of a simulated GPU. No I/O.

Independent of ``node/slices/``, so that tests can compare the two. Sources: nvml.h (nvmlDeviceSetMigMode,
nvmlDeviceCreateGpuInstanceWithPlacement, nvmlGpuInstanceDestroy, nvmlDeviceSetComputeMode) and NVIDIA's MIG user guide.
"""

import uuid
from typing import Annotated

from msgspec import UNSET, Meta, Struct, UnsetType
from msgspec.structs import replace

from dra_driver.core.errors import (
    DeviceLostError,
    DriverUnavailableError,
    GpuBusyError,
    MigUnsupportedError,
    NoRoomError,
    ResetRequiredError,
)
from dra_driver.core.model.fabric import Fabric
from dra_driver.core.model.gpu import Gpu
from dra_driver.core.model.ids import GpuUuid, MigUuid
from dra_driver.core.model.mig import ComputeInstance, MigInstance, MigProfile
from dra_driver.hardware.gpu.backend import ComputeMode, MigModes, ModeAnswer
from dra_driver.hardware.gpu.simulated.faults import FailureMode

ENGINES = ("copy_engines", "decoders", "encoders", "jpeg_engines", "ofa_engines")
COMPUTE_INSTANCE_ID = 0  # the id that hardware gives to the first one; this driver creates one
# The kernel module has device numbers for no more.
GiId = Annotated[int, Meta(ge=0, le=14)]
_CiId = Annotated[int, Meta(ge=0, le=7)]


class ComputeState(Struct, frozen=True, kw_only=True):
    ci: _CiId
    spans: bool = True


class InstanceState(Struct, frozen=True, kw_only=True, rename="camel"):
    profile: int
    start: int
    gi: GiId
    compute: tuple[ComputeState, ...] = ()
    in_use: bool = False


class GpuState(Struct, frozen=True, kw_only=True, rename="camel"):
    """Mutable state of one GPU, as the state file has it (``state.py``). ``fabric`` is UNSET as in the spec."""

    described: str | None = None
    mig_mode: bool
    mig_pending: bool | None = None
    compute_mode: ComputeMode = ComputeMode.DEFAULT
    busy: str | None = None
    busy_on_create: str | None = None
    fabric: Fabric | UnsetType | None = UNSET
    fabric_after_mig: Fabric | None = None
    troubles: frozenset[FailureMode] = frozenset()
    instances: tuple[InstanceState, ...]

    def instance(self, gi_id: int) -> InstanceState | None:
        return next((instance for instance in self.instances if instance.gi == gi_id), None)

    def with_instance(self, changed: InstanceState) -> "GpuState":
        """A copy with ``changed`` in place of the instance of its id."""
        return replace(self, instances=tuple(changed if one.gi == changed.gi else one for one in self.instances))


def described(gpu: Gpu) -> GpuState:
    """The state that the spec gives to ``gpu``."""
    instances = (
        InstanceState(
            profile=one.profile_id,
            start=one.start,
            gi=one.gi_id,
            compute=tuple(ComputeState(ci=compute.ci_id, spans=compute.spans) for compute in one.compute),
        )
        for one in gpu.mig_instances
    )
    return GpuState(mig_mode=gpu.mig_enabled, instances=tuple(instances), fabric=gpu.fabric)


def apply(gpu: Gpu, state: GpuState) -> Gpu:
    fabric = gpu.fabric if state.fabric is UNSET else state.fabric
    return replace(gpu, mig_enabled=state.mig_mode, mig_instances=instances(gpu, state), fabric=fabric)


def instances(gpu: Gpu, state: GpuState) -> tuple[MigInstance, ...]:
    """Raises DriverUnavailableError for a profile that the board lacks."""
    return tuple(_instance(gpu, one) for one in state.instances)


def _instance(gpu: Gpu, found: InstanceState) -> MigInstance:
    profile = gpu.profile(found.profile)
    if profile is None:
        raise DriverUnavailableError(
            f"simulated driver: the state of {gpu.uuid} cannot be decoded: no MIG profile {found.profile}"
        )
    compute = (compute_instance(gpu, found.gi, ci_id=one.ci, spans=one.spans) for one in found.compute)
    return MigInstance(
        gi_id=found.gi,
        profile_id=profile.profile_id,
        profile_name=profile.name,
        start=found.start,
        size=profile.memory_slices,
        compute=tuple(sorted(compute, key=lambda made: made.ci_id)),
    )


def mig_uuid(gpu: GpuUuid, gi_id: int, ci_id: int) -> MigUuid:
    """Name-based, as on hardware: a partition that is created again has the same UUID."""
    return MigUuid(f"MIG-{name_based(gpu, f'{gi_id}/{ci_id}')}")


def name_based(gpu: GpuUuid, name: str) -> uuid.UUID:
    """A UUID of version 5 in the name space of the GPU's own."""
    return uuid.uuid5(uuid.UUID(gpu.removeprefix("GPU-")), name)


def compute_instance(gpu: Gpu, gi_id: int, *, ci_id: int = COMPUTE_INSTANCE_ID, spans: bool = True) -> ComputeInstance:
    return ComputeInstance(ci_id=ci_id, uuid=mig_uuid(gpu.uuid, gi_id, ci_id), spans=spans)


def mig_mode(gpu: Gpu, state: GpuState) -> bool:
    require_mig(gpu)
    return state.mig_mode


def set_mode(gpu: Gpu, state: GpuState, enabled: bool, *, by_reset: bool = False) -> GpuState:
    """Switch MIG mode; ``by_reset``: with a GPU reset. MigUnsupportedError, GpuBusyError, ResetRequiredError."""
    require_mig(gpu)
    if enabled == state.mig_mode:
        return state
    word = "on" if enabled else "off"
    if state.busy is not None:
        raise GpuBusyError(f"MIG mode of {gpu.uuid} cannot be switched {word}: in use by {state.busy}")
    if state.instances:
        raise GpuBusyError(f"MIG mode of {gpu.uuid} cannot be switched off: {len(state.instances)} GPU instances exist")
    if not gpu.mig_resetless and not by_reset:
        raise ResetRequiredError(f"switching MIG mode {word} on {gpu.uuid} requires a GPU reset")
    return replace(state, mig_mode=enabled, compute_mode=ComputeMode.DEFAULT if enabled else state.compute_mode)


def mig_modes(gpu: Gpu, state: GpuState) -> MigModes:
    require_mig(gpu)
    pending = state.mig_mode if state.mig_pending is None else state.mig_pending
    return MigModes(current=state.mig_mode, pending=pending)


def request_mode(gpu: Gpu, state: GpuState, enabled: bool) -> tuple[GpuState, ModeAnswer]:
    """Switch MIG mode, or leave it pending."""
    if enabled == state.mig_mode:
        return replace(state, mig_pending=None), ModeAnswer.DONE
    if state.instances:
        set_mode(gpu, replace(state, busy=None), enabled)  # raises
    require_mig(gpu)
    if state.busy is None and gpu.mig_resetless:
        return replace(set_mode(gpu, state, enabled), mig_pending=None), ModeAnswer.DONE
    answer = ModeAnswer.IN_USE if state.busy is not None else ModeAnswer.NEEDS_RESET
    return replace(state, mig_pending=enabled), answer


def reset(gpu: Gpu, state: GpuState) -> GpuState:
    """Reset the GPU: it removes instances and applies a pending mode. GpuBusyError while it is in use."""
    if state.busy is not None:
        raise GpuBusyError(f"{gpu.uuid} cannot be reset: in use by {state.busy}")
    state = replace(state, instances=(), compute_mode=ComputeMode.DEFAULT)
    if state.mig_pending is not None:
        state = replace(set_mode(gpu, state, state.mig_pending, by_reset=True), mig_pending=None)
    return state


def add_instance(gpu: Gpu, state: GpuState, profile_id: int, start: int) -> tuple[GpuState, int]:
    require_mig(gpu)
    if not state.mig_mode:
        raise MigUnsupportedError(f"no GPU instance can be created on {gpu.uuid}: its MIG mode is off")
    profile = gpu.profile(profile_id)
    if profile is None or start not in profile.starts:
        starts = ", ".join(map(str, profile.starts)) if profile is not None else ""
        offered = "no such profile" if profile is None else f"{profile.name} begins at {starts}"
        raise MigUnsupportedError(f"{gpu.uuid} has no MIG profile {profile_id} at memory slice {start}: {offered}")
    require_room(gpu, instances(gpu, state), profile, start)
    if state.busy_on_create is not None and not state.instances:
        raise GpuBusyError(f"no first GPU instance can be created on {gpu.uuid}: in use by {state.busy_on_create}")
    # 0 for the whole, then halves, quarters and so on from the left, as drivers number them on A30, A100 and H100.
    gi_id = gpu.memory_slices // profile.memory_slices - 1 + start // profile.memory_slices
    made = InstanceState(profile=profile_id, start=start, gi=gi_id)
    ordered = sorted((*state.instances, made), key=lambda instance: instance.start)
    return replace(state, instances=tuple(ordered)), gi_id


def add_compute(gpu: Gpu, state: GpuState, gi_id: int, *, spans: bool = True) -> tuple[GpuState, ComputeInstance]:
    instance = state.instance(gi_id)
    if instance is None:
        raise DeviceLostError(f"GPU instance {gi_id} of {gpu.uuid} does not exist")
    if instance.compute:
        raise NoRoomError(f"GPU instance {gi_id} of {gpu.uuid} has a compute instance already")
    made = ComputeState(ci=COMPUTE_INSTANCE_ID, spans=spans)
    return state.with_instance(replace(instance, compute=(made,))), compute_instance(gpu, gi_id, spans=spans)


def drop_compute(gpu: Gpu, state: GpuState, gi_id: int, ci_id: int) -> GpuState:
    instance = state.instance(gi_id)
    if instance is None or all(compute.ci != ci_id for compute in instance.compute):
        return state
    if instance.in_use:
        raise GpuBusyError(f"compute instance {ci_id} of GPU instance {gi_id} of {gpu.uuid} is in use by a process")
    rest = tuple(compute for compute in instance.compute if compute.ci != ci_id)
    return state.with_instance(replace(instance, compute=rest))


def drop_instance(gpu: Gpu, state: GpuState, gi_id: int, *, forced: bool = False) -> GpuState:
    """Remove a GPU instance, if it exists. Unless ``forced``, raise GpuBusyError if it is in use or has contents."""
    instance = state.instance(gi_id)
    if instance is None:
        return state
    if not forced and (instance.compute or instance.in_use):
        why = "has a compute instance" if instance.compute else "is in use by a process"
        raise GpuBusyError(f"GPU instance {gi_id} of {gpu.uuid} cannot be destroyed: it {why}")
    rest = tuple(other for other in state.instances if other.gi != gi_id)
    fabric = state.fabric if rest or state.fabric_after_mig is None else state.fabric_after_mig
    return replace(state, instances=rest, fabric=fabric)


def set_compute_mode(gpu: Gpu, state: GpuState, mode: ComputeMode) -> GpuState:
    if state.mig_mode:
        raise MigUnsupportedError(f"the compute mode of {gpu.uuid} cannot be set while its MIG mode is on")
    return replace(state, compute_mode=mode)


def require_mig(gpu: Gpu) -> None:
    """Raises MigUnsupportedError for a GPU without MIG."""
    if not gpu.mig_capable:
        raise MigUnsupportedError(f"{gpu.uuid} ({gpu.product_name or 'unknown model'}) does not support MIG")


def require_room(gpu: Gpu, existing: tuple[MigInstance, ...], profile: MigProfile, start: int) -> None:
    """Raises NoRoomError when an instance of ``profile`` at ``start`` does not fit alongside ``existing``."""
    what = f"no room for {profile.name} at memory slice {start} of {gpu.uuid}"
    for instance in existing:
        if instance.overlaps(start, profile.memory_slices):
            raise NoRoomError(f"{what}: GPU instance {instance.gi_id} covers {_slices(instance)}")
    same = sum(instance.profile_id == profile.profile_id for instance in existing)
    if same >= profile.max_instances:
        raise NoRoomError(f"{what}: {same} of at most {profile.max_instances} such instances exist")
    made = [found for instance in existing if (found := gpu.profile(instance.profile_id)) is not None]
    whole = max(gpu.mig_profiles, key=lambda profile: (profile.memory_slices, profile.compute_slices))
    for resource in ("compute_slices", *ENGINES):
        _require(what, resource, [*made, profile], whole)


def _require(what: str, resource: str, wanted: list[MigProfile], whole: MigProfile) -> None:
    total: int | None = getattr(whole, resource)
    needed = sum(getattr(profile, resource) or 0 for profile in wanted)
    own: int = getattr(wanted[-1], resource) or 0
    if total is not None and own > 0 and needed > total:
        word = resource.replace("_", " ")
        raise NoRoomError(f"{what}: it needs {own} {word} and {max(0, total - needed + own)} of {total} are free")


def _slices(instance: MigInstance) -> str:
    last = instance.start + instance.size - 1
    return f"memory slice {last}" if instance.size == 1 else f"memory slices {instance.start} to {last}"
