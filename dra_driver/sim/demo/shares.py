"""Chapter: unmodified pods with ``nvidia.com/gpu.shared: 1`` share one T4; two, then eight run, and the ninth waits."""

from pathlib import Path
from typing import Final

from dra_driver.core.errors import RetryableError
from dra_driver.sim.cluster import Cluster
from dra_driver.sim.demo.chapter import Chapter, Say

NODES: Final = {"gpu-t": "1xt4-16gb"}
POLICY: Final = Path("examples/policies/t4-eighths.yaml")
NAMESPACE: Final = "demo-shares"
RESOURCE: Final = "nvidia.com/gpu.shared"
PARTS: Final = 8  # as in the policy
_OURS: Final = 'device.driver == "gpu.nvidia.com" && device.attributes["gpu.nvidia.com"].type == "gpu"'
_CLASS: Final = {
    "extendedResourceName": RESOURCE,
    "selectors": [{"cel": {"expression": f"{_OURS} && device.allowMultipleAllocations"}}],
}


def run(cluster: Cluster, say: Say) -> str:
    """Run the chapter on a cluster of `NODES` with `POLICY`; returns the first unmet expectation, or ""."""
    chapter = _Shares(cluster, say, NAMESPACE)
    return chapter.run("--- unmodified pods share one T4", chapter.play)


class _Shares(Chapter):
    def play(self) -> None:
        self.say(f"    Policy {POLICY} divides the GPU into {PARTS} default shares. The pods request {RESOURCE}: 1.\n")
        self.create("resource.k8s.io/v1", "DeviceClass", "shared.gpu.nvidia.com", dict(_CLASS))
        names = [f"share-{number}" for number in range(1, PARTS + 2)]
        limits = {"resources": {"limits": {RESOURCE: "1"}}}
        for first, last in ((0, 2), (2, PARTS)):
            for name in names[first:last]:
                self.create("v1", "Pod", name, {"containers": [{"name": "main", "image": "ubuntu:24.04", **limits}]})
            self.expect_ready(names[:last], f"{last} pods to run")
            self.say(f"    {last} pods run.\n")
        self.create("v1", "Pod", names[-1], {"containers": [{"name": "main", "image": "ubuntu:24.04", **limits}]})
        arguments = ("explain", f"pod/{names[-1]}", "-n", self.namespace, *self.kubeconfig)
        if "not enough memory" not in self.command("kubectl dra", *arguments, statuses=(1,)):
            raise RetryableError("explain does not name the memory that the ninth pod lacks")
        self.delete_pods(names)
