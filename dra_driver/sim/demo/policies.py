"""Chapter: apply a GpuPolicy as an object, show its outcome, delete it. Examples run between the three parts, because
nodes and the controller report a few seconds later, and a deleted policy counts for five more seconds."""

import json
from collections.abc import Mapping
from typing import Final

from dra_driver.core.errors import RetryableError
from dra_driver.kube.devices import attribute_text
from dra_driver.sim.apiserver.jsonvalue import Obj, dig, entries
from dra_driver.sim.apiserver.kind import ResourceKind
from dra_driver.sim.apiserver.kinds import GPU_NODES, GPU_POLICIES
from dra_driver.sim.cluster import DRIVER, Cluster
from dra_driver.sim.demo.chapter import Chapter, Say
from dra_driver.sim.node.node_process import ControllerSubprocess

TITLE: Final = "--- a policy as an object"
NAME: Final = "vision"
_TEAM: Final = {"name": "team", "string": "vision"}


class PolicyChapter(Chapter):
    """`apply`, `show_outcome` and `restored` in this order, each once, with a running controller inside the context.
    The policy is for one GPU, which claims may still have whole. ``problem`` is the first unmet expectation, "" without
    one; the parts after it only delete the policy."""

    def __init__(self, cluster: Cluster, say: Say) -> None:
        super().__init__(cluster, say, "")
        self._controller = ControllerSubprocess(cluster.kubeconfig, cluster.folder / "policies-controller.log")
        self._node, self._gpu, self._uuid = "", "", ""
        self._before: dict[str, Obj] = {}

    def __enter__(self) -> "PolicyChapter":
        self._controller.start()
        return self

    def __exit__(self, *_exc: object) -> None:
        self._controller.stop()

    def apply(self) -> None:
        self.part(f"{TITLE}: a GpuPolicy changes the published devices", self._apply)

    def show_outcome(self) -> None:
        """Expect that the node and the controller report the policy in force, show both tables, and delete it."""
        self.part(f"{TITLE}: kubectl shows its outcome", self._show)
        self.cluster.client.delete(GPU_POLICIES, NAME, "")
        self._controller.ask_to_stop()
        if not self.problem:
            self.say(f"$ kubectl delete gpupolicy {NAME}\n    It counts for five more seconds; examples continue.\n")

    def restored(self) -> None:
        self.part(f"{TITLE}: the policy is deleted", self._restored)

    def _apply(self) -> None:
        self._node, self._gpu, self._uuid = last_gpu(self.cluster.slices())
        self._before = self._offer()
        policy = policy_for(self._uuid)
        self.say(f"$ kubectl apply -f {NAME}.yaml    # spec: {json.dumps(policy['spec'])}")
        self.cluster.client.create(policy, "")
        self.expect(lambda: unlike_policy(self._offer(), self._gpu), "the GPU to be published as the policy says")
        self.say(f"    before   {self._described(self._before)}")
        self.say(f"    now      {self._described(self._offer())}\n")

    def _show(self) -> None:
        self.expect(lambda: not_said_by_node(self._found(GPU_NODES, self._node), self._gpu), "the GpuNode")
        self.expect(lambda: not_said_by_status(self._found(GPU_POLICIES, NAME)), "the status of the policy")
        for kind in (GPU_NODES, GPU_POLICIES):
            self.show(kind, self.cluster.store.list(kind).items)

    def _restored(self) -> None:
        def changed() -> str | None:
            offer = self._offer()
            return None if offer == self._before else f"it is {self._described(offer)}"

        self.expect(changed, "the GPU to be published as before the policy")
        self.say(f"    again    {self._described(self._offer())}\n")

    def _found(self, kind: ResourceKind, name: str) -> Obj:
        return self.cluster.client.find(kind, name, "") or {}

    def _offer(self) -> dict[str, Obj]:
        return offer_of(self.cluster.slices(self._node), self._uuid)

    def _described(self, offer: Mapping[str, Obj]) -> str:
        whole = offer.get(self._gpu)
        forms = ["whole"] if whole is not None else []
        if parts := len(offer) - len(forms):
            forms.append(f"as one of {parts} MIG devices")
        team = _text(whole or {}, "team")
        described = f"{self._gpu} of {self._node}: {' or '.join(forms) or 'not published'}"
        return f"{described}, team={team}" if team else described


def last_gpu(slices: list[Obj]) -> tuple[str, str, str]:
    """Node, device name and UUID of the last whole GPU of the last node. Raises RetryableError if there is none."""
    found = [
        (str(item["spec"]["nodeName"]), str(device["name"]), _text(device, "uuid"))
        for item in slices
        for device in entries(item, "spec", "devices")
        if _text(device, "type") == "gpu"
    ]
    if not found:
        raise RetryableError("no node publishes a whole GPU, expected one for the policy", reason="NoWholeGpu")
    return max(found)


def policy_for(uuid: str) -> Obj:
    return {
        "apiVersion": "gpu.dra-driver.io/v1alpha1",
        "kind": "GpuPolicy",
        "metadata": {"name": NAME},
        "spec": {"select": {"uuids": [uuid]}, "priority": 10, "forms": {"migProfiles": []}, "attributes": [_TEAM]},
    }


def offer_of(slices: list[Obj], uuid: str) -> dict[str, Obj]:
    return {
        str(device["name"]): device
        for item in slices
        for device in entries(item, "spec", "devices")
        if uuid in (_text(device, "uuid"), _text(device, "parentUUID"))
    }


def unlike_policy(offer: Mapping[str, Obj], gpu: str) -> str | None:
    """Return the difference between the published devices and the policy; None if they match."""
    if set(offer) != {gpu}:
        return f"expected {gpu} alone, found {', '.join(sorted(offer)) or 'nothing'}"
    team = _text(offer[gpu], "team")
    return None if team == _TEAM["string"] else f"expected team={_TEAM['string']}, found {team or 'no team'}"


def not_said_by_node(node: Obj, gpu: str) -> str | None:
    """Return the missing entry of a GpuNode that reports the policy as in force on the GPU."""
    policies = entries(node, "status", "policies")
    found = next((policy for policy in policies if policy.get("name") == NAME), None)
    if found is None:
        return f"it does not have the policy {NAME}"
    said = (found.get("state"), found.get("gpus"))
    return None if said == ("InForce", [gpu]) else f"expected InForce on {gpu}, found {said}"


def not_said_by_status(policy: Obj) -> str | None:
    """Return the difference from a status with the policy in force on one GPU and refused by no node."""
    fields = (("selected", "gpus", 1), ("inForce", "gpus", 1), ("refused", "nodes", 0), ("conflicting", "gpus", 0))
    found = {name: dig(policy, "status", name, what, default=None) for name, what, _ in fields}
    wrong = [f"{name} is {found[name]}, expected {wanted}" for name, _, wanted in fields if found[name] != wanted]
    return "; ".join(wrong) or None


def _text(device: Obj, attribute: str) -> str:
    return attribute_text(device.get("attributes"), DRIVER, attribute)
