"""The real pynvml against the fake library: errors, other processes, threads, and a driver that goes and comes."""

import json
import os
import subprocess
import sys
import threading
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from dra_driver.core.errors import DriverUnavailableError
from dra_driver.core.model.gpu import Snapshot
from dra_driver.hardware.driver_root.search import find_library
from dra_driver.hardware.gpu.nvml.backend import NvmlBackend
from dra_driver.hardware.gpu.simulated.spec import NodeSpec
from tests.fakes.nvml import library
from tests.fakes.nvml import state as codes
from tests.fakes.nvml.state import State
from tests.fakes.nvml.sysfs import write_sysfs
from tests.harness.raising import fails

pynvml: Any = import_module("pynvml")  # typings/ has only the functions that the package calls

OTHER_PROCESS = """
import sys
from dra_driver.hardware.gpu.nvml.backend import NvmlBackend
backend = NvmlBackend(sys.argv[1], sys.argv[2])
print(backend.snapshot())
"""
MANIPULATOR = """
import sys
from pathlib import Path
from tests.fakes.nvml.state import State
state = State(Path(sys.argv[1]))
state.inject("nvmlDeviceGetMemoryInfo", int(sys.argv[2]), device=1)
state.close()
"""


def python(script: str, *arguments: str, **environment: str) -> str:
    command = [sys.executable, "-c", script, *arguments]
    variables = {**os.environ, **environment}
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=True, env=variables).stdout


def test_a_gpu_with_garbage_for_a_name_and_a_bus_id_harms_no_other(
    nvml: NvmlBackend, state: State, node: NodeSpec
) -> None:
    """NVML promises no encoding; what cannot be read is absent, and a GPU without a UUID is left out."""
    state.scramble(0, "name", "bus_id")
    state.scramble(1, "uuid")
    found = nvml.snapshot()
    assert [gpu.uuid for gpu in found.gpus] == [item.gpu.uuid for item in (node.gpus[0], *node.gpus[2:])]
    assert (found.gpus[0].product_name, found.gpus[0].pci_bus_id) == (None, None)
    (left_out,) = found.left_out
    assert "nvmlDeviceGetUUID" in left_out.reason


def test_a_gpu_that_reports_as_little_as_nvml_allows_is_still_published(nvml: NvmlBackend, state: State) -> None:
    """Name, UUID and minor are enough for a container; nothing of it is trouble."""
    state.reports_little(device=0)
    before, found = nvml.snapshot(), nvml.snapshot()
    assert (before, found.left_out) == (found, ())
    first, second = found.gpus[:2]
    assert (first.minor, first.mig_capable, first.mig_profiles) == (0, True, ())
    assert (first.brand, first.memory_bytes, first.architecture, first.mig_resetless) == (None,) * 4
    assert second.mig_profiles
    assert nvml.wait_for_event(0.01) is False


def test_a_driver_without_mig_calls_gives_gpus_that_cannot_do_mig(nvml: NvmlBackend, state: State) -> None:
    """Drivers before 450 lack nvmlDeviceGetMigMode."""
    state.inject("nvmlDeviceGetMigMode", codes.FUNCTION_NOT_FOUND)
    assert {(gpu.mig_capable, gpu.mig_enabled) for gpu in nvml.snapshot().gpus} == {(False, False)}


def test_names_of_lost_gpus_are_forgotten_when_the_numbering_changes(
    nvml: NvmlBackend, state: State, tmp_path: Path
) -> None:
    """A wrong UUID beside a reason would make an administrator replace the wrong board."""
    whole = nvml.snapshot()
    rest = Snapshot(driver_version="580.65.06", cuda_driver_version=(13, 0), gpus=whole.gpus[1:])
    state.set_node(rest)
    write_sysfs(tmp_path / "sys", rest)
    state.lose(0)
    assert nvml.snapshot().left_out[0].label == "NVML index 0"


def test_a_missing_driver_is_reported_and_found_once_it_is_there(nvml: NvmlBackend, state: State) -> None:
    state.inject("nvmlInitWithFlags", codes.DRIVER_NOT_LOADED)
    with pytest.raises(DriverUnavailableError, match=r"Driver Not Loaded.*load the NVIDIA kernel module"):
        nvml.open()
    state.clear_faults()
    assert len(nvml.snapshot().gpus) == 7


@pytest.mark.parametrize(
    ("function", "code"),
    [
        ("nvmlDeviceGetCount_v2", codes.UNKNOWN),
        ("nvmlDeviceGetUUID", codes.LIB_RM_VERSION_MISMATCH),
        ("nvmlSystemGetDriverVersion", codes.DRIVER_NOT_LOADED),
    ],
)
def test_driver_trouble_in_the_middle_ends_the_session_and_the_next_look_starts_a_new_one(
    nvml: NvmlBackend, state: State, function: str, code: int
) -> None:
    """After a driver upgrade the old session would answer with errors for ever."""
    before = nvml.snapshot()
    state.inject(function, code, times=1)
    with pytest.raises(DriverUnavailableError, match=function):
        nvml.snapshot()
    with pytest.raises(pynvml.NVMLError_Uninitialized):
        pynvml.nvmlDeviceGetCount()
    assert nvml.snapshot() == before


