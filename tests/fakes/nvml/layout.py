"""The byte layout of the state file, in step with ``fake.h``; see ``State.check``."""

import ctypes

from tests.fakes.nvml import state_mig

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
        ("minor", ctypes.c_int32),
        ("brand", ctypes.c_int32),
        ("architecture", ctypes.c_int32),
        ("capability_major", ctypes.c_int32),
        ("capability_minor", ctypes.c_int32),
        ("addressing_mode", ctypes.c_int32),
        ("mig_current", ctypes.c_int32),
        ("mig_pending", ctypes.c_int32),
        ("pci_device_id", ctypes.c_uint32),
        ("lost", ctypes.c_uint32),
        ("identity", ctypes.c_uint32),
        ("forgets", ctypes.c_uint32),
        ("unbound", ctypes.c_uint32),
        ("resetless", ctypes.c_int32),
        ("virtualization", ctypes.c_int32),
        ("compute_mode", ctypes.c_int32),
        ("mode_status", ctypes.c_uint32),
        ("clients", ctypes.c_uint32),
        ("profiles_need_mode", ctypes.c_uint32),
        ("first_refusals", ctypes.c_uint32),
        ("fabric_state", ctypes.c_int32),
        ("fabric_status", ctypes.c_int32),
        ("fabric_probing", ctypes.c_uint32),
        ("fabric_reprobe", ctypes.c_uint32),
        ("event_types", ctypes.c_uint32),
        ("flood", ctypes.c_uint32),
        ("rows_pending", ctypes.c_int32),
        ("rows_failed", ctypes.c_int32),
        ("pages_pending", ctypes.c_int32),
        ("recovery_action", ctypes.c_int32),
        ("links", ctypes.c_uint32),
        ("links_down", ctypes.c_uint32),
        ("fabric_health", ctypes.c_uint32),
        ("link_types", ctypes.c_int32 * MAX_LINKS),
        ("link_ends", LinkEnds),
        ("fabric_cluster", ctypes.c_uint8 * 16),
        ("fabric_clique", ctypes.c_uint32),
        ("binding", ctypes.c_uint32),
        ("serial", ctypes.c_uint32),
        ("profile_count", ctypes.c_uint32),
        ("profiles", state_mig.Profiles),
        ("gis", state_mig.Gi * state_mig.MAX_GIS),
        ("mig_uuids", state_mig.Uuids),
    )


class Fault(ctypes.Structure):
    _fields_ = (
        ("function", ctypes.c_char * 64),
        ("device", ctypes.c_int32),
        ("code", ctypes.c_int32),
        ("latency_ms", ctypes.c_uint32),
        ("left", ctypes.c_uint32),
        ("skip", ctypes.c_uint32),
    )


class Counter(ctypes.Structure):
    _fields_ = (("function", ctypes.c_char * 64), ("calls", ctypes.c_uint32))


class Event(ctypes.Structure):
    _fields_ = (
        ("type", ctypes.c_uint64),
        ("data", ctypes.c_uint64),
        ("identity", ctypes.c_uint32),
        ("binding", ctypes.c_uint32),
        ("gi", ctypes.c_uint32),
        ("ci", ctypes.c_uint32),
    )


class Layout(ctypes.Structure):
    """The whole file."""

    _fields_ = (
        ("magic", ctypes.c_uint32),
        ("version", ctypes.c_uint32),
        ("gpu_count", ctypes.c_uint32),
        ("cuda_version", ctypes.c_uint32),
        ("conf_compute", ctypes.c_int32),
        ("conf_devtools", ctypes.c_int32),
        ("driver_version", ctypes.c_char * 80),
        ("gpus", Gpu * MAX_GPUS),
        ("faults", Fault * MAX_FAULTS),
        ("counters", Counter * MAX_COUNTERS),
        ("event_count", ctypes.c_uint32),
        ("events", Event * MAX_EVENTS),
        ("identities", ctypes.c_uint32),
        ("releases", ctypes.c_uint32),
        ("changes", ctypes.c_uint32),
    )
