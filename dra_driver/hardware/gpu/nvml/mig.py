"""Read the MIG profiles, placements and instances of a GPU through NVML. ``control.py`` changes them.

Names, ids, sizes and placements are read and never computed: boards break every rule. Sources, all in nvml.h:
nvmlDeviceGetGpuInstanceProfileInfoV (InvalidArgument ends the list), nvmlDeviceGetGpuInstancePossiblePlacements_v2
(also with MIG mode off), nvmlDeviceGetGpuInstances (also without compute instance), nvmlComputeInstanceGetInfo_v2 (has
the MIG device; walking all of them takes seconds on a busy node), nvmlDeviceGetAttributes_v2 (size of an unlisted one).
"""

import ctypes
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar, TypeVarTuple

import pynvml
from msgspec import Struct, field
from msgspec.structs import replace

from dra_driver.core.errors import DeviceLostError
from dra_driver.core.model.ids import MigUuid
from dra_driver.core.model.mig import ComputeInstance, MigInstance, MigProfile
from dra_driver.hardware.gpu.nvml.errors import ABSENT, GONE, optional, raise_translated, withdraws

T = TypeVar("T")
Arguments = TypeVarTuple("Arguments")

KNOWN_PROFILES = 18  # NVML_GPU_INSTANCE_PROFILE_COUNT of nvml.h 13.3; a gap below it does not end the list
MAX_PROFILES = 64  # bounds the loop when a library never ends the list
MAX_PLACEMENTS = 256
PLACEMENTS = "nvmlDeviceGetGpuInstancePossiblePlacements_v2"
RESETLESS_FIELD = 184  # NVML_FI_DEV_IS_RESETLESS_MIG_SUPPORTED
NOT_AVAILABLE = 0xFFFFFFFF  # NVML_VALUE_NOT_AVAILABLE, in 32 bits
# Architectures without MIG. NVIDIA's mock NVML answers nvmlDeviceGetMigMode on T4 and L40S anyway.
WITHOUT_MIG = frozenset(
    {
        pynvml.NVML_DEVICE_ARCH_KEPLER,
        pynvml.NVML_DEVICE_ARCH_MAXWELL,
        pynvml.NVML_DEVICE_ARCH_PASCAL,
        pynvml.NVML_DEVICE_ARCH_VOLTA,
        pynvml.NVML_DEVICE_ARCH_TURING,
        pynvml.NVML_DEVICE_ARCH_ADA,
    }
)
# What follows the size in a name, by number of the profile; only for drivers that report no names (before 525).
FLAVOURS = {7: "+me", 8: "+me", 10: "+gfx", 11: "+gfx", 12: "+gfx", 13: "-me", 14: "-me", 15: "+me.all", 16: "+me.all"}

Info = pynvml.c_nvmlGpuInstanceProfileInfo_t | pynvml.c_nvmlGpuInstanceProfileInfo_v2_t
ComputeInfo = pynvml.c_nvmlComputeInstanceProfileInfo_t | pynvml.c_nvmlComputeInstanceProfileInfo_v2_t


class ComputeProfile(Struct, frozen=True):
    """A compute instance profile of a GPU instance. ``number`` is its constant in nvml.h, ``profile_id`` its id."""

    number: int
    profile_id: int
    slices: int
    multiprocessors: int


class MigFacts(Struct, kw_only=True):
    """Constant facts about a GPU with MIG, read once per session, again unless ``complete``. ``profiles`` can be
    created; ``names`` and ``slices`` (of compute), by id, also have profiles without placements, so that their
    instances are found. ``trouble`` is the first failure. ``capable`` is False for boards that cannot have MIG,
    whatever NVML answers. ``compute`` and ``unlisted`` (sizes that devices of unlisted profiles report) come later."""

    profiles: tuple[MigProfile, ...] = ()
    names: dict[int, str] = field(default_factory=dict)
    slices: dict[int, int] = field(default_factory=dict)
    resetless: bool | None = None
    complete: bool = True
    trouble: str | None = None
    capable: bool = True
    compute: dict[int, tuple[ComputeProfile, ...]] = field(default_factory=dict)
    unlisted: dict[int, MigProfile] = field(default_factory=dict)


