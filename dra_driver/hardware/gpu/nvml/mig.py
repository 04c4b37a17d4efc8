"""List the MIG instances of a GPU through NVML. ``control.py`` changes them.

Sources, all in nvml.h: nvmlDeviceGetGpuInstances, which also finds instances without a compute instance (they have no
MIG device, so walking those would miss them), nvmlGpuInstanceGetComputeInstances, and nvmlComputeInstanceGetInfo_v2,
whose ``device`` is the handle of the MIG device (walking all of them takes seconds on a busy node). Of a profile that
the GPU does not list, nvmlDeviceGetAttributes_v2 of such a device reports the size; it works for MIG devices only.
"""

import ctypes
from collections.abc import Callable, Iterator, Sequence
from functools import partial

import pynvml
from msgspec.structs import replace

from dra_driver.core.model.ids import MigUuid
from dra_driver.core.model.mig import ComputeInstance, MigInstance, MigProfile
from dra_driver.hardware.gpu.nvml.errors import ABSENT, GONE, optional, raise_translated
from dra_driver.hardware.gpu.nvml.profiles import ComputeProfile, MigFacts, count_of, memory_of

KNOWN_COMPUTE_PROFILES = 9  # NVML_COMPUTE_INSTANCE_PROFILE_COUNT of nvml.h 13.3; a gap below it does not end the list
MAX_COMPUTE_PROFILES = 32  # ends it when a library never does
MAX_INSTANCES = (
    64  # size of result buffers; NVML's own instanceCount is wrong on A30 and would make the buffer too small
)
VANISHED = GONE | {pynvml.NVML_ERROR_INVALID_ARGUMENT}  # the instance of a listed handle is gone


def read_instances(
    handle: pynvml.c_nvmlDevice_t, facts: MigFacts, proceed: Callable[[], None] | None = None
) -> tuple[MigInstance, ...]:
    """All GPU instances by ``start``, incomplete ones included; () when MIG mode is off.

    Instances that disappear meanwhile are left out. ``proceed`` is called before each part and may raise to end the
    listing, which takes seconds under load. Raises DeviceLostError and DriverUnavailableError.
    """
    proceed = proceed or (lambda: None)
    found: dict[int, MigInstance] = {}
    for instance in _instances(handle, facts, proceed):
        proceed()
        info = optional("nvmlGpuInstanceGetInfo", partial(pynvml.nvmlGpuInstanceGetInfo, instance), VANISHED)
        if info is None or info.id in found:
            continue
        known = MigInstance(
            gi_id=info.id,
            profile_id=info.profileId,
            profile_name=facts.names.get(info.profileId, f"profile {info.profileId}"),
            start=info.placement.start,
            size=info.placement.size,
            compute=_compute_instances(instance, info.profileId, facts),
        )
        found[info.id] = replace(known, profile=_unlisted_profile(instance, known, facts))
    return tuple(sorted(found.values(), key=lambda one: (one.start, one.gi_id)))


def read_compute_instance(handle: pynvml.c_nvmlComputeInstance_t, *, spans: bool) -> ComputeInstance | None:
    """One compute instance, None when it is gone. Errors as ``read_instances``."""
    info = optional("nvmlComputeInstanceGetInfo_v2", partial(pynvml.nvmlComputeInstanceGetInfo, handle), VANISHED)
    if info is None:
        return None
    uuid = optional("nvmlDeviceGetUUID", partial(pynvml.nvmlDeviceGetUUID, info.device), ABSENT | VANISHED)
    return ComputeInstance(ci_id=info.id, uuid=None if uuid is None else MigUuid(uuid), spans=spans)


def compute_profiles(
    instance: pynvml.c_nvmlGpuInstance_t, profile_id: int, facts: MigFacts
) -> tuple[ComputeProfile, ...]:
    """Every size of compute instance that a GPU instance of ``profile_id`` can hold. Errors as ``read_instances``."""
    known = facts.compute.get(profile_id)
    if known is None:
        known = tuple(_read_compute_profiles(instance))
        if known:
            facts.compute[profile_id] = known
    return known


def spanning(profiles: Sequence[ComputeProfile], slices: int | None) -> tuple[ComputeProfile, ...]:
    """Profiles that span a GPU instance of ``slices`` compute slices, best first; () when none does.

    The most multiprocessors win: on Hopper a 1g instance of double memory has more of them than one slice, and only
    compute profile 7 (1_SLICE_REV1) gets them all. Among equals the lower number wins: 7_SLICE (4) before 7_SLICE_NVL
    (8), which boards list and then refuse.
    """
    if slices is None:
        slices = max((profile.slices for profile in profiles), default=0)
    full = [profile for profile in profiles if profile.slices == slices]
    most = max((profile.multiprocessors for profile in full), default=0)
    return tuple(sorted((p for p in full if p.multiprocessors == most), key=lambda p: p.number))


