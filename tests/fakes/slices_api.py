"""The API server's ResourceSlices in memory, with names, UIDs, versions, conflicts and dropped gated fields. ``writes``
records every write; every change reaches ``listeners`` as a watch event would."""

import itertools
from collections.abc import Callable, Mapping
from typing import Any

from dra_driver.core.errors import ConflictError, InvalidObjectError, KubernetesApiError, NotFoundError
from dra_driver.kube.reflector import ReflectorChange
from dra_driver.node.slices.diff import Delete, SliceBody
from dra_driver.sim.apiserver.jsonvalue import copy_json
from tests.fakes.dra_objects import wire


class FakeSlicesApi:
    """``failures`` are raised one per call; ``asked`` counts dry runs. ``drops`` are fields that are not kept, unless
    the old slice has one of the feature (kubernetes/kubernetes pkg/registry/resource/resourceslice/strategy.go).
    ``is_1_34``: counter sets are in the slices of their consumers."""

    def __init__(self) -> None:
        self.objects: dict[str, dict[str, Any]] = {}
        self.writes: list[tuple[str, str]] = []
        self.lists = 0
        self.asked = 0
        self.failures: list[KubernetesApiError] = []
        self.drops: set[str] = set()
        self.is_1_34 = False
        self.listeners: list[Callable[[ReflectorChange], None]] = []
        self.uid: str | None = "node-uid-1"
        self.during_write: Callable[[], None] = lambda: None
        self._counter = itertools.count(100)

    def list(self) -> list[Mapping[str, Any]]:
        self._maybe_fail()
        self.lists += 1
        return [copy_json(item) for _, item in sorted(self.objects.items())]

    def create(self, body: SliceBody, *, dry_run: bool = False) -> dict[str, Any]:
        self._maybe_fail()
        stored = self._stored(body)
        if dry_run:
            self.asked += 1
            return stored
        self.during_write()
        number = next(self._counter)
        name = str(body.metadata.get("name") or f"{str(body.metadata['generateName'])[:58]}{number:05d}")
        stored["metadata"] |= {"name": name, "uid": f"uid-{number}", "resourceVersion": str(number)}
        self.objects[name] = stored
        self.writes.append(("create", name))
        answer: dict[str, Any] = copy_json(stored)  # before listeners change the object again
        self._tell("added", name)
        return answer

    def update(self, body: SliceBody) -> dict[str, Any]:
        self._maybe_fail()
        self.during_write()
        name = str(body.metadata["name"])
        old = self._existing(name)
        if body.metadata["resourceVersion"] != old["metadata"]["resourceVersion"]:
            raise ConflictError("the object has been modified", status=409, reason="Conflict")
        stored = self._stored(body, old)
        stored["metadata"] |= {"uid": old["metadata"]["uid"], "resourceVersion": str(next(self._counter))}
        self.objects[name] = stored
        self.writes.append(("update", name))
        answer: dict[str, Any] = copy_json(stored)  # before listeners change the object again
        self._tell("modified", name)
        return answer

    def delete(self, slice_: Delete) -> None:
        self._maybe_fail()
        metadata = self._existing(slice_.name)["metadata"]
        if (slice_.uid, slice_.resource_version) != (metadata["uid"], metadata["resourceVersion"]):
            raise ConflictError("the precondition does not hold", status=409, reason="Conflict")
        self.writes.append(("delete", slice_.name))
        self.remove(slice_.name)

    def node_uid(self) -> str:
        self._maybe_fail()
        if self.uid is None:
            raise NotFoundError('nodes "node-a" not found', status=404, reason="NotFound")
        return self.uid

    # What others do:

    def remove(self, name: str) -> None:
        gone = self.objects.pop(name)
        self._tell("deleted", name, gone)

    def remove_all(self) -> None:
        for name in list(self.objects):
            self.remove(name)

    def edit(self, name: str, change: Callable[[dict[str, Any]], None]) -> None:
        change(self.objects[name])
        self.objects[name]["metadata"]["resourceVersion"] = str(next(self._counter))
        self._tell("modified", name)

    def add(self, body: dict[str, Any]) -> str:
        number = next(self._counter)
        item = copy_json(body)
        item["metadata"].setdefault("name", f"foreign-{number}")
        item["metadata"] |= {"uid": f"uid-{number}", "resourceVersion": str(number)}
        self.objects[item["metadata"]["name"]] = item
        self._tell("added", item["metadata"]["name"])
        return str(item["metadata"]["name"])

    def _stored(self, body: SliceBody, old: dict[str, Any] | None = None) -> dict[str, Any]:
        stored: dict[str, Any] = wire(body)
        in_use = _fields(old["spec"]) if old is not None else set()
        for field in self.drops:
            if not in_use & _TOGETHER.get(field, set()):
                for part in _parts(stored["spec"]):
                    part.pop(field, None)
        if len(stored["spec"].get("devices", [])) > 128:
            raise InvalidObjectError("spec.devices: Too many", status=422, reason="Invalid")
        problem = (_refused_by_1_34 if self.is_1_34 else _refused_by_1_35)(stored["spec"])
        if problem:
            raise InvalidObjectError(f"ResourceSlice is invalid: {problem}", status=422, reason="Invalid")
        return stored

    def _existing(self, name: str) -> dict[str, Any]:
        if name not in self.objects:
            raise NotFoundError(f'resourceslices "{name}" not found', status=404, reason="NotFound")
        return self.objects[name]

    def _maybe_fail(self) -> None:
        if self.failures:
            raise self.failures.pop(0)

    def _tell(self, kind: Any, name: str, item: dict[str, Any] | None = None) -> None:
        for listener in self.listeners:
            listener(ReflectorChange(kind, name, copy_json(item or self.objects.get(name))))


def _refused_by_1_35(spec: dict[str, Any]) -> str:
    both = "sharedCounters" in spec and "devices" in spec
    return "exactly one of `sharedCounters` and `devices` is required" if both else ""


def _refused_by_1_34(spec: dict[str, Any]) -> str:
    """Kubernetes 1.34 pkg/apis/resource/validation/validation.go, validateResourceSliceSpec and validateDevice."""
    devices = spec.get("devices", [])
    sets = {one["name"]: one["counters"] for one in spec.get("sharedCounters", [])}
    consumed = [taken for device in devices for taken in device.get("consumesCounters", [])]
    if any(taken["counters"].keys() - sets.get(taken["counterSet"], {}).keys() for taken in consumed):
        return "spec.devices: must reference a counterSet defined in the ResourceSlice sharedCounters"
    if sum(len(counters) for counters in sets.values()) > 32:
        return "spec.sharedCounters: the total number of shared counters must not exceed 32"
    if sum(len(taken["counters"]) for taken in consumed) > 1024:
        return "spec.devices: the total number of counters in devices must not exceed 1024"
    taints = [device.get("taints", []) for device in devices]
    if any(len(some) > 4 or any(taint["effect"] == "None" for taint in some) for some in taints):
        return "spec.devices: must have at most 4 taints, with the effect NoSchedule or NoExecute"
    return ""


_TOGETHER = {
    name: set(names)
    for names in (("sharedCounters", "consumesCounters"), ("taints",), ("allowMultipleAllocations", "requestPolicy"))
    for name in names
}


def _parts(spec: dict[str, Any]) -> list[dict[str, Any]]:
    devices = spec.get("devices", [])
    return [spec, *devices, *(capacity for device in devices for capacity in device.get("capacity", {}).values())]


def _fields(spec: dict[str, Any]) -> set[str]:
    return {field for part in _parts(spec) for field in part}
