"""The byte layout of the state file, in step with ``fake.h``; see ``State.check``."""

import ctypes

from tests.fakes.nvml import state_mig
from tests.fakes.nvml.state_mig import each

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
        ("profiles", state_mig.Profiles),
        ("gis", state_mig.Gi * state_mig.MAX_GIS),
        ("mig_uuids", state_mig.Uuids),
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
