"""The NVML backend on a real GPU, and NVML's answers there. Read-only, under a minute.

    python -m pytest tests/hardware -n 0 -rs

Skipped with the reason where there is no NVIDIA driver. GPU_REPORT=path also writes what was seen to a file.
"""

import re
import shutil
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pynvml
import pytest

from dra_driver.core.model.gpu import Gpu, Snapshot
from dra_driver.hardware.gpu.backend import ComputeMode
from dra_driver.hardware.gpu.catalog import GpuModel, models
from dra_driver.hardware.gpu.nvml import probes
from dra_driver.hardware.gpu.nvml.backend import NvmlBackend

UUID = re.compile(r"GPU-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
BUS_ID = re.compile(r"[0-9a-f]{4,}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-9a-f]")
READ_ONLY_SMI = (["-L"], ["compute-policy", "-l"], ["mig", "-lgip"], ["mig", "-lgipp"], ["topo", "-m"])


@pytest.fixture
def snapshot(backend: NvmlBackend) -> Snapshot:
    return backend.snapshot()


@pytest.fixture(autouse=True)
def settings_stay(backend: NvmlBackend) -> Iterator[None]:
    backend.open()
    before = [probes.settings(handle) for handle in probes.handles().values()]
    yield
    backend.open()
    assert [probes.settings(handle) for handle in probes.handles().values()] == before


def milliseconds(call: Any) -> float:
    begin = time.perf_counter()
    call()
    return round((time.perf_counter() - begin) * 1000, 3)


def model_of(gpu: Gpu) -> GpuModel | None:
    return next((model for model in models().values() if model.product_name == gpu.product_name), None)


def test_the_inventory_has_every_gpu_with_well_formed_properties(snapshot: Snapshot, report: dict[str, Any]) -> None:
    report["snapshot"] = [str(gpu) for gpu in snapshot.gpus]
    report["left_out"] = [str(gpu) for gpu in snapshot.left_out]
    report["versions"] = [snapshot.driver_version, snapshot.cuda_driver_version]
    assert snapshot.left_out == ()
    assert len(snapshot.gpus) == pynvml.nvmlDeviceGetCount()
    assert re.fullmatch(r"\d+\.\d+(\.\d+)?", snapshot.driver_version or "")
    for gpu in snapshot.gpus:
        assert UUID.fullmatch(gpu.uuid)
        assert BUS_ID.fullmatch(gpu.pci_bus_id or "")
        assert gpu.brand not in (None, "Unknown")
        assert gpu.architecture not in (None, "Unknown")
        assert gpu.cuda_compute_capability is not None
        assert gpu.memory_bytes is None or gpu.memory_bytes > 2**30


def test_the_minor_names_the_device_file(snapshot: Snapshot) -> None:
    """Containers get /dev/nvidia<minor>; the NVML index would be the wrong number on some machines."""
    missing = [gpu.minor for gpu in snapshot.gpus if not Path(f"/dev/nvidia{gpu.minor}").exists()]
    assert missing == []


def test_the_place_in_the_machine_is_that_of_sysfs(snapshot: Snapshot) -> None:
    """Read by another way than topology.py does."""
    for gpu in snapshot.gpus:
        device = Path("/sys/bus/pci/devices") / (gpu.pci_bus_id or "")
        if not device.exists():
            pytest.skip(f"{device} does not exist: this container has no view of the PCI bus")
        assert gpu.pcie_root is None or f"/{gpu.pcie_root}/" in str(device.resolve())
        assert (gpu.numa_node if gpu.numa_node is not None else -1) == int((device / "numa_node").read_text())


def test_a_known_board_agrees_with_the_catalogue(snapshot: Snapshot, report: dict[str, Any]) -> None:
    """Otherwise the simulation teaches the wrong thing. Memory drifts a little with driver and ECC: 2 % are allowed."""
    known = [(gpu, model) for gpu in snapshot.gpus if (model := model_of(gpu)) is not None]
    report["catalogue"] = [f"{gpu.device_name} is {model.key}" for gpu, model in known]
    if not known:
        pytest.skip(f"no board of this machine is in the catalogue: {[gpu.product_name for gpu in snapshot.gpus]}")
    for gpu, model in known:
        assert (gpu.brand, gpu.architecture) == (model.brand, model.architecture)
        assert gpu.cuda_compute_capability == model.cuda_compute_capability
        assert gpu.mig_capable == (model.mig is not None)
        if gpu.memory_bytes is not None and model.memory_mib is not None:
            assert gpu.memory_bytes / 2**20 == pytest.approx(model.memory_mib, rel=0.02)


def test_opening_and_looking_are_fast_enough_to_poll(backend: NvmlBackend, report: dict[str, Any]) -> None:
    """Cold means a new NVML session. The bounds are generous: GPUs without persistence mode wake up first."""
    cold = []
    for _ in range(3):
        backend.close()
        cold.append({"open_ms": milliseconds(backend.open), "first_look_ms": milliseconds(backend.snapshot)})
    warm = sorted(milliseconds(backend.snapshot) for _ in range(50))
    report["latency"] = {"cold": cold, "warm_p50_ms": warm[25], "warm_max_ms": warm[-1]}
    assert warm[25] < 100 * len(backend.snapshot().gpus)


def test_the_inventory_lists_profiles_as_nvml_does(
    handles: list[Any], snapshot: Snapshot, report: dict[str, Any]
) -> None:
    """Read by another way than the backend does: every profile that NVML names with placements, and no other."""
    report["mig in the inventory"] = {
        gpu.device_name: {
            "enabled": gpu.mig_enabled,
            "resetless": gpu.mig_resetless,
            "profiles": [str(profile) for profile in gpu.mig_profiles],
            "instances": [str(instance) for instance in gpu.mig_instances],
        }
        for gpu in snapshot.gpus
    }
    capable = [gpu for gpu in snapshot.gpus if gpu.mig_capable]
    if not capable:
        pytest.skip("no GPU of this machine has MIG")
    by_uuid = {pynvml.nvmlDeviceGetUUID(handle): handle for handle in handles}
    for gpu in capable:
        if probes.is_guest(by_uuid[gpu.uuid]):
            assert gpu.mig_profiles == ()
            continue
        rows = [row for row in probes.profiles(by_uuid[gpu.uuid]) if row.get("placements", {}).get("value")]
        told = {
            row["id"]: sorted(row["placements"]["value"], key=lambda place: int(place.split(":")[0])) for row in rows
        }
        ours = {one.profile_id: [f"{start}:{one.memory_slices}" for start in one.starts] for one in gpu.mig_profiles}
        assert ours == told
        names = {row["id"]: row["v2"]["value"]["name"].removeprefix("MIG ") for row in rows if "value" in row["v2"]}
        assert {one.profile_id: one.name for one in gpu.mig_profiles if one.profile_id in names} == names


def test_reads_of_control_agree_with_the_inventory(backend: NvmlBackend, snapshot: Snapshot) -> None:
    for gpu in snapshot.gpus:
        if not gpu.mig_enabled:  # nvml.h: compute modes are not supported while MIG mode is on
            assert backend.compute_mode(gpu.uuid) in ComputeMode
        if gpu.mig_capable:
            assert backend.mig_mode(gpu.uuid) == gpu.mig_enabled
            assert backend.mig_instances(gpu.uuid) == gpu.mig_instances


def test_the_backend_waits_for_events_beside_looks(backend: NvmlBackend, report: dict[str, Any]) -> None:
    answers: list[bool] = []
    waiter = threading.Thread(target=lambda: answers.append(backend.wait_for_event(1.0)))
    waiter.start()
    looks = sorted(milliseconds(backend.snapshot) for _ in range(20))
    waiter.join(10)
    report["looks beside a wait for events"] = {"p50_ms": looks[10], "max_ms": looks[-1], "event": answers}
    assert answers == [False]


def test_waiting_for_an_event_that_does_not_come_ends_in_time(handles: list[Any], report: dict[str, Any]) -> None:
    answers = [probes.event_wait(handle, 200) for handle in handles]
    report["event wait of 200 ms"] = answers
    assert all(answer["ms"] < 2000 for answer in answers)


def test_nvidia_smi_lists_the_gpus_of_the_inventory(snapshot: Snapshot, report: dict[str, Any]) -> None:
    program = shutil.which("nvidia-smi") or shutil.which("nvidia-smi", path="/usr/local/nvidia/bin")
    if program is None:
        pytest.skip("nvidia-smi is not on PATH")
    outputs: dict[str, dict[str, Any]] = {}
    for arguments in READ_ONLY_SMI:
        done = subprocess.run([program, *arguments], capture_output=True, text=True, timeout=30, check=False)
        outputs[" ".join(arguments)] = {"status": done.returncode, "output": done.stdout}
    report["nvidia-smi"] = outputs
    listed = re.findall(r"^GPU \d+: (.+) \(UUID: (GPU-[0-9a-f-]+)\)$", outputs["-L"]["output"], re.MULTILINE)
    assert sorted(listed) == sorted((gpu.product_name, gpu.uuid) for gpu in snapshot.gpus)
