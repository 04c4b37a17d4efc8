"""The byte layout of the state file, in step with ``fake.h`` (``State.check``), and the wire form of MIG.

Numbers of nvml.h that a simulated GPU does not have come from the catalogue.
"""

import ctypes
import functools
import uuid
from typing import Any

from dra_driver.core.model import gpu as model
from dra_driver.core.model.mig import MigInstance, MigProfile
from dra_driver.hardware.gpu import catalog
from dra_driver.hardware.gpu.simulated.mig import mig_uuid

MAX_PROFILES, MAX_STARTS, MAX_COMPUTE_PROFILES, MAX_GIS, MAX_CIS, MAX_GI_IDS = 16, 12, 8, 12, 8, 32
MAX_SUBSCRIBERS = 4
NOT_AVAILABLE = 0xFFFFFFFF
UUID_BYTES = 48
# nvml.h, NVML_COMPUTE_INSTANCE_PROFILE_*, by compute slices; 7 is one slice of a double-memory instance, 8 is listed
# beside 4 by newer drivers and refused by boards.
COMPUTE_NUMBERS = {1: 0, 2: 1, 3: 2, 4: 3, 7: 4}
DOUBLE, WHOLE_NVL = 7, 8


def each(kind: Any, names: str) -> list[tuple[str, Any]]:
    """Fields of one type, in this order."""
    return [(name, kind) for name in names.split()]


class ComputeProfile(ctypes.Structure):
    _fields_ = (("number", ctypes.c_uint32), ("slices", ctypes.c_uint32), ("multiprocessors", ctypes.c_uint32))


class Profile(ctypes.Structure):
    _fields_ = (
        ("name", ctypes.c_char * 32),
        ("memory_mb", ctypes.c_uint64),
        *each(ctypes.c_uint32, "number id compute_slices memory_slices max_instances multiprocessors"),
        ("engines", ctypes.c_uint32 * 5),
        ("start_count", ctypes.c_uint32),
        ("starts", ctypes.c_uint32 * MAX_STARTS),
        ("compute_count", ctypes.c_uint32),
        ("compute", ComputeProfile * MAX_COMPUTE_PROFILES),
    )


class Ci(ctypes.Structure):
    _fields_ = (*each(ctypes.c_uint32, "used serial id profile start in_use"),)


class Gi(ctypes.Structure):
    _fields_ = (
        *each(ctypes.c_uint32, "used serial id profile start in_use"),
        ("subscribers", ctypes.c_uint32 * MAX_SUBSCRIBERS),
        ("cis", Ci * MAX_CIS),
    )


Uuids = (ctypes.c_char * UUID_BYTES) * MAX_GI_IDS
Profiles = Profile * MAX_PROFILES


MAX_GPUS, MAX_FAULTS, MAX_COUNTERS, MAX_EVENTS, MAX_LINKS = 64, 32, 128, 4096, 18
MAGIC, VERSION = 0x4C4D564E, 5


class _LinkEnd(ctypes.Structure):
    _fields_ = (("value", ctypes.c_char * 32),)


LinkEnds = _LinkEnd * MAX_LINKS


class Gpu(ctypes.Structure):
    _fields_ = (
        ("uuid", ctypes.c_char * 96),
        ("name", ctypes.c_char * 96),
        ("bus_id", ctypes.c_char * 32),
        ("memory_bytes", ctypes.c_int64),
        ("reserved_bytes", ctypes.c_int64),
        *each(
            ctypes.c_int32,
            "minor brand architecture capability_major capability_minor addressing_mode mig_current mig_pending",
        ),
        *each(ctypes.c_uint32, "pci_device_id lost identity forgets unbound"),
        *each(ctypes.c_int32, "resetless virtualization compute_mode"),
        *each(ctypes.c_uint32, "mode_status clients profiles_need_mode first_refusals"),
        ("fabric_state", ctypes.c_int32),
        ("fabric_status", ctypes.c_int32),
        *each(ctypes.c_uint32, "fabric_probing fabric_reprobe event_types flood"),
        *each(ctypes.c_int32, "rows_pending rows_failed pages_pending recovery_action"),
        *each(ctypes.c_uint32, "links links_down fabric_health"),
        ("link_types", ctypes.c_int32 * MAX_LINKS),
        ("link_ends", LinkEnds),
        ("fabric_cluster", ctypes.c_uint8 * 16),
        *each(ctypes.c_uint32, "fabric_clique binding serial profile_count"),
        ("profiles", Profiles),
        ("gis", Gi * MAX_GIS),
        ("mig_uuids", Uuids),
    )


class Fault(ctypes.Structure):
    _fields_ = (
        ("function", ctypes.c_char * 64),
        ("device", ctypes.c_int32),
        ("code", ctypes.c_int32),
        *each(ctypes.c_uint32, "latency_ms left skip"),
    )


class Counter(ctypes.Structure):
    _fields_ = (("function", ctypes.c_char * 64), ("calls", ctypes.c_uint32))


class Event(ctypes.Structure):
    _fields_ = (
        ("type", ctypes.c_uint64),
        ("data", ctypes.c_uint64),
        *each(ctypes.c_uint32, "identity binding gi ci"),
    )


class Layout(ctypes.Structure):
    """The whole file."""

    _fields_ = (
        *each(ctypes.c_uint32, "magic version gpu_count cuda_version"),
        ("conf_compute", ctypes.c_int32),
        ("conf_devtools", ctypes.c_int32),
        ("driver_version", ctypes.c_char * 80),
        ("gpus", Gpu * MAX_GPUS),
        ("faults", Fault * MAX_FAULTS),
        ("counters", Counter * MAX_COUNTERS),
        ("event_count", ctypes.c_uint32),
        ("events", Event * MAX_EVENTS),
        *each(ctypes.c_uint32, "identities releases changes"),
    )


