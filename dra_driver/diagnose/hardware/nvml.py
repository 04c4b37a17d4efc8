"""Read NVML's raw answers: while MIG mode is off, about profiles, and about every property that the backend describes.

Checks 3, 4 and 5. Each topic of a reader is the NVML index of a GPU. The judges do no I/O."""

from collections.abc import Callable, Iterator, Sequence
from functools import wraps
from typing import Final

from dra_driver.core.finding import Finding, Status
from dra_driver.core.model.mig import MigProfile
from dra_driver.diagnose.hardware import values
from dra_driver.diagnose.hardware.child import Task
from dra_driver.diagnose.hardware.nvml_session import opened
from dra_driver.hardware.gpu.catalog import models
from dra_driver.hardware.gpu.nvml import probes
from dra_driver.hardware.gpu.nvml.errors import ABSENT, GONE
from dra_driver.hardware.gpu.nvml.mig import FLAVOURS, RESETLESS_FIELD, WITHOUT_MIG, computed_name
from dra_driver.hardware.gpu.nvml.probes import FABRIC, NEEDED, OPTIONAL


def read_described(task: Task) -> values.Topics:
    """`probes.device` and the backend's description of every GPU."""
    with opened(task.library) as backend:
        yield "system", probes.system()
        for index, handle in probes.handles().items():
            yield str(index), probes.device(handle) | {"fields": probes.fields(handle)}
        found = backend.snapshot()
        yield "snapshot", {"gpus": [str(gpu) for gpu in found.gpus], "leftOut": [str(one) for one in found.left_out]}


def _per_gpu(read: Callable[[probes.pynvml.c_nvmlDevice_t], object]) -> Callable[[Task], values.Topics]:
    """Make a reader of ``read``, which returns the facts of one GPU or None."""

    @wraps(read)
    def read_all(task: Task) -> values.Topics:
        with opened(task.library):
            for index, handle in probes.handles().items():
                facts = read(handle)
                if facts is not None:
                    yield str(index), facts

    return read_all


def _mode(handle: probes.pynvml.c_nvmlDevice_t) -> Sequence[int] | None:
    """``[current, pending]``; None for a GPU without MIG."""
    return probes.ask(lambda: probes.pynvml.nvmlDeviceGetMigMode(handle)).get("value")


@_per_gpu
def read_without_mode(handle: probes.pynvml.c_nvmlDevice_t) -> values.Facts | None:
    """`probes.without_mode` for the profiles of GPUs that support MIG and have it off."""
    mode = _mode(handle)
    if mode is None or mode[0]:
        return None
    ids = [row["id"] for row in probes.profiles(handle) if "id" in row]
    return probes.without_mode(handle, ids)


@_per_gpu
def read_profiles(handle: probes.pynvml.c_nvmlDevice_t) -> values.Facts | None:
    """`probes.profiles`, `probes.fields`, and the inputs of names, of GPUs that support MIG."""
    mode = _mode(handle)
    if mode is None:
        return None
    answers = probes.described(handle)
    return {
        "mode": mode,
        "rows": probes.profiles(handle),
        "fields": probes.fields(handle),
        "name": answers["nvmlDeviceGetName"],
        "architecture": answers["nvmlDeviceGetArchitecture"],
        "memory": answers["nvmlDeviceGetMemoryInfo"],
        "virtualization": answers["nvmlDeviceGetVirtualizationMode"],
    }


_UNSIGNED: Final = frozenset({1, 2, 3})
"""nvmlValueType_t: unsigned int, long, long long; only for these the low half is the number."""
_HOPPER: Final = 9
_WITHDRAWN: Final = frozenset({15, 16})  # lost, reset required: the GPU failed
_VGPU: Final = 2
_PER_PROFILE: Final = {"nvmlDeviceGetGpuInstances": GONE, "nvmlDeviceGetGpuInstanceRemainingCapacity": values.VANISHED}
_SINGLE: Final = {
    "nvmlDeviceGetGpuInstanceById": values.VANISHED,
    "nvmlDeviceGetSupportedEventTypes": ABSENT,
    "nvmlDeviceRegisterEvents": ABSENT,
}
"""Codes by function that mean "does not exist" for the backend while MIG mode is off."""


