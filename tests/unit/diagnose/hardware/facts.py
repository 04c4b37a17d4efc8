"""Facts as readers give them, for one H100 without MIG mode, all right; tests change a copy in one place."""

import copy
from typing import Any

from dra_driver.hardware.gpu.nvml import probes

UUID = "GPU-7fff86ef-8c16-a98c-945a-2541fc35b20d"
NOT_SUPPORTED = {"error": "NVMLError_NotSupported", "code": 3, "ms": 0.1}
NOT_FOUND = {"error": "NVMLError_NotFound", "code": 6, "ms": 0.1}
UNKNOWN = {"error": "NVMLError_Unknown", "code": 999, "ms": 0.1}
BUSY = {"error": "GpuBusyError", "code": 19, "text": "in use", "ms": 1.0}
INVALID = {"error": "NVMLError_InvalidArgument", "code": 2, "ms": 0.1}


def answer(value: Any) -> dict[str, Any]:
    return {"value": value, "ms": 0.1}


def survey(**changes: Any) -> dict[str, Any]:
    gpu = {
        "index": 0,
        "answers": {
            "nvmlDeviceGetUUID": answer(UUID),
            "nvmlDeviceGetMinorNumber": answer(0),
            "nvmlDeviceGetName": answer("NVIDIA H100 80GB HBM3"),
            "nvmlDeviceGetMigMode": answer([0, 0]),
        },
        "processes": {"Compute": answer([]), "Graphics": answer([]), "MPSCompute": dict(NOT_SUPPORTED)},
    }
    facts = {"machine": {"uid": 0, "kernel": "6.1"}, "gpus": [gpu], "claims": {"held": {}}}
    facts["openers"] = {"complete": True, "processes": []}
    return copy.deepcopy({**facts, **changes})


def without_mode() -> dict[str, Any]:
    return {
        "0": {
            "nvmlDeviceGetGpuInstances": {"19": dict(NOT_SUPPORTED), "9": dict(NOT_FOUND)},
            "nvmlDeviceGetGpuInstanceRemainingCapacity": {"19": dict(NOT_SUPPORTED), "9": dict(NOT_SUPPORTED)},
            "nvmlDeviceGetGpuInstanceById": dict(NOT_FOUND),
            "nvmlDeviceGetSupportedEventTypes": answer(0x10F),
            "nvmlDeviceRegisterEvents": answer("registered"),
        }
    }


def _info(profile_id: int, slices: int, megabytes: int, name: str) -> dict[str, Any]:
    return {
        "id": profile_id,
        "sliceCount": slices,
        "instanceCount": 7,
        "multiprocessorCount": 16 * slices,
        "memorySizeMB": megabytes,
        "name": name,
    }


def _row(number: int, info: dict[str, Any], places: list[str]) -> dict[str, Any]:
    return {
        "number": number,
        "v2": answer(info),
        "v1": answer({key: value for key, value in info.items() if key != "name"}),
        "id": info["id"],
        "placements": answer(places),
        "remaining": dict(NOT_SUPPORTED),
    }


def profiles() -> dict[str, Any]:
    """1g.10gb, 3g.40gb and 7g.80gb of an H100, as its catalog entry has them."""
    rows = [
        _row(0, _info(19, 1, 9984, "MIG 1g.10gb"), [f"{start}:1" for start in range(7)]),
        _row(2, _info(9, 3, 40320, "MIG 3g.40gb"), ["0:4", "4:4"]),
        _row(4, _info(0, 7, 80640, "MIG 7g.80gb"), ["0:8"]),
        {"number": 5, "v2": dict(NOT_SUPPORTED), "v1": dict(NOT_SUPPORTED)},
        {"number": 31, "v2": dict(INVALID), "v1": dict(INVALID)},
    ]
    gpu = {
        "mode": [0, 0],
        "rows": rows,
        "fields": {"184": {"type": 1, "value": 1, "uint": 1}, "199": {"type": 1, "value": 1, "uint": 1}},
        "name": answer("NVIDIA H100 80GB HBM3"),
        "architecture": answer(9),
        "memory": answer({"total": 81559 << 20}),
        "virtualization": answer(0),
    }
    return {"0": gpu}


def every_call() -> dict[str, Any]:
    answers: dict[str, Any] = {name: answer(1) for name in (*probes.NEEDED, *probes.OPTIONAL)}
    answers["nvmlDeviceGetMigMode"] = dict(NOT_SUPPORTED)
    return {"0": answers | {"fields": {"184": {"code": 3}}}, "snapshot": {"gpus": ["Gpu()"], "leftOut": []}}


def held() -> dict[str, Any]:
    control, gpu = "/dev/nvidiactl", "/dev/nvidia0"
    steps: dict[str, list[str]] = {
        "before": [],
        "open": [control],
        "snapshot": [control, gpu, gpu],
        "event set": [control, control, gpu, gpu],
        "event set freed": [control, gpu, gpu],
        "closed": [],
    }
    return {step: {"files": files, "mappings": [], "references": 2 + len(files)} for step, files in steps.items()}


def copies() -> dict[str, Any]:
    def session(path: str) -> dict[str, Any]:
        return {"library": path, "mapped": [path], "driver": "580.65.06", "gpus": ["a"], "leftOut": []}

    return {
        "session 1": session("/usr/lib64/libnvidia-ml.so.580"),
        "session 2": session("/tmp/1/libnvidia-ml.so.580"),
        "threads": {"looks": 80, "different": 0, "failed": [], "hanging": 0, "ms": 10.0},
    }


