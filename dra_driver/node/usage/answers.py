"""Make the exporter's answers of one sample: the metrics, and ``/usage`` as JSON, which ``exporter_answer`` reads.

Names of metrics begin with ``dra_claim_`` (one container on one device of a claim), ``dra_gpu_`` and
``dra_gpu_instance_``; unknown values have no sample. ``dcgm`` has dcgm-exporter's names (etc/default-counters.csv
there) for equal values of whole GPUs; next to dcgm-exporter every sum over them would double.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from msgspec import Struct

from dra_driver.core.model.ids import GpuUuid
from dra_driver.core.model.terms import Form
from dra_driver.core.model.usage import GpuUsage
from dra_driver.core.telemetry.exporter_metrics import Family, Kind
from dra_driver.core.time import rfc3339
from dra_driver.node.usage.ledger import Row, RowKey, RowUse, UsageLedger, device_of
from dra_driver.node.usage.values import AssignedUse, GpuUse, JoinedUsage, Knows, total

Rows = Sequence[tuple[RowKey, Row]]
CLAIM_LABELS: Final = ("namespace", "claim", "pod", "container", "request", "device", "share")
DEVICE_LABELS: Final = ("namespace", "claim", "request", "device", "share")
GPU_LABELS: Final = ("device", "uuid", "model")
INFO_LABELS: Final = (*DEVICE_LABELS, "form", "profile", "uuid", "gpu_uuid", "gi_id")
INSTANCE_LABELS: Final = ("device", "profile", "uuid")
DCGM_LABELS: Final = ("gpu", "UUID", "device", "modelName", "hostname")
MIB: Final = 2**20


class Judged(Struct, frozen=True, kw_only=True):
    """Findings by UID of the claim and, for grants, device: seconds without use, bytes above the tolerated memory."""

    idle_s: Mapping[str, float]
    over_bytes: Mapping[tuple[str, str], int]


def families(joined: JoinedUsage, ledger: UsageLedger, judged: Judged, *, dcgm: bool = False) -> list[Family]:
    """All metrics of one sample, each with or without values. A claim created again replaces the ended one."""
    by_age = sorted(ledger.rows.items(), key=lambda each: (each[1].ended_s is None, each[1].ended_s or 0.0, each[0]))
    by_labels = {_labels(key): (key, row) for key, row in by_age}
    rows = [by_labels[labels] for labels in sorted(by_labels)]
    found = [*_claims(rows), *_devices(rows, judged), *_gpus(joined), *_instances(joined)]
    return [*found, *_dcgm(joined)] if dcgm else found


def _claims(rows: Rows) -> Iterator[Family]:
    def family(name: str, about: str, value: Callable[[Row], float | None]) -> Family:
        samples = ((_labels(key), value(row)) for key, row in rows)
        return _family(f"dra_claim_{name}", about, CLAIM_LABELS, samples)

    yield family("memory_used_bytes", "Memory of the claim's processes on the device", lambda row: row.use.used_bytes)
    yield family("memory_peak_bytes", "The most of it within the exporter's window", lambda row: row.peak_bytes)
    yield family(
        "sm_utilization_ratio",
        "Utilization of multiprocessors since the last sample, 0 to 1, of the whole GPU or of the partition",
        lambda row: _divided(row.use.sm_percent, 100),
    )
    yield family("processes", "Processes of the claim on the device", lambda row: row.use.processes)
    yield family(
        "last_used_timestamp_seconds",
        "Last use of the device by the claim, in seconds since 1970; absent before the first",
        lambda row: row.last_used.timestamp() if row.last_used is not None else None,
    )
    energy = (((*_labels(key), str(row.estimated).lower()), row.joules) for key, row in rows)
    about = "Energy of the device while the claim had it; estimated=true: of a GPU with several users, divided"
    yield _family("dra_claim_energy_joules_total", about, (*CLAIM_LABELS, "estimated"), energy, "counter")


def _devices(rows: Rows, judged: Judged) -> Iterator[Family]:
    """Metrics per device of a claim, whichever container has it."""
    devices = {
        (key.namespace, key.claim, key.request, key.device, key.share): (key, row)
        for key, row in reversed(rows)
        if row.ended_s is None
    }

    def family(name: str, about: str, value: Callable[[RowKey, Row], float | None]) -> Family:
        samples = ((labels, value(*found)) for labels, found in sorted(devices.items()))
        return _family(f"dra_claim_{name}", about, DEVICE_LABELS, samples)

    yield family(
        "memory_granted_bytes", "Memory granted to the claim's share", lambda _, row: row.assigned.memory_bytes
    )
    infos = [((*labels, *_info(row)), 1.0) for labels, (_, row) in sorted(devices.items())]
    about = "1; UUIDs and GPU instance of a claim's device, which dcgm-exporter's metrics of MIG instances join by"
    yield _family("dra_claim_device_info", about, INFO_LABELS, infos)
    yield family(
        "over_grant_bytes",
        "Memory beyond the grant and the overhead of each process; 0 for a share within its grant",
        lambda key, row: judged.over_bytes.get((key.uid, key.device)) if row.assigned.share_id else None,
    )
    yield family(
        "idle_seconds",
        "Time since the claim last used any of its devices; absent while unknown",
        lambda key, _: judged.idle_s.get(key.uid),
    )


def _gpus(joined: JoinedUsage) -> Iterator[Family]:
    def family(name: str, about: str, value: Callable[[GpuUse], float | None], kind: Kind = "gauge") -> Family:
        samples = (((gpu.device, gpu.gpu_uuid, gpu.model), value(gpu)) for gpu in joined.gpus)
        return _family(f"dra_gpu_{name}", about, GPU_LABELS, samples, kind)

    yield family("memory_total_bytes", "Memory of the GPU", lambda gpu: _of(gpu, "memory_total"))
    yield family("memory_reserved_bytes", "Memory that the driver keeps for itself", lambda gpu: gpu.reserved_bytes)
    yield family("memory_used_bytes", "Memory in use: claims + unattributed + reserved", lambda gpu: gpu.used_bytes)
    yield family("memory_claims_bytes", "Memory in use by claims", lambda gpu: gpu.claims_bytes)
    yield family(
        "memory_unattributed_bytes", "Memory in use by no claim of this driver", lambda gpu: gpu.unattributed_bytes
    )
    yield family(
        "unattributed_processes",
        "Processes on the GPU that belong to no claim of this driver",
        lambda gpu: None if gpu.unattributed is None else len(gpu.unattributed),
    )
    yield family(
        "utilization_ratio",
        "Utilization of the GPU, 0 to 1; absent in MIG mode",
        lambda gpu: _divided(_of(gpu, "gpu_percent"), 100),
    )
    yield family("power_watts", "Power, averaged over a second", lambda gpu: _divided(_of(gpu, "power_mw"), 1000))
    yield family(
        "energy_joules_total", "Energy since the NVIDIA driver was loaded",
        lambda gpu: _divided(_of(gpu, "energy_mj"), 1000), "counter",
    )  # fmt: skip


def _instances(joined: JoinedUsage) -> Iterator[Family]:
    profiles = {use.assigned.uuid: use.assigned.profile or "" for use in joined.devices}
    found = [
        ((gpu.device, profiles.get(each.uuid, ""), each.uuid or ""), each)
        for gpu in joined.gpus
        for each in (gpu.reading.instances if gpu.reading is not None else ())
    ]
    for name, value in (("total", "memory_total"), ("used", "memory_used")):
        yield _family(
            f"dra_gpu_instance_memory_{name}_bytes",
            f"Memory of a MIG partition: {name}",
            INSTANCE_LABELS,
            ((labels, getattr(each, value)) for labels, each in found),
        )


def _dcgm(joined: JoinedUsage) -> Iterator[Family]:
    labels = {}
    for gpu in joined.gpus:
        number = gpu.device.removeprefix("gpu-")
        labels[gpu.gpu_uuid] = (number, gpu.gpu_uuid, f"nvidia{number}" if number else "", gpu.model, joined.node)

    def family(name: str, about: str, value: Callable[[GpuUse], float | None], kind: Kind = "gauge") -> Family:
        samples = ((labels[gpu.gpu_uuid], value(gpu)) for gpu in joined.gpus)
        return _family(f"DCGM_FI_DEV_{name}", about, DCGM_LABELS, samples, kind)

    yield family("FB_USED", "Framebuffer memory used (in MiB)", lambda gpu: _mib(_of(gpu, "memory_used")))
    yield family("FB_RESERVED", "Framebuffer memory reserved (in MiB)", lambda gpu: _mib(gpu.reserved_bytes))
    yield family("FB_FREE", "Framebuffer memory free (in MiB)", lambda gpu: _mib(_free(gpu)))
    yield family("GPU_UTIL", "GPU utilization (in %)", lambda gpu: _of(gpu, "gpu_percent"))
    yield family("MEM_COPY_UTIL", "Memory utilization (in %)", lambda gpu: _of(gpu, "memory_percent"))
    yield family("POWER_USAGE", "Power draw (in W)", lambda gpu: _divided(_of(gpu, "power_mw"), 1000))
    yield family(
        "TOTAL_ENERGY_CONSUMPTION",
        "Total energy consumption since boot (in mJ)",
        lambda gpu: _of(gpu, "energy_mj"),
        "counter",
    )
    yield family("GPU_TEMP", "GPU temperature (in C)", lambda gpu: _of(gpu, "temperature_c"))
    yield family("SM_CLOCK", "SM clock frequency (in MHz)", lambda gpu: _of(gpu, "sm_clock_mhz"))
    yield family("MEM_CLOCK", "Memory clock frequency (in MHz)", lambda gpu: _of(gpu, "memory_clock_mhz"))


def _family(
    name: str,
    about: str,
    labels: tuple[str, ...],
    samples: Iterable[tuple[tuple[str, ...], float | None]],
    kind: Kind = "gauge",
) -> Family:
    known = tuple((found, float(value)) for found, value in samples if value is not None)
    return Family(name=name, about=about, kind=kind, labels=labels, samples=known)


def _labels(key: RowKey) -> tuple[str, ...]:
    return key.namespace, key.claim, key.pod, key.container, key.request, key.device, key.share


def _info(row: Row) -> tuple[str, ...]:
    device = row.assigned
    instance = "" if device.gi_id is None else str(device.gi_id)
    return device.form.value, device.profile or "", device.uuid or "", device.gpu_uuid, instance


def _of(gpu: GpuUse, name: str) -> float | None:
    value: float | None = getattr(gpu.reading, name) if gpu.reading is not None else None
    return value


def _free(gpu: GpuUse) -> float | None:
    total, used = _of(gpu, "memory_total"), _of(gpu, "memory_used")
    return None if total is None or used is None else max(0.0, total - used - (gpu.reserved_bytes or 0))


def _divided(value: float | None, by: float) -> float | None:
    return None if value is None else value / by


def _mib(value: float | None) -> float | None:
    return None if value is None else float(int(value) // MIB)


VERSION: Final = 1
Json = dict[str, Any]
Readings = Mapping[GpuUuid, GpuUsage]


def document(joined: JoinedUsage, ledger: UsageLedger, *, window_s: float) -> Json:
    """``window_s`` is the observed part of the window. Ended claims are omitted."""
    claims: dict[str, list[tuple[RowKey, Row]]] = {}
    for key, row in sorted(ledger.rows.items()):
        if row.ended_s is None:
            claims.setdefault(key.uid, []).append((key, row))
    readings = {gpu.gpu_uuid: gpu.reading for gpu in joined.gpus if gpu.reading is not None}
    return {
        "version": VERSION,
        "node": joined.node,
        "time": rfc3339(joined.at),
        "windowSeconds": int(window_s),
        "knows": {name: getattr(joined.knows, name) or True for name in Knows.__struct_fields__},  # True, or why not
        "gpus": [_gpu(gpu) for gpu in joined.gpus],
        "claims": [_claim(rows, ledger, readings) for rows in claims.values()],
    }


def _gpu(gpu: GpuUse) -> Json:
    reading = gpu.reading
    return {
        "device": gpu.device,
        "uuid": gpu.gpu_uuid,
        "model": gpu.model,
        "changing": gpu.changing,
        "unreadable": reading.unreadable if reading is not None else None,
        "memoryTotalBytes": reading.memory_total if reading is not None else None,
        "memoryUsedBytes": gpu.used_bytes,
        "memoryReservedBytes": gpu.reserved_bytes,
        "memoryClaimsBytes": gpu.claims_bytes,
        "memoryUnattributedBytes": gpu.unattributed_bytes,
        "unattributedProcesses": None if gpu.unattributed is None else len(gpu.unattributed),
        "percent": reading.gpu_percent if reading is not None else None,
        "powerWatts": reading.power_mw / 1000 if reading is not None and reading.power_mw is not None else None,
        "instances": [
            {"uuid": each.uuid, "memoryTotalBytes": each.memory_total, "memoryUsedBytes": each.memory_used,
             "percent": each.sm_percent}
            for each in (reading.instances if reading is not None else ())
        ],
    }  # fmt: skip


def _claim(rows: Rows, ledger: UsageLedger, readings: Readings) -> Json:
    key = rows[0][0]
    devices: dict[tuple[str, str, str], list[tuple[RowKey, Row]]] = {}
    for each, row in rows:
        devices.setdefault((each.request, each.device, each.share), []).append((each, row))
    return {
        "uid": key.uid,
        "namespace": key.namespace,
        "name": key.claim,
        "pods": list(dict.fromkeys(each.pod for each, _ in rows if each.pod)),
        "devices": [_device(found, ledger, readings) for found in devices.values()],
    }


def _device(rows: Rows, ledger: UsageLedger, readings: Readings) -> Json:
    key, assigned, each_of = rows[0][0], rows[0][1].assigned, [row for _, row in rows]
    unused_s, percent = ledger.unused_s.get(device_of(key)), _sum(rows, lambda use: use.sm_percent)
    used = [row.last_used for row in each_of if row.last_used is not None]
    joules = [sum(row.window_joules.values()) for row in each_of if row.joules is not None]
    return {
        "request": key.request,
        "device": key.device,
        "uuid": assigned.uuid,
        "form": assigned.form.value,
        "profile": assigned.profile,
        "share": key.share,
        "usedBytes": _sum(rows, lambda use: use.used_bytes),
        "grantBytes": _granted(assigned, readings),
        "peakBytes": _peak(rows),
        "percent": None if percent is None else min(100, percent),
        "energyJoules": round(sum(joules), 3) if joules else None,
        "estimated": any(row.estimated for row in each_of),
        "processes": _sum(rows, lambda use: use.processes),
        "lastUsed": rfc3339(max(used)) if used else None,
        "idleSeconds": None if unused_s is None else int(unused_s),
    }


def _granted(assigned: AssignedUse, readings: Readings) -> int | None:
    """The grant of a share; all of a whole GPU or a partition, except with admin access, which others may have too."""
    reading = readings.get(assigned.gpu_uuid)
    if assigned.form is Form.SHARE or assigned.admin_access or reading is None:
        return assigned.memory_bytes
    if assigned.form is Form.WHOLE:
        return reading.memory_total
    return next((each.memory_total for each in reading.instances if each.gi_id == assigned.gi_id), None)


def _peak(rows: Rows) -> int | None:
    """The maximum of all containers, or of the device, within one piece of the window."""
    whole: dict[int, int] = {}
    parts: dict[int, int] = {}
    for key, row in rows:
        pieces = parts if key.pod else whole
        for piece, most in row.peaks.items():
            pieces[piece] = pieces.get(piece, 0) + most
    return max((*whole.values(), *parts.values()), default=None)


def _sum(rows: Rows, value: Callable[[RowUse], int | None]) -> int | None:
    """The device's value if there is one, else the sum over its containers; None if one is unknown."""
    own = next((found for key, row in rows if not key.pod and (found := value(row.use)) is not None), None)
    parts = [value(row.use) for key, row in rows if key.pod]
    return own if own is not None or not parts else total(parts)