@values.hardware_check(3, "codes while MIG mode is off", read_without_mode, 30.0)
def without_mode(facts: values.Facts, _survey: values.Facts) -> Finding:
    """Functions for MIG return Not Supported, Not Found or no value."""
    found = dict(values.gpus(facts))
    if not found:
        return Finding(status=Status.SKIPPED, seen="no GPU with MIG whose MIG mode is off")
    differences = [f"GPU {index}: {text}" for index, answers in found.items() for text in _unexpected(answers)]
    first = next(iter(found.values()))
    seen = ", ".join(
        f"{name.removeprefix('nvmlDevice')} {_code(answer)}" for name, answer in _flat(first) if answer is not None
    )
    return values.judgement(
        differences,
        f"{len(found)} GPUs; of the first: {seen}",
        right="the backend reads such a GPU as one without instances",
        wrong="the backend would report errors, or miss instances, while MIG mode is off",
    )


def _unexpected(answers: values.Facts) -> Iterator[str]:
    for name, codes in _PER_PROFILE.items():
        for profile_id, answer in answers[name].items():
            if not values.known(answer, codes):
                yield f"{name}({profile_id}): {values.described(answer)}"
    for profile_id, answer in answers["nvmlDeviceGetGpuInstances"].items():
        if answer.get("value"):
            yield f"nvmlDeviceGetGpuInstances({profile_id}): {answer['value']} instances"
    for name, codes in _SINGLE.items():
        if not values.known(answers[name], codes):
            yield f"{name}: {values.described(answers[name])}"


def _flat(answers: values.Facts) -> Iterator[tuple[str, values.Facts | None]]:
    for name, answer in answers.items():
        yield name, answer if "ms" in answer else next(iter(answer.values()), None)


def _code(answer: values.Facts) -> str:
    return "ok" if "value" in answer else str(answer.get("code"))


@values.hardware_check(4, "MIG profiles and fields", read_profiles, 30.0)
def profiles(facts: values.Facts, _survey: values.Facts) -> Finding:
    """Profiles, names and placements match the catalog, by version 1 or 2."""
    # NVIDIA's mock answers for MIG on architectures without MIG.
    found = {
        index: gpu
        for index, gpu in values.gpus(facts)
        if _listed(gpu) or gpu["architecture"].get("value") not in WITHOUT_MIG
    }
    if not found:
        return Finding(status=Status.SKIPPED, seen="no GPU with MIG")
    differences = [f"GPU {index}: {text}" for index, gpu in found.items() for text in _profile_differences(gpu)]
    unknown = "" if any(_listed(gpu) for gpu in found.values()) else "no GPU lists a profile in its present mode"
    return values.judgement(
        differences,
        values.alike({index: _profiles_seen(gpu) for index, gpu in found.items()}),
        right="partitions are published as NVML lists them",
        wrong="partitions would be published with other names, sizes or places than NVML's",
        unknown=unknown,
    )


def _listed(gpu: values.Facts) -> list[values.Facts]:
    return [row for row in gpu["rows"] if "id" in row]


def _profiles_seen(gpu: values.Facts) -> str:
    rows = _listed(gpu)
    versions = [sum("value" in row[version] for row in rows) for version in ("v1", "v2")]
    fields = ", ".join(f"field {name} {_field(gpu, name)}" for name in ("184", "199", "200"))
    mode = "on" if gpu["mode"][0] else "off"
    return f"MIG mode {mode}, {versions[1]} profiles by version 2 and {versions[0]} by version 1, {fields}"


def _field(gpu: values.Facts, name: str) -> str:
    field = gpu["fields"].get(name, {})
    return f"= {field['value']} (type {field['type']})" if "value" in field else f"code {field.get('code')}"


def _profile_differences(gpu: values.Facts) -> Iterator[str]:
    allowed = ABSENT | {values.INVALID_ARGUMENT}
    for row in gpu["rows"]:
        for version in ("v1", "v2"):
            if not values.known(row[version], allowed):
                yield f"profile number {row['number']}, version {version[1]}: {values.described(row[version])}"
        if "id" in row and not values.known(row["placements"], ABSENT):
            yield f"placements of profile {row['id']}: {values.described(row['placements'])}"
    yield from _name_differences(gpu)
    yield from _field_differences(gpu)
    yield from _catalog_differences(gpu)


def _name_differences(gpu: values.Facts) -> Iterator[str]:
    """Names computed for a driver without names, compared with this driver's."""
    rows = [row for row in _listed(gpu) if row["placements"].get("value")]
    ends = [start + size for row in rows for start, size in _places(row)]
    for row in rows:
        info = row["v2"].get("value")
        if info is None or not info.get("name"):
            continue
        name = info["name"].removeprefix("MIG ").strip()
        computed = computed_name(_profile(row, info), FLAVOURS.get(row["number"], ""), max(ends), _memory(gpu))
        if computed != name:
            yield f"profile {row['id']} is {name}, and would be called {computed} if NVML had no names"