def read_facts(handle: pynvml.c_nvmlDevice_t) -> MigFacts:
    """The readable facts of a GPU with MIG. Raises DriverUnavailableError and DeviceLostError."""
    facts = MigFacts()
    architecture = _read(facts, pynvml.nvmlDeviceGetArchitecture, handle)
    facts.resetless = _resetless(handle, architecture, facts)
    found: dict[int, MigProfile] = {}
    unnamed: dict[int, int] = {}
    for number, info in _infos(handle, facts):
        if info.id in facts.slices:
            continue
        name = _name(info)
        facts.names[info.id] = name or f"profile {info.id}"
        facts.slices[info.id] = info.sliceCount
        profile = _profile(handle, info, facts)
        if profile is not None:
            found[info.id] = profile
            if name is None:
                unnamed[info.id] = number
    found_memory = _read(facts, pynvml.nvmlDeviceGetMemoryInfo, handle) if unnamed else None
    memory = None if found_memory is None else found_memory.total
    for profile_id, number in unnamed.items():
        name = computed_name(found[profile_id], FLAVOURS.get(number, ""), _slices(found), memory)
        facts.names[profile_id] = name
        found[profile_id] = replace(found[profile_id], name=name)
    facts.profiles = tuple(found[profile_id] for profile_id in sorted(found))
    facts.capable = bool(facts.slices) or facts.trouble is not None or architecture not in WITHOUT_MIG
    facts.complete = facts.trouble is None and (bool(found) or not facts.capable)
    if _is_guest(handle, facts):
        facts.profiles = ()  # only the host of a vGPU can change its partitions
        facts.resetless = False
    return facts


