"""GpuPolicies and GpuNodes of fleets for tests, as API objects, and an API server that has them."""

import copy
from collections.abc import Iterable, Mapping
from typing import Any

from dra_driver.config.status import node_status
from dra_driver.controller.policy_status import NodePolicies, PolicyView, node_view, policy_view
from dra_driver.core.errors import ConflictError, KubernetesApiError, NotFoundError
from dra_driver.core.model.gpu_node import GpuNodeStatus, NodePolicy, PolicyOrigin, PolicyState


def policy_object(name: str = "pool", *, generation: int = 1, **status: Any) -> dict[str, Any]:
    metadata = {"name": name, "uid": f"uid-{name}", "generation": generation, "resourceVersion": "1"}
    found: dict[str, Any] = {"kind": "GpuPolicy", "metadata": metadata, "spec": {"priority": 1}}
    return {**found, "status": status} if status else found


def said(name: str = "pool", state: PolicyState = PolicyState.IN_FORCE, **more: Any) -> NodePolicy:
    """What a node of two GPUs says of a policy that is in force on both, but for ``more``."""
    given: dict[str, Any] = {"gpus": ("gpu-0", "gpu-1"), "generation": 1, "origin": PolicyOrigin.OBJECT} | more
    if state is PolicyState.IN_FORCE and "in_force" not in given:
        given["in_force"] = given["gpus"]
    return NodePolicy(name=name, state=state, **given)


def node_object(name: str, *policies: NodePolicy) -> dict[str, Any]:
    status = GpuNodeStatus(driver_name="gpu.nvidia.com", policies=policies)
    return {"metadata": {"name": name}, "status": node_status(status, "2026-11-22T12:00:00Z")}


def policy(name: str = "pool", **more: Any) -> PolicyView:
    view = policy_view(policy_object(name, **more))
    assert view is not None
    return view


def nodes(*objects: Mapping[str, Any]) -> list[NodePolicies]:
    return [view for item in objects if (view := node_view(item)) is not None]


class PolicyApi:
    """GpuPolicies with resource versions. ``writes`` are the names of those whose status was written."""

    def __init__(self, policies: Iterable[dict[str, Any]] = ()) -> None:
        self.objects = {item["metadata"]["name"]: item for item in policies}
        self.writes: list[str] = []
        self.failure: KubernetesApiError | None = None

    def update(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        name = path.removeprefix("/apis/gpu.dra-driver.io/v1alpha1/gpupolicies/").removesuffix("/status")
        self.writes.append(name)
        if self.failure is not None:
            raise self.failure
        if name not in self.objects:
            raise NotFoundError(path)
        stored = self.objects[name]
        if body["metadata"]["resourceVersion"] != stored["metadata"]["resourceVersion"]:
            raise ConflictError(path)
        version = str(int(stored["metadata"]["resourceVersion"]) + 1)
        metadata = {**stored["metadata"], "resourceVersion": version}
        self.objects[name] = copy.deepcopy({**stored, "metadata": metadata, "status": body["status"]})
        return self.objects[name]

    def views(self) -> list[PolicyView]:
        return [view for item in self.objects.values() if (view := policy_view(item)) is not None]