def _instances(
    handle: pynvml.c_nvmlDevice_t, facts: MigFacts, proceed: Callable[[], None]
) -> Iterator[pynvml.c_nvmlGpuInstance_t]:
    """By profile, and also by id when not all profiles could be read: their instances would be missed."""
    for profile_id in facts.slices:
        proceed()
        buffer = (pynvml.c_nvmlGpuInstance_t * MAX_INSTANCES)()
        count = ctypes.c_uint(MAX_INSTANCES)
        ask = partial(pynvml.nvmlDeviceGetGpuInstances, handle, profile_id, buffer, ctypes.byref(count))
        if optional("nvmlDeviceGetGpuInstances", ask, GONE) is not None:
            yield from buffer[: count.value]
    for gi_id in range(0 if facts.complete else MAX_INSTANCES):
        ask_one = partial(pynvml.nvmlDeviceGetGpuInstanceById, handle, gi_id)
        instance = optional("nvmlDeviceGetGpuInstanceById", ask_one, VANISHED)
        if instance is not None:
            yield instance


def _compute_instances(
    instance: pynvml.c_nvmlGpuInstance_t, profile_id: int, facts: MigFacts
) -> tuple[ComputeInstance, ...]:
    profiles = compute_profiles(instance, profile_id, facts)
    widest = spanning(profiles, facts.slices.get(profile_id))
    found: dict[int, ComputeInstance] = {}
    for profile in profiles:
        buffer = (pynvml.c_nvmlComputeInstance_t * MAX_INSTANCES)()
        count = ctypes.c_uint(MAX_INSTANCES)
        ask = partial(
            pynvml.nvmlGpuInstanceGetComputeInstances, instance, profile.profile_id, buffer, ctypes.byref(count)
        )
        if optional("nvmlGpuInstanceGetComputeInstances", ask, VANISHED) is None:
            continue
        for handle in buffer[: count.value]:
            made = read_compute_instance(handle, spans=profile in widest)
            if made is not None:
                found[made.ci_id] = made
    return tuple(found[ci_id] for ci_id in sorted(found))


def _unlisted_profile(instance: pynvml.c_nvmlGpuInstance_t, known: MigInstance, facts: MigFacts) -> MigProfile | None:
    """The size of a profile that the GPU does not list; read once per profile."""
    if known.device is None or any(profile.profile_id == known.profile_id for profile in facts.profiles):
        return None
    profile = facts.unlisted.get(known.profile_id) or _read_unlisted_profile(instance, known, known.device.ci_id)
    if profile is not None:
        facts.unlisted[known.profile_id] = profile
    return profile


def _read_unlisted_profile(instance: pynvml.c_nvmlGpuInstance_t, known: MigInstance, ci_id: int) -> MigProfile | None:
    """The size as the device of the spanning compute instance reports it; None when it does not, or is gone."""
    ask = partial(pynvml.nvmlGpuInstanceGetComputeInstanceById, instance, ci_id)
    compute = optional("nvmlGpuInstanceGetComputeInstanceById", ask, ABSENT | VANISHED)
    if compute is None:
        return None
    info = optional("nvmlComputeInstanceGetInfo_v2", partial(pynvml.nvmlComputeInstanceGetInfo, compute), VANISHED)
    if info is None:
        return None
    ask_device = partial(pynvml.nvmlDeviceGetAttributes_v2, info.device)
    attributes = optional("nvmlDeviceGetAttributes_v2", ask_device, ABSENT | VANISHED)
    if attributes is None:
        return None
    return MigProfile(
        name=known.profile_name,
        profile_id=known.profile_id,
        compute_slices=attributes.gpuInstanceSliceCount,
        memory_slices=known.size,
        max_instances=1,
        starts=(),
        memory_bytes=memory_of(attributes.memorySizeMB),
        multiprocessors=count_of(attributes.multiprocessorCount),
        copy_engines=count_of(attributes.sharedCopyEngineCount),
        decoders=count_of(attributes.sharedDecoderCount),
        encoders=count_of(attributes.sharedEncoderCount),
        jpeg_engines=count_of(attributes.sharedJpegCount),
        ofa_engines=count_of(attributes.sharedOfaCount),
    )


def _read_compute_profiles(instance: pynvml.c_nvmlGpuInstance_t) -> Iterator[ComputeProfile]:
    for number in range(MAX_COMPUTE_PROFILES):
        try:
            info = _compute_profile(instance, number)
        except EOFError:
            return
        if info is not None:
            yield ComputeProfile(number, info.id, info.sliceCount, info.multiprocessorCount)


def _compute_profile(
    instance: pynvml.c_nvmlGpuInstance_t, number: int
) -> pynvml.c_nvmlComputeInstanceProfileInfo_t | pynvml.c_nvmlComputeInstanceProfileInfo_v2_t | None:
    """Compute profile ``number``, None when the instance cannot hold it. Raises EOFError behind the last."""
    name = "nvmlGpuInstanceGetComputeInstanceProfileInfo"
    for version, function in ((2, f"{name}V"), (1, name)):
        try:
            return pynvml.nvmlGpuInstanceGetComputeInstanceProfileInfo(
                instance, number, pynvml.NVML_COMPUTE_INSTANCE_ENGINE_PROFILE_SHARED, version=version
            )
        except pynvml.NVMLError as error:
            if error.value == pynvml.NVML_ERROR_INVALID_ARGUMENT:
                if number >= KNOWN_COMPUTE_PROFILES:
                    raise EOFError from error
                return None
            if error.value not in ABSENT | GONE:
                raise_translated(function, error)
    return None