def first_calls() -> dict[str, Any]:
    return {
        "open_ms": 900.0,
        "0": {"first_handle": answer(True), "fabric": answer(3), "persistence": answer(1)},
        "nvidia-smi": {"program": "/usr/bin/nvidia-smi", "output": "table", "ms": 30.0},
    }


def kernel() -> dict[str, Any]:
    def node(path: str, major: int, minor: int) -> dict[str, Any]:
        return {"path": path, "major": major, "minor": minor, "mode": "0o666", "uid": 0, "gid": 0}

    return {
        "proc_devices": "Character devices:\n195 nvidia\n510 nvidia-uvm\n236 nvidia-caps\n\nBlock devices:\n",
        "modules": [["nvidia_uvm", "1", "2"]],
        "nodes": [
            node("/dev/nvidia0", 195, 0),
            node("/dev/nvidiactl", 195, 255),
            node("/dev/nvidia-uvm", 510, 0),
            node("/dev/nvidia-caps/nvidia-cap1", 236, 1),
        ],
        "links": {"195:0": "../nvidia0", "195:255": "../nvidiactl", "510:0": "../nvidia-uvm", "236:1": "x"},
        "params": "ModifyDeviceFiles: 1\n",
        "capabilities": {"mig/config": "DeviceFileMinor: 1\nDeviceFileMode: 292\n"},
        "mig_minors": {"lines": 2, "first": ["config 1", "gpu0/gi0/access 3"]},
    }


def missing_nodes() -> dict[str, Any]:
    nodes = [{"path": "/dev/nvidiactl", "major": 195, "minor": 255}, {"path": "/dev/nvidia0", "major": 195, "minor": 0}]
    return {
        "existing": nodes,
        "covered": ["/usr/bin/nvidia-modprobe"],
        "init": answer(None),
        "count": answer(1),
        "made": copy.deepcopy(nodes),
    }


def files() -> dict[str, Any]:
    cuda, ml = "/usr/lib64/libcuda.so.580.65.06", "/usr/lib64/libnvidia-ml.so.580.65.06"
    return {
        "nvml": answer("580.65.06"),
        "own": {
            "version": "580.65.06",
            "multiarch": "x86_64-linux-gnu",
            "libraries": [[cuda, "libcuda.so.1"], [ml, "libnvidia-ml.so.1"]],
            "files": [["/usr/bin/nvidia-smi", "/usr/bin/nvidia-smi"]],
            "sockets": [],
        },
        "ctk": {"status": 0, "mounts": [[path, path] for path in (cuda, ml, "/usr/bin/nvidia-smi")]},
        "ldconfig": {"status": 0, "libraries": {"libcuda.so.1": "/usr/lib64/libcuda.so.1", "libnvidia-ml.so.1": "x"}},
    }


def contexts() -> dict[str, Any]:
    worked = {
        **dict.fromkeys(("cuDriverGetVersion", "cuInit", "cuDeviceGetCount", "cuDeviceGet", "cuDeviceGetUuid"), 0),
        **dict.fromkeys(("cuCtxCreate_v2", "cuMemAlloc 64 MiB"), 0),
        "version": 13000,
        "count": 1,
        "uuid": UUID.removeprefix("GPU-"),
    }
    return {
        "edits": {"nodes": ["/dev/nvidia0"], "files": ["/usr/lib64/libcuda.so.1"]},
        "gpu": {"uuid": UUID},
        "container": worked,
        "without uvm": {"cuDriverGetVersion": 0, "version": 13000, "cuInit": 999},
    }


def daemon() -> dict[str, Any]:
    def command(text: str, output: str) -> dict[str, Any]:
        return {"command": text, "status": 0, "output": output, "refused": ""}

    return {
        "commands": [command("get_default_active_thread_percentage", "100.0\n"), command("quit", "")],
        "client": {
            **dict.fromkeys(("cuInit", "cuDeviceGet", "cuCtxCreate_v2", "cuMemAlloc 64 MiB"), 0),
            "cuMemAlloc 2048 MiB": 2,
        },
        "end": {"status": 0},
        "logs": {},
    }


def first_create() -> dict[str, Any]:
    return {
        "before": {"mode": False, "instances": []},
        "mode beside client": BUSY,
        "mode alone": {"value": None, "ms": 900.0},
        "create beside client": BUSY,
        "create alone": {"gi": 7, "ms": 100.0},
        "after": {"mode": False, "instances": []},
    }


def subscriptions() -> dict[str, Any]:
    return {
        "before": {"mode": True, "instances": []},
        "mode": {"value": None, "ms": 0.0},
        "create": {"gi": 7, "ms": 100.0},
        "destroy beside client": BUSY,
        "destroy alone": {"value": None, "ms": 1000.0},
        "after": {"mode": True, "instances": []},
    }


def fabric() -> dict[str, Any]:
    state = {"mode": False, "instances": []}
    return {"before": state, "fabric after": [[0.0, 2], [1.4, 3]], "after": dict(state)}


ALL: dict[int, dict[str, Any]] = {
    1: contexts(),
    2: held(),
    3: without_mode(),
    4: profiles(),
    5: every_call(),
    6: missing_nodes(),
    7: kernel(),
    8: files(),
    9: copies(),
    10: daemon(),
    11: first_calls(),
    12: first_create(),
    13: subscriptions(),
    14: fabric(),
}
"""Facts by number of the check, all right."""
