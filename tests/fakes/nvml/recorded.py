"""GPUs as a report of ``dra-driver hardware-check`` recorded them, for the C library: a fixture from a real machine.

`snapshot` has the GPUs with their properties and MIG profiles; `faults` are the codes of single calls that the library
would not give by itself. Recorded MIG instances are not played: a report has their number only.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from msgspec.structs import replace

from dra_driver.core.model.fabric import Fabric, FabricState
from dra_driver.core.model.gpu import Gpu, NvLinks, Snapshot
from dra_driver.core.model.ids import GpuUuid
from dra_driver.core.model.mig import MigProfile
from dra_driver.diagnose.hardware.values import HardwareReport
from dra_driver.hardware.gpu.nvml.mig import FLAVOURS, computed_name, count_of, memory_of
from dra_driver.hardware.gpu.nvml.probes import FABRIC, MEMORY_V2, OPTIONAL, link_end
from dra_driver.hardware.gpu.nvml.properties import ADDRESSING_MODES, ARCHITECTURES, BRANDS, MAX_LINKS
from tests.fakes.nvml.state import FUNCTION_NOT_FOUND, LINK_TO_SWITCH, State

PROPERTIES, PROFILES = 5, 4
"""Numbers of the checks whose facts are played."""
V2 = "nvmlDeviceGetGpuInstanceProfileInfoV"
SYMBOLS = {"nvmlDeviceGetPciInfo": "nvmlDeviceGetPciInfo_v3"}
"""Exported names where pynvml's differ."""


def snapshot(report: HardwareReport) -> Snapshot:
    """The GPUs in order of NVML index. Raises KeyError for a report without checks 4 and 5."""
    answers, profiles = _facts(report, PROPERTIES), _facts(report, PROFILES)
    cuda = answers["system"]["nvmlSystemGetCudaDriverVersion_v2"].get("value")
    return Snapshot(
        driver_version=answers["system"]["nvmlSystemGetDriverVersion"].get("value"),
        nvml_version=answers["system"].get("nvmlSystemGetNVMLVersion", {}).get("value"),
        cuda_driver_version=None if cuda is None else (cuda // 1000, cuda % 1000 // 10),
        gpus=tuple(_gpu(answers[index], profiles.get(index)) for index in _indexes(answers)),
    )


def faults(report: HardwareReport) -> Iterator[tuple[str, int, int]]:
    """Function, NVML index and code of each optional call that gave no value."""
    answers, profiles = _facts(report, PROPERTIES), _facts(report, PROFILES)
    for index in _indexes(answers):
        for name in OPTIONAL:
            code = answers[index][name].get("code")
            if name != MEMORY_V2 and code not in (None, FUNCTION_NOT_FOUND):
                yield SYMBOLS.get(name, name), int(index), code
        codes = {row["v2"].get("code") for row in profiles.get(index, {}).get("rows", ()) if "id" in row}
        if codes and None not in codes:
            yield V2, int(index), codes.pop()


def play(report: HardwareReport, state: State) -> None:
    """Make the library answer as the report's machine did."""
    found = snapshot(report)
    state.set_node(found)
    for index, gpu in enumerate(found.gpus):
        if gpu.mig_capable:
            state.configure(index, mig_current=int(gpu.mig_enabled), mig_pending=int(gpu.mig_enabled))
    for function, index, code in faults(report):
        state.inject(function, code, device=index)


def _facts(report: HardwareReport, number: int) -> Mapping[str, Any]:
    return next(record.reading.facts for record in report.records if record.number == number)


def _indexes(facts: Mapping[str, Any]) -> list[str]:
    return sorted((topic for topic in facts if topic.isdecimal()), key=int)


def _gpu(answers: Mapping[str, Any], profiles: Mapping[str, Any] | None) -> Gpu:
    def value(name: str) -> Any:
        return answers[name].get("value")

    domain, _, rest = value("nvmlDeviceGetPciInfo")["busId"].lower().partition(":")
    capability, memory, mode = (
        value(f"nvmlDeviceGet{name}") for name in ("CudaComputeCapability", "MemoryInfo", "MigMode")
    )
    resetless = (profiles or {}).get("fields", {}).get("184", {}).get("uint")
    return Gpu(
        uuid=GpuUuid(value("nvmlDeviceGetUUID")),
        minor=value("nvmlDeviceGetMinorNumber"),
        product_name=value("nvmlDeviceGetName"),
        brand=BRANDS.get(value("nvmlDeviceGetBrand")),
        architecture=ARCHITECTURES.get(value("nvmlDeviceGetArchitecture")),
        cuda_compute_capability=tuple(capability) if capability else None,
        memory_bytes=memory["total"] if memory else None,
        reserved_bytes=(value(MEMORY_V2) or {}).get("reserved"),
        pci_bus_id=f"{int(domain, 16):04x}:{rest}",
        addressing_mode=ADDRESSING_MODES.get(value("nvmlDeviceGetAddressingMode")),
        fabric=_fabric(value(FABRIC)),
        nvlinks=NvLinks(switch_links=_switch_links(answers)),
        mig_capable=mode is not None,
        mig_enabled=bool(mode and mode[0]),
        mig_resetless=None if resetless is None else bool(resetless),
        mig_profiles=tuple(_profiles(profiles)) if profiles else (),
    )


def _switch_links(answers: Mapping[str, Any]) -> int:
    """Links between GPUs are not played: a report does not say which GPU is at the other end."""
    return sum(answers.get(link_end(link), {}).get("value") == LINK_TO_SWITCH for link in range(MAX_LINKS))


def _fabric(info: Mapping[str, Any] | None) -> Fabric | None:
    states = dict(enumerate((FabricState.NOT_STARTED, FabricState.IN_PROGRESS, FabricState.COMPLETED), 1))
    state = states.get(info["state"] & 0xFF) if info else None
    return Fabric(state=state, status=info["status"]) if info and state else None


def _profiles(gpu: Mapping[str, Any]) -> Iterator[MigProfile]:
    rows = [row for row in gpu["rows"] if row.get("placements", {}).get("value")]
    slices = max((sum(map(int, place.split(":"))) for row in rows for place in row["placements"]["value"]), default=0)
    memory = gpu["memory"].get("value", {}).get("total")
    for row in sorted(rows, key=lambda row: int(row["id"])):
        info = row["v2"].get("value") or row["v1"]["value"]
        places = [tuple(map(int, place.split(":"))) for place in row["placements"]["value"]]
        profile = MigProfile(
            name=info.get("name", "").removeprefix("MIG ").strip(),
            profile_id=info["id"],
            compute_slices=info["sliceCount"],
            memory_slices=places[0][1],
            max_instances=info["instanceCount"],
            starts=tuple(sorted(start for start, _ in places)),
            memory_bytes=memory_of(info["memorySizeMB"]),
            multiprocessors=count_of(info["multiprocessorCount"]),
            copy_engines=count_of(info["copyEngineCount"]),
            decoders=count_of(info["decoderCount"]),
            encoders=count_of(info["encoderCount"]),
            jpeg_engines=count_of(info["jpegCount"]),
            ofa_engines=count_of(info["ofaCount"]),
        )
        yield profile if profile.name else _named(profile, row["number"], slices, memory)


def _named(profile: MigProfile, number: int, slices: int, memory: int | None) -> MigProfile:
    """Version 1 has no names; the library writes them, and its version 2 is then made to fail."""
    return replace(profile, name=computed_name(profile, FLAVOURS.get(number, ""), slices, memory))
