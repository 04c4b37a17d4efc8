"""The raw questions for real GPUs, on the fake library first, which shows their defects without hardware."""

import json

import pynvml

from dra_driver.hardware.gpu.nvml import probes
from dra_driver.hardware.gpu.nvml.backend import NvmlBackend
from dra_driver.hardware.gpu.nvml.properties import MAX_LINKS
from tests.fakes.nvml.state import NOT_SUPPORTED, State

V2 = "nvmlDeviceGetGpuInstanceProfileInfoV"


def test_every_probe_ends_in_a_value_or_an_nvml_error_and_is_json(nvml: NvmlBackend) -> None:
    nvml.open()
    handle = pynvml.nvmlDeviceGetHandleByIndex(0)
    answers = probes.system() | probes.device(handle)
    assert answers["nvmlDeviceGetName"]["value"] == "NVIDIA H100 80GB HBM3"
    assert answers["nvmlDeviceGetMigMode"]["value"] == [0, 0]
    assert answers["nvmlDeviceGetPciInfo"]["value"]["busId"] == "00000000:01:00.0"
    assert answers["nvmlDeviceGetPlatformInfo"]["error"] == "NVMLError_FunctionNotFound"
    assert all("value" in answer or answer["error"].startswith("NVMLError") for answer in answers.values())
    assert json.loads(json.dumps(answers)) == answers
    fields = probes.fields(handle)
    assert fields.items() >= {"184": {"type": 1, "value": 1, "uint": 1}, "185": {"code": 3}}.items()
    assert fields["199"] == {"type": 1, "value": 1, "uint": 1}
    assert fields["200"] == {"code": 3}, "newer headers have another field there"
    rows = probes.profiles(handle)
    assert [row["id"] for row in rows if "value" in row["v2"]] == [19, 14, 9, 5, 0, 20, 15]
    assert [row["v1"]["value"]["id"] for row in rows if "value" in row["v1"]] == [19, 14, 9, 5, 0, 20, 15]
    assert {row["remaining"]["error"] for row in rows if "id" in row} == {"NVMLError_NotSupported"}
    json.dumps(rows)


def test_profiles_are_found_where_only_version_1_answers(nvml: NvmlBackend, state: State) -> None:
    """nvml.h: version 2 may want MIG mode on; ids, placements and sizes are in version 1 too."""
    state.inject(V2, NOT_SUPPORTED)
    nvml.open()
    rows = probes.profiles(pynvml.nvmlDeviceGetHandleByIndex(0))
    assert {row["v2"].get("code") for row in rows if "id" in row} == {NOT_SUPPORTED}
    found = {row["id"]: row["placements"]["value"] for row in rows if "id" in row}
    assert sorted(found) == [0, 5, 9, 14, 15, 19, 20]
    assert found[9] == ["0:4", "4:4"]


def test_functions_of_mig_are_asked_while_the_mode_is_off(nvml: NvmlBackend) -> None:
    """The backend takes Not Supported and Not Found as "there is none"."""
    nvml.open()
    answers = probes.without_mode(pynvml.nvmlDeviceGetHandleByIndex(0), (19,))
    assert answers["nvmlDeviceGetGpuInstances"]["19"]["code"] in {3, 6}
    assert answers["nvmlDeviceGetGpuInstanceById"]["code"] in {3, 6}
    assert answers["nvmlDeviceGetSupportedEventTypes"]["value"] & 0x100
    assert answers["nvmlDeviceRegisterEvents"]["value"] == "registered"
    json.dumps(answers)


def test_processes_are_lists_of_pids(nvml: NvmlBackend, state: State) -> None:
    state.configure(0, clients=2)
    nvml.open()
    answers = [probes.processes(handle) for handle in list(probes.handles().values())[:2]]
    assert [set(one) for one in answers] == [{"Compute", "Graphics", "MPSCompute"}] * 2
    assert [sorted(process) for process in answers[0]["Compute"]["value"]] == [["pid"], ["pid"]]
    assert answers[0]["Graphics"]["value"] == answers[1]["Compute"]["value"] == []


def test_settings_are_compared_without_their_timing(nvml: NvmlBackend) -> None:
    nvml.open()
    handle = pynvml.nvmlDeviceGetHandleByIndex(0)
    assert probes.settings(handle) == probes.settings(handle)
    assert probes.settings(handle)["nvmlDeviceGetMigMode"] == {"value": [0, 0]}


def test_a_lost_gpu_leaves_the_others_to_the_probes(nvml: NvmlBackend, state: State) -> None:
    nvml.open()
    state.lose(1)
    assert list(probes.handles()) == [0, 2, 3, 4, 5, 6]


def test_links_are_asked_up_to_the_backends_last_number(nvml: NvmlBackend) -> None:
    nvml.open()
    asked = [name for name in probes.links(probes.handle_at(0)) if name.endswith(" state")]
    assert len(asked) == MAX_LINKS == 36