def test_the_library_of_an_upgraded_driver_is_used_after_reopening(
    nvml_library: Path, state: State, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """pynvml caches symbols of the first library; the linker caches the path that was a link."""
    folder = tmp_path / "root/usr/lib64"
    folder.mkdir(parents=True)
    backend = NvmlBackend(driver_root=str(tmp_path / "root"), sysfs_root=str(tmp_path / "sys"))
    with fails(DriverUnavailableError, "LibraryMissing"):
        backend.open()

    def install(built: Path, version: str) -> None:
        (folder / f"libnvidia-ml.so.{version}").write_bytes(built.read_bytes())
        (folder / "libnvidia-ml.so.1").unlink(missing_ok=True)
        (folder / "libnvidia-ml.so.1").symlink_to(f"libnvidia-ml.so.{version}")

    install(nvml_library, "580.65.06")
    assert backend.snapshot().driver_version == "580.65.06"
    newer = tmp_path / "newer"
    newer.mkdir()
    install(library.build(newer, "NEWER_NVML_STATE"), "610.43.02")
    monkeypatch.setenv("NEWER_NVML_STATE", str(tmp_path / "newer/state"))
    State.create(tmp_path / "newer/state", NodeSpec(driver_version="610.43.02")).close()
    state.inject("nvmlDeviceGetCount_v2", codes.LIB_RM_VERSION_MISMATCH)
    with fails(DriverUnavailableError, match="NVML code 18"):
        backend.snapshot()
    assert backend.snapshot().driver_version == "610.43.02"
    backend.close()


def test_the_dynamic_linker_is_asked_when_our_own_root_has_the_library_elsewhere(
    nvml_library: Path, state: State, tmp_path: Path
) -> None:
    """NixOS and containers with LD_LIBRARY_PATH keep it outside the usual folders; the linker does not search another
    root."""
    script = """
import sys
from dra_driver.hardware.gpu.nvml.backend import NvmlBackend
print(len(NvmlBackend(driver_root="/").snapshot().gpus))
"""
    if find_library("/") is not None:
        pytest.skip("this machine has an NVIDIA driver of its own")
    assert python(script, LD_LIBRARY_PATH=str(nvml_library.parent)).strip() == "7"


def test_a_file_that_is_no_library_is_a_driver_problem(tmp_path: Path) -> None:
    (tmp_path / "libnvidia-ml.so.1").write_text("not ELF")
    with pytest.raises(DriverUnavailableError, match="cannot load the NVML library"):
        NvmlBackend(str(tmp_path / "libnvidia-ml.so.1")).open()


def test_eight_threads_get_equal_snapshots_while_one_opens_and_closes(nvml: NvmlBackend) -> None:
    expected = nvml.snapshot()
    wrong: list[object] = []

    def look() -> None:
        try:
            wrong.extend(seen for seen in (nvml.snapshot() for _ in range(25)) if seen != expected)
        except Exception as error:  # noqa: BLE001 - told to the main thread, which fails on it
            wrong.append(error)

    threads = [threading.Thread(target=look) for _ in range(8)]
    for thread in threads:
        thread.start()
    for _ in range(20):
        nvml.close()
        nvml.open()
    for thread in threads:
        thread.join(60)
    assert wrong == []


def test_looking_at_the_simulated_node_does_not_load_nvml() -> None:
    script = """
import json, sys
import dra_driver.hardware.gpu.inventory, dra_driver.hardware.gpu.simulated.backend
loaded = {"pynvml": "pynvml" in sys.modules, "yaml": "yaml" in sys.modules}
import dra_driver.hardware.gpu.nvml.backend
print(json.dumps(loaded | {"yaml_with_nvml": "yaml" in sys.modules}))
"""
    assert json.loads(python(script)) == {"pynvml": False, "yaml": False, "yaml_with_nvml": False}


def test_where_a_gpu_is_plugged_in_is_read_once_a_session(nvml: NvmlBackend, tmp_path: Path) -> None:
    """A node at rest reads every GPU each few seconds; the place of a bound device does not change."""
    before = nvml.snapshot()
    assert before.gpus[0].numa_node is not None
    (tmp_path / "sys/bus/pci/devices" / str(before.gpus[0].pci_bus_id) / "numa_node").write_text("7\n")
    assert nvml.snapshot() == before
    nvml.close()
    assert nvml.snapshot().gpus[0].numa_node == 7
