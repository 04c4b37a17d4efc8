"""What the controller keeps of GpuPolicies and GpuNodes. Pure.

Of a node only what it says of policies that are objects: the fleet may have thousands of nodes, and files of nodes have
no object whose status could be written.
"""

from collections.abc import Mapping
from typing import Any

from msgspec import Struct

from dra_driver.config.status import node_status_of
from dra_driver.core.model.gpu_node import NodePolicy, PolicyOrigin


class PolicyView(Struct, frozen=True, kw_only=True):
    """One GpuPolicy. ``written`` is the object as it was read, which a write of its status sends back."""

    name: str
    uid: str
    generation: int
    written: Mapping[str, Any]

    @property
    def status(self) -> Mapping[str, Any]:
        status = self.written.get("status")
        return status if isinstance(status, Mapping) else {}


class NodePolicies(Struct, frozen=True, kw_only=True):
    """What one node says of the policies that are objects, by name."""

    name: str
    policies: Mapping[str, NodePolicy]


def policy_view(item: Mapping[str, Any]) -> PolicyView | None:
    """From the API object; None for one that is malformed."""
    metadata = item.get("metadata")
    if not isinstance(metadata, Mapping) or not isinstance(metadata.get("name"), str):
        return None
    generation = metadata.get("generation")
    return PolicyView(
        name=metadata["name"],
        uid=str(metadata.get("uid") or ""),
        generation=generation if isinstance(generation, int) and not isinstance(generation, bool) else 0,
        written={**item, "metadata": {key: value for key, value in metadata.items() if key != "managedFields"}},
    )


def node_view(item: Mapping[str, Any]) -> NodePolicies | None:
    """From the API object; None for one that says nothing of policies."""
    metadata, status = item.get("metadata"), node_status_of(item)
    if status is None or not isinstance(metadata, Mapping):
        return None
    found = {policy.name: policy for policy in status.policies if policy.origin is PolicyOrigin.OBJECT}
    return NodePolicies(name=str(metadata.get("name") or ""), policies=found)
