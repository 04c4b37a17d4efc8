"""What the pictures show: two nodes, whole GPUs, partitions, shares, and pods that wait.

Nothing runs on simulated GPUs here, so what the claims use is made up, in the form in which an exporter answers.
"""

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from dra_driver.sim.cluster import Cluster
from dra_driver.sim.demo import demo
from dra_driver.usage.device_use import UseReport
from dra_driver.usage.exporter_answer import decode
from dra_driver.web.reading import SeenCluster

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
"""
_SHARES = (0.35, 0.82, 1.06, 0.15, 0.6, 0.91)


@contextmanager
def scene(root: Path, folder: Path) -> Iterator[Cluster]:
    """The cluster with its pods, as far as they run."""
    policy = folder / "inference-shares.yaml"
    policy.write_text(POLICY)
    with Cluster(NODES, policies=[policy]) as cluster:
        demo.apply_classes(cluster)
        for name in (*EXAMPLES, *WAITING):
            cluster.apply(root / "examples" / f"{name}.yaml")
        time.sleep(5)
        yield cluster


def made_use(seen: SeenCluster, beat: int) -> UseReport:
    """Use of every allocated device at this beat; decoded like the answer of an exporter."""
    parts = {
        (part.namespace, part.claim, part.device): part
        for node in seen.fleet.nodes
        for gpu in node.gpus
        for part in gpu.parts
    }
    uses = []
    for place, ((namespace, claim, device), part) in enumerate(sorted(parts.items())):
        share = _SHARES[place % len(_SHARES)] * (0.7 + 0.3 * ((beat + 3 * place) % 10) / 9)
        node = next(row.nodes[0] for row in seen.claims if (row.namespace, row.name) == (namespace, claim))
        answer = _answer(namespace, claim, device, int(part.memory_bytes * share))
        answer["claims"][0]["devices"][0]["percent"] = round(100 * min(1.0, share) * (0.5 + ((beat + place) % 7) / 14))
        uses += decode({**answer, "node": node}, node)[0]
    return UseReport(source="made up", window_s=900, uses=uses)


def _answer(namespace: str, claim: str, device: str, used: int) -> dict[str, Any]:
    measured: Mapping[str, Any] = {"device": device, "usedBytes": used, "peakBytes": used, "processes": 1}
    claims = [{"namespace": namespace, "name": claim, "devices": [dict(measured)]}]
    return {"version": 1, "time": "2026-01-01T00:00:00Z", "windowSeconds": 900, "claims": claims}
