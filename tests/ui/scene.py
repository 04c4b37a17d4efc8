"""The cluster of the pictures: two nodes, whole GPUs, partitions, shares of which one is over its grant, waiting
pods."""

import json
import math
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

from dra_driver.sim.cluster import Cluster
from dra_driver.sim.demo import demo

NODES = {"gpu-a": "4xa100-sxm4-40gb", "gpu-b": "8xh100-sxm5-80gb"}
EXAMPLES = (
    "shared-mps-three-pods",
    "mig-slice-by-profile",
    "mig-two-slices-one-gpu",
    "one-gpu",
    "two-gpus-one-request",
)
WAITING = ("no-match-stays-pending",)
POLICY = """\
apiVersion: gpu.dra-driver.io/v1alpha1
kind: GpuPolicy
metadata:
  name: inference-shares
spec:
  select:
    nodeNames: ["gpu-b"]
    minors: [0, 1]
  sharing:
    strategy: MPS
    maxShares: 8
  usage:
    overGrant: {action: Report, overheadPerProcess: 512Mi}
"""
USED = {
    "share-small": (8.5, 35),
    "share-medium": (23.0, 80),
    "share-large": (14.0, 20),
    "slice": (6.0, 12),
    "twins": (3.0, 20),
    "one-gpu": (31.0, 95),
    "two-gpus": (24.0, 60),
}  # giB and percent, by the name of the claim's template; a claim without an entry uses nothing
STEP_S, STEPS = 2, 30
_ANNOTATION = "sim.gpu.dra-driver.io/usage"


@contextmanager
def scene(root: Path, folder: Path, *, usage: bool = False) -> Iterator[Cluster]:
    policy = folder / "inference-shares.yaml"
    policy.write_text(POLICY)
    with Cluster(NODES, policies=[policy], usage=usage) as cluster:
        demo.apply_classes(cluster)
        for name in (*EXAMPLES, *WAITING):
            cluster.apply(_with_use(root / "examples" / f"{name}.yaml", folder))
        time.sleep(5)
        yield cluster


def _with_use(example: Path, folder: Path) -> Path:
    objects = list(yaml.safe_load_all(example.read_text()))
    for each in objects:
        used = USED.get(each["metadata"]["name"]) if each["kind"] == "ResourceClaimTemplate" else None
        if used:
            annotations = {_ANNOTATION: json.dumps(list(_steps(*used)))}
            each["spec"]["metadata"] = {"annotations": annotations}
    manifest = folder / example.name
    manifest.write_text(yaml.safe_dump_all(objects))
    return manifest


def _steps(gib: float, percent: int) -> Iterator[Mapping[str, Any]]:
    for step in range(STEPS):
        wave = math.sin(step * 0.7 + gib)
        memory = f"{int(1024 * gib * (1 + 0.08 * wave))}Mi"
        used = min(100, round(percent * (1 + 0.3 * wave)))
        yield {"after": f"{STEP_S * step}s", "memory": memory, "utilization": used}
