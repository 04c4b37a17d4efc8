"""Each check's finding about facts that are right, and about each fact that is wrong in one place."""

import copy
import functools
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dra_driver.core.finding import Finding
from dra_driver.diagnose.hardware import values
from dra_driver.diagnose.hardware.session import CHECKS
from dra_driver.diagnose.hardware.values import VERDICTS, Reading
from dra_driver.hardware.gpu import nvml
from dra_driver.hardware.gpu.nvml import probes
from tests.unit.diagnose.hardware import facts

BY_NUMBER = {check.number: check for check in CHECKS}


def judged(number: int, found: dict[str, Any], survey: dict[str, Any] | None = None) -> Finding:
    return values.judged(BY_NUMBER[number], Reading(facts=found), survey or facts.survey()).finding


def changed(number: int, path: str, value: Any) -> dict[str, Any]:
    """The right facts with one value replaced; ``path`` has the keys, separated by ``>``."""
    found = copy.deepcopy(facts.ALL[number])
    *keys, last = path.split(">")

    def inside(at: Any, key: str) -> Any:
        return at[int(key)] if isinstance(at, list) else at[key]

    place = functools.reduce(inside, keys, found)
    place[int(last) if isinstance(place, list) else last] = value
    return found


@pytest.mark.parametrize("number", sorted(BY_NUMBER))
def test_facts_as_the_driver_assumes_them_are_right(number: int) -> None:
    finding = judged(number, facts.ALL[number])
    assert VERDICTS[finding.status] == "ok", finding
    assert finding.seen
    assert finding.meaning


