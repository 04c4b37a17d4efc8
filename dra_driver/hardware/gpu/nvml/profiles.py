"""Read MIG profiles, placements and whether MIG mode can be switched, which are constant while the driver runs.

Names, ids, sizes and placements are read from NVML and never computed: boards break every rule.

Sources, all in nvml.h: nvmlDeviceGetGpuInstanceProfileInfoV (profiles are numbered, InvalidArgument ends the list),
nvmlDeviceGetGpuInstancePossiblePlacements_v2 (starts and sizes are memory slices; answers with MIG mode off, too).
"""

import ctypes
from collections.abc import Callable
from functools import partial
from typing import TypeVar

import pynvml
from msgspec import Struct, field
from msgspec.structs import replace

from dra_driver.core.errors import DeviceLostError
from dra_driver.core.model.mig import MigProfile
from dra_driver.hardware.gpu.nvml.errors import ABSENT, optional, raise_translated, withdraws

T = TypeVar("T")

KNOWN_PROFILES = 18  # NVML_GPU_INSTANCE_PROFILE_COUNT of nvml.h 13.3; a gap below it does not end the list
MAX_PROFILES = 64  # bounds the loop when a library never ends the list
MAX_PLACEMENTS = 256
RESETLESS_FIELD = 184  # NVML_FI_DEV_IS_RESETLESS_MIG_SUPPORTED
NOT_AVAILABLE = 0xFFFFFFFF  # NVML_VALUE_NOT_AVAILABLE, in 32 bits
# Architectures of which no board has MIG. NVIDIA's mock NVML answers nvmlDeviceGetMigMode on T4 and L40S all the same.
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


class ComputeProfile(Struct, frozen=True):
    """A compute instance profile of a GPU instance. ``number`` is its constant in nvml.h, ``profile_id`` its id."""

    number: int
    profile_id: int
    slices: int
    multiprocessors: int


class MigFacts(Struct, kw_only=True):
    """Constant facts about a GPU with MIG, read once per session.

    ``profiles`` are those that can be created, by id. ``names`` and ``slices`` (of compute) also have profiles without
    placements, so that their instances are found. ``complete`` is False when there are no profiles or something could
    not be read; then the facts are read again. ``trouble`` is the first such failure. ``capable`` is False when the
    board cannot have MIG whatever NVML answers. ``compute`` (compute instance profiles by id of the GPU instance's
    profile) and ``unlisted`` (profiles that the GPU does not list, as their devices report them) are filled when
    instances are found.
    """

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
    """Read the facts of a GPU with MIG; values that cannot be read are left out.

    Raises DriverUnavailableError and, for a GPU that fell off the bus, DeviceLostError.
    """
    facts = MigFacts()
    architecture = _read(facts, "nvmlDeviceGetArchitecture", partial(pynvml.nvmlDeviceGetArchitecture, handle))
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
    memory = _read(facts, "nvmlDeviceGetMemoryInfo", partial(_memory, handle)) if unnamed else None
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
    """``1g.5gb`` as nvidia-smi writes it, for drivers that report no name.

    The size is the GPU's memory in GiB, rounded up, times the profile's share of ``slices``, rounded to nearest.
    """
    if memory_bytes is None:  # with MIG mode on, only root can read it
        if profile.memory_bytes is None:
            return f"{profile.compute_slices}g{flavour}"
        gigabytes = -(-profile.memory_bytes // 2**30)
    else:
        gigabytes = (2 * -(-memory_bytes // 2**30) * profile.memory_slices + slices) // (2 * slices)
    return f"{profile.compute_slices}g.{gigabytes}gb{flavour}"


def _infos(handle: pynvml.c_nvmlDevice_t, facts: MigFacts) -> list[tuple[int, Info]]:
    """Number and data of each profile of the GPU."""
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
    """Profile ``number``, None when the GPU does not have it. Raises EOFError after the last.

    Version 2 has the name. Version 1 is the fallback: nvml.h requires MIG mode on for version 2.
    """
    for version, function in ((2, "nvmlDeviceGetGpuInstanceProfileInfoV"), (1, "nvmlDeviceGetGpuInstanceProfileInfo")):
        try:
            return pynvml.nvmlDeviceGetGpuInstanceProfileInfo(handle, number, version=version)
        except pynvml.NVMLError as error:
            if error.value == pynvml.NVML_ERROR_INVALID_ARGUMENT:
                if number >= KNOWN_PROFILES:
                    raise EOFError from error
                return None
            if error.value == pynvml.NVML_ERROR_FUNCTION_NOT_FOUND and version == 1:
                raise EOFError from error
            if error.value not in ABSENT:
                raise_translated(function, error)
    return None


def _name(info: Info) -> str | None:
    """The name without "MIG ", which only some releases write; None without a name."""
    name = getattr(info, "name", b"")
    text = name.decode("ascii", "replace") if isinstance(name, bytes) else name
    return text.removeprefix("MIG ").strip() or None


def _profile(handle: pynvml.c_nvmlDevice_t, info: Info, facts: MigFacts) -> MigProfile | None:
    # Not Supported is legal (nvml.h): such a profile has no placements and cannot be created.
    placements = _read(facts, "nvmlDeviceGetGpuInstancePossiblePlacements_v2", partial(_placements, handle, info.id))
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


def _memory(handle: pynvml.c_nvmlDevice_t) -> int:
    return pynvml.nvmlDeviceGetMemoryInfo(handle).total


def _slices(profiles: dict[int, MigProfile]) -> int:
    return max(start + profile.memory_slices for profile in profiles.values() for start in profile.starts)


def memory_of(megabytes: int) -> int | None:
    """Megabytes as bytes; None where NVML has no value."""
    return None if megabytes & NOT_AVAILABLE == NOT_AVAILABLE else megabytes * 2**20


def count_of(value: int) -> int | None:
    """The count; None where NVML has no value."""
    return None if value == NOT_AVAILABLE else value


def _resetless(handle: pynvml.c_nvmlDevice_t, architecture: int | None, facts: MigFacts) -> bool | None:
    """What NVML reports, else whether the GPU is Hopper or newer; None when both are missing."""
    values = _read(
        facts,
        "nvmlDeviceGetFieldValues",
        partial(pynvml.nvmlDeviceGetFieldValues, handle, [RESETLESS_FIELD]),
        ABSENT | {pynvml.NVML_ERROR_INVALID_ARGUMENT},
    )
    if values is not None and values[0].nvmlReturn == 0:
        return values[0].value.uiVal != 0
    if architecture is None or architecture == NOT_AVAILABLE:
        return None
    return architecture >= pynvml.NVML_DEVICE_ARCH_HOPPER


def _is_guest(handle: pynvml.c_nvmlDevice_t, facts: MigFacts) -> bool:
    """Whether the GPU is virtual (vGPU); only the host can change its partitions."""
    mode = _read(facts, "nvmlDeviceGetVirtualizationMode", partial(pynvml.nvmlDeviceGetVirtualizationMode, handle))
    return mode == pynvml.NVML_GPU_VIRTUALIZATION_MODE_VGPU


def _read(facts: MigFacts, function: str, call: Callable[[], T], absent: frozenset[int] = ABSENT) -> T | None:
    """As ``errors.optional``, but None also for a failure, which is noted in ``facts``."""
    try:
        return optional(function, call, absent)
    except DeviceLostError as error:
        _note(facts, error)
        return None


def _note(facts: MigFacts, error: DeviceLostError) -> None:
    if withdraws(error):
        raise error
    facts.complete = False
    facts.trouble = facts.trouble or str(error)
