"""Clusters for measuring allocation, as the JSON of an API server: H100 nodes, whole or with MIG devices.

Profiles and placements of an H100 80GB are NVIDIA's (nvidia-smi mig -lgipp), names and attributes its DRA driver's.
"""

import json
from collections.abc import Iterator, Sequence
from typing import Any

DRIVER = "gpu.nvidia.com"
GPUS = 8
# name, profile ID, multiprocessors, MiB, slices of memory, starts
_PROFILES = (
    ("1g.10gb", 19, 16, 9984, 1, (0, 1, 2, 3, 4, 5, 6)),
    ("1g.10gb.me", 20, 16, 9984, 1, (0, 1, 2, 3, 4, 5, 6)),
    ("1g.20gb", 15, 26, 19968, 2, (0, 2, 4, 6)),
    ("2g.20gb", 14, 32, 19968, 2, (0, 2, 4)),
    ("3g.40gb", 9, 60, 40320, 4, (0, 4)),
    ("4g.40gb", 5, 64, 40320, 4, (0,)),
    ("7g.80gb", 0, 132, 80896, 8, (0,)),
)
_PER_SLICE = 64


def node(index: int) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "Node", "metadata": {"name": f"node-{index}", "labels": {"zone": "a"}}}


def classes() -> list[dict[str, Any]]:
    return [
        {"metadata": {"name": name}, "spec": {"selectors": [{"cel": {"expression": _class_expression(kind)}}]}}
        for name, kind in ((DRIVER, "gpu"), ("mig.nvidia.com", "mig"))
    ]


def claim(class_name: str = DRIVER, expression: str = "", count: int = 1) -> dict[str, Any]:
    way: dict[str, Any] = {"deviceClassName": class_name, "allocationMode": "ExactCount", "count": count}
    if expression:
        way["selectors"] = [{"cel": {"expression": expression}}]
    devices = {"requests": [{"name": "gpu", "exactly": way}]}
    return {"metadata": {"name": "claim", "namespace": "default", "uid": "u"}, "spec": {"devices": devices}}


def holding(node_index: int, *devices: str) -> dict[str, Any]:
    name = f"node-{node_index}"
    results = [{"request": "gpu", "driver": DRIVER, "pool": f"{name}/{DRIVER}", "device": device} for device in devices]
    metadata = {"name": f"held-{node_index}", "namespace": "default", "uid": f"held-{node_index}"}
    return {"metadata": metadata, "status": {"allocation": {"devices": {"results": results}}}}


def slices(node_index: int, *, mig: bool) -> Iterator[str]:
    """The ResourceSlices of a node, each as JSON."""
    name = f"node-{node_index}"
    contents = [{"devices": [_whole(node_index, minor, mig=False) for minor in range(GPUS)]}]
    if mig:
        devices = [device for minor in range(GPUS) for device in _gpu(node_index, minor)]
        contents = [{"sharedCounters": [_counters(minor) for minor in range(GPUS)]}]
        contents += [{"devices": devices[at : at + _PER_SLICE]} for at in range(0, len(devices), _PER_SLICE)]
    for place, content in enumerate(contents):
        pool = {"name": f"{name}/{DRIVER}", "generation": 1, "resourceSliceCount": len(contents)}
        spec = {"driver": DRIVER, "pool": pool, "nodeName": name, **content}
        yield json.dumps({"metadata": {"name": f"{place}-{DRIVER}-{name}"}, "spec": spec})


class SharedParts:
    """Reads JSON so that equal parts of devices are one object: ``json.loads(text, object_pairs_hook=parts.join)``.

    Read plainly, a thousand nodes with every MIG placement take 1.5 GiB, which would hide the memory of the allocator.
    Objects read this way must not be changed.
    """

    def __init__(self) -> None:
        self._parts: dict[tuple[tuple[str, object], ...], dict[str, Any]] = {}
        self._kept: set[int] = set()

    def join(self, pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
        """The object with these fields; an earlier equal one unless it has a name or lists."""
        found = dict(pairs)
        if "name" in found or not all(type(value) is str or id(value) in self._kept for value in found.values()):
            return found
        key = tuple((name, value if type(value) is str else id(value)) for name, value in pairs)
        shared = self._parts.setdefault(key, found)
        self._kept.add(id(shared))
        return shared


def _class_expression(kind: str) -> str:
    return f"device.driver == '{DRIVER}' && device.attributes['{DRIVER}'].type == '{kind}'"


def _common(node_index: int, minor: int) -> dict[str, Any]:
    return {
        "productName": {"string": "NVIDIA H100 80GB HBM3"},
        "brand": {"string": "Nvidia"},
        "architecture": {"string": "Hopper"},
        "cudaComputeCapability": {"version": "9.0.0"},
        "driverVersion": {"version": "570.124.6"},
        "cudaDriverVersion": {"version": "12.8.0"},
        "resource.kubernetes.io/pciBusID": {"string": f"0000:{minor + 16:02x}:00.0"},
        "resource.kubernetes.io/pcieRoot": {"string": f"pci0000:{minor + 16:02x}"},
    }


def _uuid(node_index: int, minor: int) -> str:
    return f"GPU-{node_index:08x}-ce1e-3b6e-6cc1-{minor:012x}"


def _whole(node_index: int, minor: int, *, mig: bool) -> dict[str, Any]:
    attributes = {"type": {"string": "gpu"}, "uuid": {"string": _uuid(node_index, minor)}}
    device = {
        "name": f"gpu-{minor}",
        "attributes": {**attributes, **_common(node_index, minor)},
        "capacity": _capacity(132, 81152),
    }
    return {**device, "consumesCounters": [_consumption(minor, 132, 81152, range(8))]} if mig else device


def _gpu(node_index: int, minor: int) -> Iterator[dict[str, Any]]:
    yield _whole(node_index, minor, mig=True)
    for profile, number, processors, memory, size, starts in _PROFILES:
        attributes = {
            **_common(node_index, minor),
            "type": {"string": "mig"},
            "parentUUID": {"string": _uuid(node_index, minor)},
            "profile": {"string": profile},
        }
        for start in starts:
            yield {
                "name": f"gpu-{minor}-mig-{profile.replace('.', '')}-{number}-{start}",
                "attributes": attributes,
                "capacity": _capacity(processors, memory),
                "consumesCounters": [_consumption(minor, processors, memory, range(start, start + size))],
            }


def _capacity(processors: int, memory: int) -> dict[str, Any]:
    engines = {"copyEngines": "8", "decoders": "7", "encoders": "0", "jpegEngines": "7", "ofaEngines": "1"}
    values = {"multiprocessors": str(processors), **engines, "memory": f"{memory}Mi"}
    return {name: {"value": value} for name, value in values.items()}


def _consumption(minor: int, processors: int, memory: int, memory_slices: range) -> dict[str, Any]:
    values = {"multiprocessors": str(processors), "memory": f"{memory}Mi"}
    values |= {f"memory-slice-{place}": "1" for place in memory_slices if place < 8}
    return {"counterSet": f"gpu-{minor}-counter-set", "counters": {name: {"value": v} for name, v in values.items()}}


def _counters(minor: int) -> dict[str, Any]:
    values = {"multiprocessors": "132", "memory": "81152Mi", **{f"memory-slice-{place}": "1" for place in range(8)}}
    return {"name": f"gpu-{minor}-counter-set", "counters": {name: {"value": v} for name, v in values.items()}}