def _places(row: values.Facts) -> list[tuple[int, int]]:
    pairs = (text.split(":") for text in row["placements"].get("value") or ())
    return [(int(start), int(size)) for start, size in pairs]


def _profile(row: values.Facts, info: values.Facts) -> MigProfile:
    places = _places(row)
    return MigProfile(
        name="",
        profile_id=row["id"],
        compute_slices=info["sliceCount"],
        memory_slices=places[0][1],
        max_instances=info["instanceCount"],
        starts=tuple(sorted(start for start, _ in places)),
        memory_bytes=info["memorySizeMB"] * 2**20,
    )


def _memory(gpu: values.Facts) -> int | None:
    value = gpu["memory"].get("value")
    return value["total"] if value else None


def _field_differences(gpu: values.Facts) -> Iterator[str]:
    field = gpu["fields"].get(str(RESETLESS_FIELD), {})
    if "value" not in field:
        return
    if field["type"] not in _UNSIGNED:
        yield f"field {RESETLESS_FIELD} has value type {field['type']}, and is read as an unsigned number"
    architecture = gpu["architecture"].get("value")
    is_guest = gpu["virtualization"].get("value") == _VGPU
    if architecture is not None and not is_guest and bool(field["uint"]) != (architecture >= _HOPPER):
        yield (
            f"field {RESETLESS_FIELD} is {field['uint']} on architecture {architecture}: without the field, the driver"
            " treats GPUs from Hopper (9) on as resetless"
        )


def _catalog_differences(gpu: values.Facts) -> Iterator[str]:
    """Differences from the board in the catalog, the source of the simulation."""
    name = gpu["name"].get("value")
    model = next((each for each in models().values() if each.product_name == name), None)
    if model is None or model.mig is None:
        return
    ours = {profile.enum: profile for profile in model.mig.profiles}
    for row in _listed(gpu):
        info = row["v2"].get("value") or row["v1"].get("value")
        profile = ours.get(row["number"])
        if profile is None:
            continue
        if (info["id"], info["sliceCount"]) != (profile.profile_id, profile.compute_slices):
            yield f"profile number {row['number']} has id {info['id']} and {info['sliceCount']} slices, the catalog" + (
                f" has id {profile.profile_id} and {profile.compute_slices}"
            )
        places = sorted(_places(row))
        if places and places != [(start, profile.memory_slices) for start in sorted(profile.starts)]:
            yield f"profile {row['id']} has placements {row['placements']['value']}, the catalog {profile.starts}"


@values.hardware_check(5, "every property of a GPU", read_described, 45.0)
def every_call(facts: values.Facts, _survey: values.Facts) -> Finding:
    """A property is readable, or missing with one of four codes."""
    differences = []
    absent: dict[str, int] = {}
    for index, answers in values.gpus(facts):
        for name in (*NEEDED, *OPTIONAL):
            answer = answers[name]
            allowed = _allowed(name)
            if "value" not in answer and answer.get("code") in allowed:
                absent[name] = absent.get(name, 0) + 1
            if not values.known(answer, allowed) or (name in NEEDED and "value" not in answer):
                differences.append(f"GPU {index}: {name}: {values.described(answer)}")
        field = answers["fields"]
        if "error" in field and field.get("code") not in ABSENT | {values.INVALID_ARGUMENT}:
            differences.append(f"GPU {index}: nvmlDeviceGetFieldValues: {field['error']} ({field.get('code')})")
    differences += [f"left out: {text}" for text in facts.get("snapshot", {}).get("leftOut", ())]
    lost = [text for text in differences if any(f"({code})" in text for code in _WITHDRAWN)]
    missing = ", ".join(f"{name.removeprefix('nvmlDeviceGet')} on {count}" for name, count in absent.items())
    return values.judgement(
        differences,
        f"{len(dict(values.gpus(facts)))} GPUs; properties that they lack: {missing or 'none'}",
        right="a GPU is published with its properties",
        wrong="a GPU needs a reset or a check of the kernel log" if lost else "the GPU would be omitted, or log errors",
    )


def _allowed(name: str) -> frozenset[int]:
    """Codes that mean "does not exist"; the fabric's structure may be newer than the driver."""
    if name in NEEDED:
        return frozenset()
    return ABSENT | {values.INVALID_ARGUMENT} if name == FABRIC else ABSENT