def computed_name(profile: MigProfile, flavour: str, slices: int, memory_bytes: int | None) -> str:
    """``1g.5gb`` as nvidia-smi writes it: GiB of memory, rounded up, times the share of ``slices``, rounded."""
    if memory_bytes is None:  # with MIG mode on, only root can read it
        if profile.memory_bytes is None:
            return f"{profile.compute_slices}g{flavour}"
        gigabytes = -(-profile.memory_bytes // 2**30)
    else:
        gigabytes = (2 * -(-memory_bytes // 2**30) * profile.memory_slices + slices) // (2 * slices)
    return f"{profile.compute_slices}g.{gigabytes}gb{flavour}"


def _infos(handle: pynvml.c_nvmlDevice_t, facts: MigFacts) -> list[tuple[int, Info]]:
    found: list[tuple[int, Info]] = []
    for number in range(MAX_PROFILES):
        try:
            info = _info(handle, number)
        except EOFError:
            break
        except DeviceLostError as error:
            _note(facts, error)
            continue
        if info is not None:
            found.append((number, info))
    return found


def _info(handle: pynvml.c_nvmlDevice_t, number: int) -> Info | None:
    """Profile ``number``, None without it; EOFError after the last."""

    def ask(version: int) -> Info:
        return pynvml.nvmlDeviceGetGpuInstanceProfileInfo(handle, number, version=version)

    name = "nvmlDeviceGetGpuInstanceProfileInfo"
    return _numbered(ask, name, ABSENT, may_end=number >= KNOWN_PROFILES, ends_without_function=True)


def _numbered(
    ask: Callable[[int], T],
    function: str,
    absent: frozenset[int],
    *,
    may_end: bool,
    ends_without_function: bool = False,
) -> T | None:
    """One of several numbered profiles; None without it, and EOFError after the last if it ``may_end`` here, or where
    the library has no version 1. Version 1 of the call where nvml.h wants MIG mode for version 2."""
    for version, name in ((2, f"{function}V"), (1, function)):
        try:
            return ask(version)
        except pynvml.NVMLError as error:
            if error.value == pynvml.NVML_ERROR_INVALID_ARGUMENT:
                if may_end:
                    raise EOFError from error
                return None
            if ends_without_function and error.value == pynvml.NVML_ERROR_FUNCTION_NOT_FOUND and version == 1:
                raise EOFError from error
            if error.value not in absent:
                raise_translated(name, error)
    return None


def _name(info: Info) -> str | None:
    """The name without "MIG ", which only some releases write; None without a name."""
    name = getattr(info, "name", b"")
    text = name.decode("ascii", "replace") if isinstance(name, bytes) else name
    return text.removeprefix("MIG ").strip() or None


def _profile(handle: pynvml.c_nvmlDevice_t, info: Info, facts: MigFacts) -> MigProfile | None:
    # Not Supported is legal (nvml.h): such a profile has no placements and cannot be created.
    placements = _read(facts, _placements, handle, info.id, name=PLACEMENTS)
    if not placements:
        return None
    size = placements[0][1]
    return MigProfile(
        name=facts.names[info.id],
        profile_id=info.id,
        compute_slices=info.sliceCount,
        memory_slices=size,
        max_instances=info.instanceCount,
        starts=tuple(sorted({start for start, its_size in placements if its_size == size})),
        memory_bytes=memory_of(info.memorySizeMB),
        multiprocessors=count_of(info.multiprocessorCount),
        copy_engines=count_of(info.copyEngineCount),
        decoders=count_of(info.decoderCount),
        encoders=count_of(info.encoderCount),
        jpeg_engines=count_of(info.jpegCount),
        ofa_engines=count_of(info.ofaCount),
    )


def _placements(handle: pynvml.c_nvmlDevice_t, profile_id: int) -> list[tuple[int, int]]:
    """Start and size of each. The first of two calls returns their number."""
    count = ctypes.c_uint(0)
    pynvml.nvmlDeviceGetGpuInstancePossiblePlacements(handle, profile_id, None, ctypes.byref(count))
    count.value = min(count.value, MAX_PLACEMENTS)
    buffer = (pynvml.c_nvmlGpuInstancePlacement_t * count.value)()
    if count.value:
        pynvml.nvmlDeviceGetGpuInstancePossiblePlacements(handle, profile_id, buffer, ctypes.byref(count))
    return [(one.start, one.size) for one in buffer[: count.value] if one.size > 0]


def _slices(profiles: dict[int, MigProfile]) -> int:
    return max(start + profile.memory_slices for profile in profiles.values() for start in profile.starts)


def memory_of(megabytes: int) -> int | None:
    return None if megabytes & NOT_AVAILABLE == NOT_AVAILABLE else megabytes * 2**20


def count_of(value: int) -> int | None:
    return None if value == NOT_AVAILABLE else value


def _resetless(handle: pynvml.c_nvmlDevice_t, architecture: int | None, facts: MigFacts) -> bool | None:
    """Return NVML's answer, else whether the GPU is Hopper or newer; None when both are missing."""
    absent = ABSENT | {pynvml.NVML_ERROR_INVALID_ARGUMENT}
    values = _read(facts, pynvml.nvmlDeviceGetFieldValues, handle, [RESETLESS_FIELD], absent=absent)
    if values is not None and values[0].nvmlReturn == 0:
        return values[0].value.uiVal != 0
    if architecture is None or architecture == NOT_AVAILABLE:
        return None
    return architecture >= pynvml.NVML_DEVICE_ARCH_HOPPER


def _is_guest(handle: pynvml.c_nvmlDevice_t, facts: MigFacts) -> bool:
    mode = _read(facts, pynvml.nvmlDeviceGetVirtualizationMode, handle)
    return mode == pynvml.NVML_GPU_VIRTUALIZATION_MODE_VGPU


def _read(
    facts: MigFacts,
    call: Callable[[*Arguments], T],
    *arguments: *Arguments,
    absent: frozenset[int] = ABSENT,
    name: str | None = None,
) -> T | None:
    """As ``errors.optional``, but None also for a failure, which ``facts`` records."""
    try:
        return optional(call, *arguments, absent=absent, name=name)
    except DeviceLostError as error:
        _note(facts, error)
        return None


def _note(facts: MigFacts, error: DeviceLostError) -> None:
    if withdraws(error):
        raise error
    facts.complete = False
    facts.trouble = facts.trouble or str(error)


KNOWN_COMPUTE_PROFILES = 9  # NVML_COMPUTE_INSTANCE_PROFILE_COUNT of nvml.h 13.3; a gap below it does not end the list
MAX_COMPUTE_PROFILES = 32  # ends it when a library never does
MAX_INSTANCES = 64  # of result buffers: NVML's instanceCount is wrong on A30 and would make them too small
VANISHED = GONE | {pynvml.NVML_ERROR_INVALID_ARGUMENT}  # the instance of a listed handle no longer exists


def read_instances(
    handle: pynvml.c_nvmlDevice_t, facts: MigFacts, proceed: Callable[[], None] | None = None
) -> tuple[MigInstance, ...]:
    """All GPU instances by ``start``, incomplete ones included; () when MIG mode is off. ``proceed`` may raise between
    parts to end the listing, which takes seconds under load. Raises DeviceLostError and DriverUnavailableError."""
    proceed = proceed or (lambda: None)
    found: dict[int, MigInstance] = {}
    for instance in _instances(handle, facts, proceed):
        proceed()
        info = optional(pynvml.nvmlGpuInstanceGetInfo, instance, absent=VANISHED)
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
    """Return one compute instance, None when it no longer exists. Errors as ``read_instances``."""
    info = optional(pynvml.nvmlComputeInstanceGetInfo, handle, absent=VANISHED)
    if info is None:
        return None
    uuid = optional(pynvml.nvmlDeviceGetUUID, info.device, absent=ABSENT | VANISHED)
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
    """Profiles that span ``slices`` compute slices, best first. The most multiprocessors win: on Hopper only compute
    profile 7 (1_SLICE_REV1) gets all of a 1g instance of double memory. Then the lower number: 7_SLICE (4) before
    7_SLICE_NVL (8), which boards list and then refuse."""
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
        if (
            optional(pynvml.nvmlDeviceGetGpuInstances, handle, profile_id, buffer, ctypes.byref(count), absent=GONE)
            is not None
        ):
            yield from buffer[: count.value]
    for gi_id in range(0 if facts.complete else MAX_INSTANCES):
        instance = optional(pynvml.nvmlDeviceGetGpuInstanceById, handle, gi_id, absent=VANISHED)
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
        listed, number = pynvml.nvmlGpuInstanceGetComputeInstances, profile.profile_id
        if optional(listed, instance, number, buffer, ctypes.byref(count), absent=VANISHED) is None:
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
    """Return the size that the device of the spanning compute instance reports; None without an answer."""
    compute = optional(pynvml.nvmlGpuInstanceGetComputeInstanceById, instance, ci_id, absent=ABSENT | VANISHED)
    if compute is None:
        return None
    info = optional(pynvml.nvmlComputeInstanceGetInfo, compute, absent=VANISHED)
    if info is None:
        return None
    attributes = optional(pynvml.nvmlDeviceGetAttributes_v2, info.device, absent=ABSENT | VANISHED)
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
    function = "nvmlGpuInstanceGetComputeInstanceProfileInfo"
    shared = pynvml.NVML_COMPUTE_INSTANCE_ENGINE_PROFILE_SHARED
    for number in range(MAX_COMPUTE_PROFILES):

        def ask(version: int, number: int = number) -> ComputeInfo:
            return pynvml.nvmlGpuInstanceGetComputeInstanceProfileInfo(instance, number, shared, version=version)

        try:
            info = _numbered(ask, function, ABSENT | GONE, may_end=number >= KNOWN_COMPUTE_PROFILES)
        except EOFError:
            return
        if info is not None:
            yield ComputeProfile(number, info.id, info.sliceCount, info.multiprocessorCount)
