"""The probes for real GPUs, run on the fake library first, which shows their defects without hardware."""

import json

import pynvml

from dra_driver.gpu.nvml.backend import NvmlBackend
from tests.hardware import probes


def test_every_probe_ends_in_a_value_or_an_nvml_error_and_is_json(nvml: NvmlBackend) -> None:
    """The library knows few of the calls, so both ends are seen."""
    nvml.open()
    handle = pynvml.nvmlDeviceGetHandleByIndex(0)
    answers = probes.system() | probes.device(handle)
    assert answers["nvmlDeviceGetName"]["value"] == "NVIDIA H100 80GB HBM3"
    assert answers["nvmlDeviceGetMigMode"]["value"] == [0, 0]
    assert answers["nvmlDeviceGetPciInfo"]["value"]["busId"] == "00000000:01:00.0"
    assert answers["nvmlDeviceGetPlatformInfo"]["error"] == "NVMLError_FunctionNotFound"
    assert all("value" in answer or answer["error"].startswith("NVMLError") for answer in answers.values())
    assert json.loads(json.dumps(answers)) == answers
    assert probes.fields(handle).items() >= {"184": 1, "199": 1, "230": {"code": 3}}.items()
    assert [row["info"]["value"]["id"] for row in probes.mig(handle) if "value" in row["info"]] == [
        19,
        14,
        9,
        5,
        0,
        20,
        15,
    ]
    assert {row["remaining"]["error"] for row in probes.mig(handle) if "remaining" in row} == {"NVMLError_NotSupported"}


def test_settings_are_compared_without_their_timing(nvml: NvmlBackend) -> None:
    """Otherwise every check on hardware would seem to have changed something."""
    nvml.open()
    handle = pynvml.nvmlDeviceGetHandleByIndex(0)
    assert probes.settings(handle) == probes.settings(handle)
    assert probes.settings(handle)["nvmlDeviceGetMigMode"] == {"value": [0, 0]}
