"""One GPU whole, as partitions and as shares, in the embedded cluster with real node processes.

The hardware, the API server and the kubelet are simulated. Allocated, created, mounted and listed devices must agree,
and nothing may be left.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest

from dra_driver.sim.cluster import Cluster
from dra_driver.sim.demo.demo import CLASSES, checkout
from dra_driver.sim.demo.requirements import ClusterPool, read_requirements
from dra_driver.sim.demo.scenario import ExampleResult, Scenario

HEADER = "# cluster: gpu-a=1xh100-sxm5-80gb\n"
POLICY = """\
apiVersion: gpu.dra-driver.io/v1alpha1
kind: GpuPolicy
metadata: {name: shared}
spec:
  sharing: {strategy: %s}
"""
CLASS = """\
apiVersion: resource.k8s.io/v1
kind: DeviceClass
metadata: {name: %(name)s}
spec:
  extendedResourceName: %(resource)s
  selectors:
  - cel: {expression: 'device.driver == "gpu.nvidia.com" && %(fits)s'}
---
"""
POD = """\
apiVersion: v1
kind: Pod
metadata: {name: %(name)s}
spec:
  terminationGracePeriodSeconds: 1
  containers:
  - {name: main, image: ubuntu, resources: {limits: {%(resource)s: 1}}}
---
"""
SHARE = """\
apiVersion: resource.k8s.io/v1
kind: ResourceClaim
metadata: {name: %(name)s}
spec:
  devices:
    requests:
    - name: gpu
      exactly:
        deviceClassName: gpu.nvidia.com
        capacity: {requests: {memory: %(memory)s, computePercent: 25}}
---
apiVersion: v1
kind: Pod
metadata: {name: %(name)s}
spec:
  terminationGracePeriodSeconds: 1
  containers:
  - {name: main, image: ubuntu, resources: {claims: [{name: gpu}]}}
  resourceClaims: [{name: gpu, resourceClaimName: %(name)s}]
---
"""
OURS = 'device.attributes["gpu.nvidia.com"]'
GPU_CLASS = CLASS % {"name": "gpus", "resource": "nvidia.com/gpu", "fits": f'{OURS}.type == "gpu"'}
# The type first: a whole GPU has no profile, and an attribute that is not there ends the attempt.
SLICE = f'{OURS}.type == "mig" && {OURS}.profile == "1g.10gb"'
MIG_CLASS = CLASS % {"name": "slices", "resource": "nvidia.com/mig-1g.10gb", "fits": SLICE}


@pytest.fixture(scope="module")
def pool() -> Iterator[ClusterPool]:
    """One cluster at a time."""
    with ClusterPool({"gpu-a": "1xl4-24gb"}, lambda cluster: cluster.apply(checkout() / CLASSES)) as made:
        yield made


def tmp_name(folder: Path) -> str:
    """A namespace of the test's own: the last test's one may still be terminating."""
    return folder.name.replace("_", "-")[:50]


def play(pool: ClusterPool, folder: Path, text: str) -> tuple[ExampleResult, Cluster]:
    """Run an example with this text on the cluster that it requires."""
    path = folder / "example.yaml"
    path.write_text(text)
    cluster = pool.cluster(read_requirements(path))
    scenario = Scenario(cluster.client, leftovers=cluster.leftovers, reach_s=20.0, delete_s=20.0)
    return scenario.run(path, namespace=f"forms-{tmp_name(folder)}"), cluster


def test_seven_mig_devices_by_extended_resources(pool: ClusterPool, tmp_path: Path) -> None:
    """Seven pods have a MIG device each; an eighth and a pod for the whole GPU wait; afterwards the GPU is restored."""
    names = [f"p{at}" for at in range(8)]
    expected = [f"# expect: pod/{name} Running sees 1 MIG device\n" for name in names[:7]]
    expected.append("# expect: pod/p7 Pending\n# expect: pod/whole Pending\n")
    expected.append(f"# expect: pods {' '.join(names[:7])} different MIG devices\n")
    expected.append(f"# expect: pods {' '.join(names[:7])} same GPU\n")
    pods = [POD % {"name": name, "resource": "nvidia.com/mig-1g.10gb"} for name in names]
    pods.append(POD % {"name": "whole", "resource": "nvidia.com/gpu"})
    result, _ = play(pool, tmp_path, HEADER + "".join(expected) + GPU_CLASS + MIG_CLASS + "".join(pods))
    assert result.problem is None


def test_whole_gpu_after_mig_devices(pool: ClusterPool, tmp_path: Path) -> None:
    """On the same cluster: MIG mode was switched off with the last MIG device, so the whole GPU can be allocated."""
    text = HEADER + "# expect: pod/whole Running sees 1 GPU\n" + GPU_CLASS
    result, _ = play(pool, tmp_path, text + POD % {"name": "whole", "resource": "nvidia.com/gpu"})
    assert result.problem is None


def test_memory_shares_under_mps(pool: ClusterPool, tmp_path: Path) -> None:
    """Three pods share one GPU with limits of 10, 20 and 30 GiB; the daemon stops with the last of them."""
    (tmp_path / "mps.yaml").write_text(POLICY % "MPS")
    names = {"ten": 10, "twenty": 20, "thirty": 30}
    expected = [
        f"# expect: pod/{name} Running sees 1 GPU\n"
        f"# expect: pod/{name} logs CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=0={gib * 1024}M\n"
        f"# expect: pod/{name} logs CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=25\n"
        f"# expect: pod/{name} logs CUDA_MPS_PIPE_DIRECTORY=/tmp/nvidia-mps\n"
        for name, gib in names.items()
    ]
    expected.append("# expect: pods ten twenty thirty same GPU\n# expect: pod/over Pending\n")
    shares = [SHARE % {"name": name, "memory": f"{gib}Gi"} for name, gib in {**names, "over": 30}.items()]
    result, cluster = play(pool, tmp_path, HEADER + "# policy: mps.yaml\n" + "".join(expected) + "".join(shares))
    assert result.problem is None
    assert cluster.nodes["gpu-a"].mps_host.is_running


def test_time_slices_need_no_daemon(pool: ClusterPool, tmp_path: Path) -> None:
    """Two pods take turns; their containers have no MPS variables."""
    (tmp_path / "turns.yaml").write_text(POLICY % "TimeSlicing")
    expected = "# expect: pod/a Running sees 1 GPU\n# expect: pod/b Running sees 1 GPU\n# expect: pods a b same GPU\n"
    shares = [SHARE % {"name": name, "memory": "8Gi"} for name in ("a", "b")]
    result, _ = play(pool, tmp_path, HEADER + "# policy: turns.yaml\n" + expected + "".join(shares))
    assert result.problem is None
    assert all("CUDA_MPS" not in container.log for container in result.containers)


def test_an_example_without_requirements_runs_on_the_default_nodes(pool: ClusterPool, tmp_path: Path) -> None:
    """The pool returns to its own nodes, without policies."""
    text = (
        "# expect: pod/whole Running sees 1 GPU\n" + GPU_CLASS + POD % {"name": "whole", "resource": "nvidia.com/gpu"}
    )
    result, cluster = play(pool, tmp_path, text)
    assert result.problem is None
    assert "NVIDIA L4" in result.containers[0].log
    assert not list(cluster.policies.iterdir())