LOST = {"error": "DeviceLostError", "code": 999, "text": "unknown", "ms": 1.0}
WRONG: list[tuple[int, str, Any, str]] = [
    (1, "container>cuInit", 999, "cuInit: 999"),
    (1, "container>count", 2, "2 devices are visible"),
    (1, "container>uuid", "00000000-0000-0000-0000-000000000000", "the visible device is"),
    (1, "container", {"error": "cannot load libcuda.so.1: no such file"}, "cannot load libcuda.so.1"),
    (1, "without uvm", facts.contexts()["container"], "without /dev/nvidia-uvm too"),
    (2, "closed>files", ["/dev/nvidia0"], "still open: /dev/nvidia0"),
    (2, "closed>mappings", ["/dev/nvidia0"], "still open: /dev/nvidia0"),
    (2, "event set freed>files", ["/dev/nvidiactl"] * 4, "4 files after freeing the event set"),
    (3, "0>nvmlDeviceGetGpuInstances>19", facts.UNKNOWN, "nvmlDeviceGetGpuInstances(19): NVMLError_Unknown (999)"),
    (3, "0>nvmlDeviceGetGpuInstances>9", facts.answer(1), "1 instances"),
    (3, "0>nvmlDeviceGetGpuInstanceById", facts.UNKNOWN, "nvmlDeviceGetGpuInstanceById"),
    (3, "0>nvmlDeviceGetGpuInstanceRemainingCapacity>9", facts.UNKNOWN, "RemainingCapacity(9)"),
    (3, "0>nvmlDeviceGetSupportedEventTypes", facts.UNKNOWN, "SupportedEventTypes"),
    (3, "0>nvmlDeviceRegisterEvents", facts.INVALID, "RegisterEvents"),
    (4, "0>rows>3>v2", facts.UNKNOWN, "profile number 5, version 2: NVMLError_Unknown (999)"),
    (4, "0>rows>0>v2>value>name", "MIG 1g.12gb", "is 1g.12gb, and would be called 1g.10gb"),
    (4, "0>rows>1>placements>value", ["0:4"], "the catalog (0, 4)"),
    (4, "0>rows>1>placements", facts.UNKNOWN, "placements of profile 9"),
    (4, "0>rows>1>v2>value>id", 10, "profile number 2 has id 10"),
    (4, "0>fields>184", {"type": 0, "value": 1.0, "uint": 1}, "value type 0"),
    (4, "0>fields>184", {"type": 1, "value": 0, "uint": 0}, "field 184 is 0 on architecture 9"),
    (5, "0>nvmlDeviceGetBrand", facts.UNKNOWN, "nvmlDeviceGetBrand: NVMLError_Unknown (999)"),
    (5, "0>nvmlDeviceGetMinorNumber", facts.NOT_SUPPORTED, "nvmlDeviceGetMinorNumber"),
    (5, "0>fields", {"error": "NVMLError_Unknown", "code": 999}, "nvmlDeviceGetFieldValues"),
    (5, "snapshot>leftOut", ["LeftOutGpu()"], "left out"),
    (6, "made>1>minor", 7, "/dev/nvidia0 was made with (195, 7)"),
    (6, "init", facts.UNKNOWN, "could not open"),
    (7, "proc_devices", "Character devices:\n 10 misc\n", "lists neither nvidia"),
    (7, "nodes>0>minor", 1, "/dev/nvidia0 is 195:1, computed 195:0"),
    (7, "nodes>2>major", 509, "/dev/nvidia-uvm is 509:0, computed 510:0"),
    (7, "nodes>3>minor", 9, "nvidia-cap1 is 236:9"),
    (7, "nodes>0>path", "/dev/nvidia5", "/dev/nvidia0 does not exist"),
    (7, "params", "ModifyDeviceFiles: maybe", "which is not understood"),
    (7, "capabilities>mig/config", "Minor = 1", "no DeviceFileMinor"),
    (7, "mig_minors>first", ["gpu0/gi0/access=3"], "in another form"),
    (8, "nvml", facts.answer("570.1"), "NVML says 570.1"),
    (8, "own", {"error": "no NVIDIA driver found"}, "no NVIDIA driver found"),
    (8, "ctk>mounts>0", ["/a", "/usr/lib64/libnvidia-new.so.580.65.06"], "nvidia-ctk has 1: /usr/lib64/libnvidia-new"),
    (8, "ctk>mounts", [], "nvidia-ctk lacks 3"),
    (8, "ldconfig>libraries", {"libcuda.so.1": "x"}, "the linker's cache has no libnvidia-ml.so.1"),
    (9, "session 2>gpus", ["b"], "session 2 sees other GPUs"),
    (9, "session 2>mapped", ["/usr/lib64/other.so"], "session 2 did not load"),
    (9, "threads>failed", ["DeviceLostError: x"], "DeviceLostError"),
    (9, "threads>different", 3, "3 of 80"),
    (9, "threads>hanging", 1, "1 threads did not return"),
    (10, "commands>0>refused", "`x` was refused: invalid", "was refused"),
    (10, "client>cuMemAlloc 2048 MiB", 0, "got code 0 for 2048 MiB, expected 2"),
    (10, "client", {"error": "no end within 25 s"}, "no end within 25 s"),
    (10, "client>cuInit", 805, "cuInit: 805"),
    (10, "end>status", None, "did not end after `quit`"),
    (11, "0>fabric>value", 9, "unknown fabric state 9"),
    (11, "0>persistence", facts.UNKNOWN, "persistence: code 999"),
    (11, "open_ms", 61_000.0, "a first call took 61 s"),
    (
        11,
        "nvidia-smi",
        {"error": "`nvidia-smi compute-policy -l` ended with status 1", "ms": 1.0},
        "ended with status 1",
    ),
    (12, "create beside client", LOST, "create beside client: DeviceLostError (code 999)"),
    (12, "create alone", facts.BUSY, "create alone"),
    (12, "after", {"mode": True, "instances": []}, "before {'mode': False"),
    (13, "destroy alone", facts.BUSY, "destroy alone"),
    (13, "destroy beside client", LOST, "destroy beside client"),
    (13, "after", {"mode": True, "instances": [7]}, "afterwards {'mode': True, 'instances': [7]}"),
    (14, "fabric after", [[0.0, 2]], "expected 3 (completed)"),
]


@pytest.mark.parametrize(("number", "path", "value", "text"), WRONG, ids=[f"{row[0]}-{row[1]}" for row in WRONG])
def test_each_wrong_fact_is_a_difference_that_is_named(number: int, path: str, value: Any, text: str) -> None:
    finding = judged(number, changed(number, path, value))
    assert VERDICTS[finding.status] == "differs", finding
    assert text in finding.seen
    assert finding.meaning


RIGHT: list[tuple[int, str, Any]] = [
    (3, "0>nvmlDeviceGetGpuInstances>19", facts.answer(0)),
    (3, "0>nvmlDeviceRegisterEvents", facts.NOT_SUPPORTED),
    (4, "0>rows>0>v2", facts.NOT_SUPPORTED),  # version 2 may want MIG mode on
    (4, "0>rows>1>placements", facts.NOT_SUPPORTED),  # legal, and then the profile cannot be created
    (4, "0>fields", {"error": "NVMLError_NotSupported", "code": 3}),
    (5, "0>nvmlDeviceGetBrand", facts.NOT_SUPPORTED),
    (6, "made", facts.missing_nodes()["made"][:1]),
    (7, "links", {}),  # what an administrator may change is told, and is no difference
    (8, "ctk", {"error": "no nvidia-ctk"}),
    (12, "create beside client", {"gi": 7, "ms": 1.0}),
    (13, "destroy beside client", {"value": None, "ms": 1.0}),
]


