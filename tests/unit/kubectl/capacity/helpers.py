"""Clusters for tests of capacity: nodes with whole GPUs and with shared GPUs."""

from collections.abc import Iterable, Sequence
from typing import Any

from dra_driver.core.command_line.table import TableColumn
from dra_driver.kube.state import ClusterState
from dra_driver.kubectl.capacity import CapacityReport
from dra_driver.kubectl.capacity.report import ModelCapacity, RequestCapacity
from tests.fakes.dra_objects import DRIVER, Obj, claim, gpu, node, resource_slice

H100 = "NVIDIA H100 80GB HBM3"


def whole(node_name: str, count: int = 8, **fields: Any) -> Obj:
    devices = [
        {**gpu(f"gpu-{number}", productName=H100, uuid=f"GPU-{node_name}-{number}"), **fields}
        for number in range(count)
    ]
    return resource_slice(node_name, *devices)


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
    names = dict.fromkeys(item["spec"]["nodeName"] for item in slices if item["spec"].get("nodeName"))
    return ClusterState(
        nodes=tuple(node(name) for name in names) if nodes is None else tuple(nodes),
        slices=tuple(slices),
        claims=tuple(claims),
    )


def only(report: CapacityReport) -> ModelCapacity:
    (model,) = report.models
    return model


def request(report: CapacityReport, label: str) -> RequestCapacity:
    return next(item for item in only(report).requests if item.request == label)


def cells(columns: Iterable[TableColumn[Any]], row: object) -> dict[str, str]:
    """The cells of a row by heading."""
    return {column.heading: column.cell(row) for column in columns}
