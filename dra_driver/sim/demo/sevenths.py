"""Chapter: an A100 with MIG mode off, divided by a policy; seven unmodified pods with ``nvidia.com/mig-1g.5gb: 1``."""

from pathlib import Path
from typing import Final

from dra_driver.core.model.gpu_operation import DONE_EVENT
from dra_driver.sim.apiserver.kinds import EVENTS
from dra_driver.sim.cluster import Cluster
from dra_driver.sim.demo.chapter import Chapter, Say

NODES: Final = {"gpu-m": "1xa100-sxm4-40gb"}
POLICY: Final = Path("examples/policies/a100-sevenths.yaml")
NAMESPACE: Final = "demo-sevenths"
PROFILE: Final = "1g.5gb"
PARTS: Final = 7  # as in the policy


def run(cluster: Cluster, policy: Path, say: Say) -> str:
    """Run the chapter on a cluster of `NODES` without policies; returns the first unmet expectation, or ""."""
    chapter = _Sevenths(cluster, say, NAMESPACE)
    return chapter.run("--- an A100 becomes seven partitions for unmodified pods", lambda: chapter.play(policy))


class _Sevenths(Chapter):
    def play(self, policy: Path) -> None:
        (node,) = self.cluster.nodes
        self.expect(self._whole_only, "the GPU to be published whole, with MIG mode off")
        self.say(f"    MIG mode of the GPU of {node} is off, so it is published whole. Policy {POLICY} follows.\n")
        self.cluster.set_policies([policy])
        self.expect(self._sevenths_only, f"{PARTS} partitions of {PROFILE}")
        self.expect(lambda: None if self._result(node) else "no event", "the event that reports the change of MIG mode")
        self.say(f"    event of the node: {self._result(node)}\n")
        self.command("kubectl dra", "classes", "apply", *self.kubeconfig)
        limits = {"resources": {"limits": {f"nvidia.com/mig-{PROFILE}": "1"}}}
        names = [f"seventh-{number}" for number in range(1, PARTS + 1)]
        for name in names:
            self.create("v1", "Pod", name, {"containers": [{"name": "main", "image": "ubuntu:24.04", **limits}]})
        self.expect_ready(names, f"{PARTS} pods to run")
        self.say(f"    {PARTS} pods run, each on a partition of its own.\n")
        self.delete_pods(names)
        self.cluster.set_policies([])
        # The policy counts for some seconds more, in which it would switch MIG mode on again.
        self.expect(lambda: None if self._sevenths_only() else "it is in force", "the policy to end")
        self.command("kubectl dra", "gpu", "mig-mode", f"{node}/gpu-0", "off", *self.kubeconfig)
        self.expect(self._whole_only, "the GPU to be published whole again")

    def _result(self, node: str) -> str:
        events = (event for event in self.cluster.store.list(EVENTS).items if event["involvedObject"]["name"] == node)
        return next((str(event["message"]) for event in events if event["reason"] == DONE_EVENT), "")

    def _devices(self) -> list[str]:
        return [device["name"] for item in self.cluster.slices() for device in item["spec"].get("devices") or ()]

    def _whole_only(self) -> str | None:
        return None if self._devices() == ["gpu-0"] else f"devices {self._devices()}"

    def _sevenths_only(self) -> str | None:
        wanted = sorted(f"gpu-0-mig-1g5gb-19-{start}" for start in range(PARTS))
        return None if sorted(self._devices()) == wanted else f"devices {self._devices()}"
