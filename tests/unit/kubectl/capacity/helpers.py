"""Clusters for tests of capacity: nodes with whole GPUs, with MIG placements and counters, and with shared GPUs."""

from collections.abc import Sequence
from typing import Any

from dra_driver.hardware.gpu import catalog
from dra_driver.kube.state import ClusterState
from dra_driver.kubectl.capacity import CapacityReport
from dra_driver.kubectl.capacity.report import ModelCapacity, RequestCapacity
from tests.fakes.dra_objects import DRIVER, Obj, claim, gpu, node, resource_slice

H100 = "NVIDIA H100 80GB HBM3"
A100 = "NVIDIA A100-SXM4-80GB"


def whole(node_name: str, count: int = 8, **fields: Any) -> Obj:
    """Returns the slice of a node with whole GPUs."""
    devices = [
        {**gpu(f"gpu-{number}", productName=H100, uuid=f"GPU-{node_name}-{number}"), **fields}
        for number in range(count)
    ]
    return resource_slice(node_name, *devices)


def mig(node_name: str, gpus: int = 1, key: str = "h100-sxm5-80gb", *, whole_too: bool = True) -> list[Obj]:
    """Returns the slices of a node whose GPUs are published in all forms: counters, then one slice per GPU."""
    model = catalog.model(key)
    assert model.mig is not None
    sets, slices = [], []
    for number in range(gpus):
        everything = _all_counters(model)
        sets.append({"name": f"gpu-{number}-counter-set", "counters": everything})
        uuid = f"GPU-{node_name}-{number}"
        names = {"productName": {"string": model.product_name}}
        devices = []
        if whole_too:
            attributes = {**names, "type": {"string": "gpu"}, "uuid": {"string": uuid}}
            devices.append(_device(f"gpu-{number}", attributes, everything, number))
        for profile in model.mig.profiles:
            attributes = {
                **names,
                "type": {"string": "mig"},
                "parentUUID": {"string": uuid},
                "profile": {"string": profile.name},
            }
            for start in profile.starts:
                name = (
                    f"gpu-{number}-mig-{profile.name.replace('.', '').replace('+', '-')}-{profile.profile_id}-{start}"
                )
                slots = range(start, start + profile.memory_slices)
                devices.append(_device(name, attributes, _counters(profile, slots), number))
        slices.append(resource_slice(node_name, *devices, count=gpus + 1, name=f"{node_name}-{number}"))
    first = resource_slice(node_name, count=gpus + 1, name=f"{node_name}-counters")
    del first["spec"]["devices"]
    first["spec"]["sharedCounters"] = sets
    return [first, *slices]


def shared(node_name: str, count: int = 1, memory: str = "80Gi", default: str | None = "80Gi") -> Obj:
    """Returns the slice of a node whose GPUs are shared by memory; a claim that requests no share gets ``default``."""
    policy = {"requestPolicy": {"default": default}} if default else {}
    devices = [
        {
            **gpu(f"gpu-{number}", productName=H100, uuid=f"GPU-{node_name}-{number}"),
            "allowMultipleAllocations": True,
            "capacity": {"memory": {"value": memory, **policy}},
        }
        for number in range(count)
    ]
    return resource_slice(node_name, *devices)


def holding(name: str, node_name: str, *devices: str, shares: str = "", **result: Any) -> Obj:
    """Returns an allocated claim; with ``shares`` it has a share with that memory of each device."""
    pool = f"{node_name}/{DRIVER}"
    share = {"shareID": f"{name}-id", "consumedCapacity": {"memory": shares}} if shares else {}
    results = [
        {"request": "gpu", "driver": DRIVER, "pool": pool, "device": device, **share, **result} for device in devices
    ]
    return {**claim(name), "status": {"allocation": {"devices": {"results": results}}}}


def cluster(slices: Sequence[Obj], claims: Sequence[Obj] = (), nodes: Sequence[Obj] | None = None) -> ClusterState:
    """Returns the state of a cluster with the nodes that slices name."""
    names = dict.fromkeys(item["spec"]["nodeName"] for item in slices if item["spec"].get("nodeName"))
    return ClusterState(
        nodes=tuple(node(name) for name in names) if nodes is None else tuple(nodes),
        slices=tuple(slices),
        claims=tuple(claims),
    )


def only(report: CapacityReport) -> ModelCapacity:
    """Returns the only model of a report."""
    (model,) = report.models
    return model


def request(report: CapacityReport, label: str) -> RequestCapacity:
    """Returns a request of the only model."""
    return next(item for item in only(report).requests if item.request == label)


def _counters(profile: catalog.CatalogProfile, slots: range) -> Obj:
    engines = profile.engines
    numbers: dict[str, Any] = {
        "memory": f"{profile.memory_mib}Mi",
        "multiprocessors": profile.multiprocessors,
        "copy-engines": engines.copy,
        "decoders": engines.decoder,
        **{f"memory-slice-{slot}": 1 for slot in slots},
    }
    return {name: {"value": str(value)} for name, value in numbers.items()}


def _all_counters(model: catalog.GpuModel) -> Obj:
    """Returns the maximum of each capacity over all profiles, as NVIDIA's driver publishes it."""
    assert model.mig is not None
    profiles = model.mig.profiles
    numbers = {
        "memory": f"{max(profile.memory_mib or 0 for profile in profiles)}Mi",
        "multiprocessors": max(profile.multiprocessors or 0 for profile in profiles),
        "copy-engines": max(profile.engines.copy or 0 for profile in profiles),
        "decoders": max(profile.engines.decoder or 0 for profile in profiles),
        **{f"memory-slice-{slot}": 1 for slot in range(model.mig.memory_slices)},
    }
    return {name: {"value": str(value)} for name, value in numbers.items()}


def _device(name: str, attributes: Obj, counters: Obj, number: int) -> Obj:
    return {
        "name": name,
        "attributes": attributes,
        "capacity": {"memory": counters["memory"], "multiprocessors": counters["multiprocessors"]},
        "consumesCounters": [{"counterSet": f"gpu-{number}-counter-set", "counters": counters}],
    }
