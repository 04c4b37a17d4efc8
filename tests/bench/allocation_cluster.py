"""Clusters for measuring allocation, as the JSON of an API server: H100 nodes as this driver publishes them."""

import json
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from typing import Any

from dra_driver.kube.state import ClusterState
from tests.fakes import dra_objects, published
from tests.fakes.dra_objects import DRIVER, Obj

GPUS = 8


def node(index: int) -> Obj:
    return dra_objects.node(f"node-{index}", zone="a")


def classes() -> list[Obj]:
    return published.classes()


def claim(class_name: str = DRIVER, expression: str = "", count: int = 1) -> Obj:
    request = dra_objects.exactly("gpu", *([expression] if expression else []), deviceClassName=class_name, count=count)
    wanted = dra_objects.claim("claim", request)
    wanted["metadata"]["uid"] = "u"
    return wanted


def holding(node_index: int, *devices: str) -> Obj:
    name = f"held-{node_index}"
    metadata = {"name": name, "namespace": "default", "uid": name}
    return dra_objects.allocated({"metadata": metadata}, *devices, node_name=f"node-{node_index}")


@cache
def _slices(mig: bool) -> tuple[str, list[str]]:
    """The slices of node ``a`` as JSON, and the UUIDs of its GPUs."""
    found = published.slices(GPUS)
    whole = [each for item in found for each in item["spec"].get("devices", ()) if each["name"].count("-") == 1]
    uuids = [each["attributes"]["uuid"]["string"] for each in whole]
    if not mig:
        devices = [{key: value for key, value in each.items() if key != "consumesCounters"} for each in whole]
        found = [dra_objects.resource_slice(published.NODE, *devices)]
    return json.dumps(found), uuids


def slices(node_index: int, *, mig: bool) -> Iterator[str]:
    text, uuids = _slices(mig)
    for minor, uuid in enumerate(uuids):
        text = text.replace(uuid, f"GPU-{node_index:08x}-ce1e-3b6e-6cc1-{minor:012x}")
    for item in json.loads(text):
        name = f"node-{node_index}"
        item["metadata"]["name"] += f"-{name}"
        item["spec"]["nodeName"], item["spec"]["pool"]["name"] = name, f"{name}/{DRIVER}"
        yield json.dumps(item)


def state(nodes: int, **parts: Any) -> ClusterState:
    """Nodes with partitions on."""
    return ClusterState(
        nodes=tuple(node(index) for index in range(nodes)),
        slices=tuple(json.loads(text) for index in range(nodes) for text in slices(index, mig=True)),
        classes=tuple(classes()),
        server_version="v1.36.2",
        **parts,
    )


def held(nodes: Iterable[int]) -> tuple[Obj, ...]:
    """A claim for each of these nodes that has all its GPUs."""
    every = [f"gpu-{minor}" for minor in range(GPUS)]
    return tuple(holding(index, *every) | {"spec": {"devices": {}}} for index in nodes)


class SharedParts:
    """Make equal parts of devices one object, by ``json.loads(text, object_pairs_hook=parts.join)``: else a thousand
    nodes take 1.5 GiB, which hides the memory of the allocator. Objects read this way must not be changed."""

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