@functools.cache
def wire_profiles(profiles: tuple[MigProfile, ...]) -> tuple[Profile, ...]:
    """What NVML has to say about ``profiles``, which are some board's of the catalogue."""
    table = _table(profiles)
    by_id = {profile.profile_id: profile for profile in table.profiles}
    return tuple(_profile(profile, by_id[profile.profile_id], profiles) for profile in profiles)


def uuids(gpu: model.Gpu) -> list[bytes]:
    """The UUID of compute instance 0 in each GPU instance, by the rule of the simulation or as an instance says."""
    known = {one.gi_id: one.compute[0].uuid for one in gpu.mig_instances if one.compute}
    return [
        (
            known.get(gi_id) or (mig_uuid(gpu.uuid, gi_id, 0) if _is_uuid(gpu.uuid) else f"MIG-{gpu.uuid}/{gi_id}/0")
        ).encode()
        for gi_id in range(MAX_GI_IDS)
    ]


def wire_instance(gi: Gi, profile_index: int, profile: Profile, instance: MigInstance, serial: int) -> int:
    """Fill a slot with ``instance``; returns the next serial."""
    gi.used, gi.serial, gi.id = 1, serial, instance.gi_id
    gi.profile, gi.start, gi.in_use = profile_index, instance.start, 0
    gi.subscribers = (ctypes.c_uint32 * MAX_SUBSCRIBERS)()
    gi.cis = (Ci * MAX_CIS)()
    for slot, compute in enumerate(instance.compute):
        serial += 1
        index = spanning_index(profile) if compute.spans else partial_index(profile)
        gi.cis[slot] = Ci(used=1, serial=serial, id=compute.ci_id, profile=index, start=slot)
    return serial + 1


def spanning_index(profile: Profile) -> int:
    """Which of a GPU instance's compute profiles takes all of it: the one with most multiprocessors, never NVL."""
    rows = list(enumerate(profile.compute[: profile.compute_count]))
    full = [(row.multiprocessors, -row.number, index) for index, row in rows if row.slices == profile.compute_slices]
    return max(full)[2]


def partial_index(profile: Profile) -> int:
    """One that leaves something free. Raises ValueError where there is none: one slice cannot be cut."""
    whole = spanning_index(profile)
    for index, row in enumerate(profile.compute[: profile.compute_count]):
        if row.multiprocessors < profile.compute[whole].multiprocessors:
            return index
    raise ValueError(f"{profile.name.decode()} cannot be cut smaller")


@functools.cache
def _table(profiles: tuple[MigProfile, ...]) -> catalog.MigTable:
    names = {(profile.profile_id, profile.name, profile.multiprocessors) for profile in profiles}
    tables = (model.mig for model in catalog.models().values() if model.mig is not None)
    return next(
        table
        for table in tables
        if names <= {(one.profile_id, one.name, one.multiprocessors) for one in table.profiles}
    )


def _profile(profile: MigProfile, row: catalog.CatalogProfile, board: tuple[MigProfile, ...]) -> Profile:
    compute = _compute(profile, row, board)
    engines = (profile.copy_engines, profile.decoders, profile.encoders, profile.jpeg_engines, profile.ofa_engines)
    return Profile(
        name=profile.name.encode(),
        memory_mb=2**64 - 1 if profile.memory_bytes is None else profile.memory_bytes // 2**20,
        number=row.enum,
        id=profile.profile_id,
        compute_slices=profile.compute_slices,
        memory_slices=profile.memory_slices,
        max_instances=profile.max_instances,
        multiprocessors=_known(profile.multiprocessors),
        engines=(ctypes.c_uint32 * 5)(*map(_known, engines)),
        start_count=len(profile.starts),
        starts=(ctypes.c_uint32 * MAX_STARTS)(*profile.starts),
        compute_count=len(compute),
        compute=(ComputeProfile * MAX_COMPUTE_PROFILES)(*compute),
    )


def _compute(profile: MigProfile, row: catalog.CatalogProfile, board: tuple[MigProfile, ...]) -> list[ComputeProfile]:
    """The compute instances that fit in: of fewer slices, of all, and (for double memory) with all multiprocessors.

    Where a board's numbers are not known, sixteen multiprocessors a slice stand in: only their order matters.
    """
    all_of_it = profile.multiprocessors or 16 * profile.compute_slices + (
        10 if row.compute_instance_enum == DOUBLE else 0
    )
    found = []
    for slices, number in COMPUTE_NUMBERS.items():
        if slices > profile.compute_slices:
            continue
        plain = [one.multiprocessors for one in board if one.compute_slices == slices and one.multiprocessors]
        count = all_of_it if slices == profile.compute_slices else min(min(plain, default=16 * slices), all_of_it)
        if number == 0 and row.compute_instance_enum == DOUBLE:
            count = min(plain, default=16)
        found.append(ComputeProfile(number, slices, count))
    if row.compute_instance_enum == DOUBLE:
        found.append(ComputeProfile(DOUBLE, 1, all_of_it))
    if profile.compute_slices == 7:
        found.append(ComputeProfile(WHOLE_NVL, 7, all_of_it))
    return found


def _known(value: int | None) -> int:
    return NOT_AVAILABLE if value is None else value


def _is_uuid(gpu: str) -> bool:
    try:
        uuid.UUID(gpu.removeprefix("GPU-"))
    except ValueError:
        return False
    return True