@pytest.mark.parametrize(("number", "path", "value"), RIGHT, ids=[f"{row[0]}-{row[1]}" for row in RIGHT])
def test_answers_that_the_driver_provides_for_are_no_difference(number: int, path: str, value: Any) -> None:
    """nvml.h allows them, or the driver has a way around them."""
    assert VERDICTS[judged(number, changed(number, path, value)).status] == "ok"


def test_nodes_that_nvml_does_not_make_are_right_when_it_then_fails_to_open() -> None:
    found = changed(6, "made", []) | {"init": {"error": "NVMLError_DriverNotLoaded", "code": 9, "ms": 1.0}}
    assert VERDICTS[judged(6, found).status] == "ok"
    assert "must exist before" in judged(6, found).meaning


UNKNOWN: list[tuple[int, dict[str, Any]]] = [
    (1, changed(1, "container", {"error": "cannot enter the view: denied", "permission": True})),
    (2, {step: {"files": [], "mappings": [], "references": None} for step in facts.held()}),
    (2, changed(2, "closed>references", 5)),
    (6, changed(6, "made", [])),
    (6, changed(6, "existing", []) | {"made": [], "init": facts.UNKNOWN}),
    (11, changed(11, "nvidia-smi", {"missing": "nvidia-smi is not below /"})),
]


@pytest.mark.parametrize(("number", "found"), UNKNOWN, ids=range(len(UNKNOWN)))
def test_facts_that_prove_nothing_are_not_called_right(number: int, found: dict[str, Any]) -> None:
    """A library that opens no device file is not NVIDIA's."""
    finding = judged(number, found)
    assert VERDICTS[finding.status] == "cannot tell"
    assert finding.meaning


@pytest.mark.parametrize("number", [3, 4])
def test_a_machine_without_mig_skips_what_is_about_mig(number: int) -> None:
    assert VERDICTS[judged(number, {}).status] == "skipped"
    assert "MIG" in judged(number, {}).seen


def test_what_an_administrator_may_change_is_told() -> None:
    found = changed(7, "links", {}) | {
        "proc_devices": "Character devices:\n195 nvidia\n236 nvidia-caps\n",
        "params": "ModifyDeviceFiles: 0",
        "nodes": [node for node in facts.kernel()["nodes"] if "uvm" not in node["path"]],
    }
    seen = judged(7, found).seen
    assert "nvidia-uvm is not loaded" in seen
    assert "no link in /dev/char for 3 nodes" in seen
    assert "ModifyDeviceFiles is 0" in seen


@pytest.mark.parametrize("number", sorted(BY_NUMBER))
@pytest.mark.parametrize("found", [{"0": []}, {"0": {}}, {"container": 1, "commands": None}, {"threads": {}}])
def test_a_damaged_report_is_no_traceback(number: int, found: dict[str, Any]) -> None:
    assert VERDICTS[judged(number, found).status] in {"cannot tell", "skipped", "ok"}


@pytest.mark.parametrize("number", sorted(BY_NUMBER))
def test_a_check_that_did_not_finish_cannot_tell(number: int) -> None:
    reading = Reading(facts=facts.ALL[number], problem="no end within 30 s; the last NVML call was nvmlX")
    finding = values.judged(BY_NUMBER[number], reading, facts.survey()).finding
    assert VERDICTS[finding.status] == "cannot tell"
    assert "nvmlX" in finding.seen


def test_every_function_that_describes_a_gpu_is_asked() -> None:
    """A property that is read later must not be forgotten here. NVLinks are read link by link."""
    text = Path(nvml.__file__).with_name("properties.py").read_text()
    read = {re.sub(r"(?<!MemoryInfo)_v\d$", "", name) for name in re.findall(r"\bnvmlDeviceGet(?!NvLink)\w+", text)}
    assert len(read) >= 10
    assert read - {*probes.NEEDED, *probes.OPTIONAL} == set()


def places(found: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    if path:
        yield path
    if isinstance(found, dict | list):
        for key in found if isinstance(found, dict) else range(len(found)):
            yield from places(found[key], (*path, key))


@pytest.mark.parametrize("number", sorted(BY_NUMBER))
def test_no_damage_in_any_place_of_a_report_is_a_traceback(number: int) -> None:
    other: tuple[Any, ...] = (None, "x", -1, {})
    for path in places(facts.ALL[number]):
        for junk in other:
            found = copy.deepcopy(facts.ALL[number])
            place = functools.reduce(lambda at, key: at[key], path[:-1], found)
            place[path[-1]] = junk
            assert VERDICTS[judged(number, found).status] in {"ok", "differs", "cannot tell", "skipped"}
