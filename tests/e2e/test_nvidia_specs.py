"""Claims written for NVIDIA's own driver work unchanged.

The specs are tests/bats/specs/gpu-*.yaml of NVIDIA's public DRA driver repository, taken from the folder in
E2E_NVIDIA_SPECS and applied as they are; what each has to reach is stated here.
"""

import os
import re
from pathlib import Path

import pytest

from dra_driver.sim import expect
from tests.e2e.cluster import RealCluster
from tests.e2e.scenario import reached

FOLDER = os.environ.get("E2E_NVIDIA_SPECS")
_LISTED = re.compile(r"GPU \d+: ")

SPECS = {
    "gpu-simple-full": ["pod/pod-full-gpu Running sees 1 GPU"],
    "gpu-2pods-2gpus": [
        "pod/pod1 Running sees 1 GPU",
        "pod/pod2 Running sees 1 GPU",
        "pods pod1 pod2 different GPUs",
    ],
    "gpu-2pods-1gpu": [
        "pod/pod1 Running sees 1 GPU",
        "pod/pod2 Running sees 1 GPU",
        "pods pod1 pod2 same GPU",
    ],
    "gpu-1pod-2cnt-1gpu": ["pod/pod1 Running sees 1 GPU", "containers pod1/ctr0 pod1/ctr1 same GPU"],
    "gpu-two-claims-one-pod": ["pod/pod-two-claims Running sees 2 GPUs"],
    "gpu-job-rct": ["job/gpu-job-rct Complete"],
    "gpu-job-rct-parallel": ["deployment/gpu-deploy-parallel Available"],
    "gpu-cel-nomatch": ["pod/pod-cel-nomatch Pending"],
}
# How many pods each has, and how many lines of `nvidia-smi -L` all their first containers print together.
PODS_AND_LINES = {
    "gpu-simple-full": (1, 1),
    "gpu-2pods-2gpus": (2, 2),
    "gpu-2pods-1gpu": (2, 2),
    "gpu-1pod-2cnt-1gpu": (1, 1),
    "gpu-two-claims-one-pod": (1, 2),
    "gpu-job-rct": (2, 2),
    "gpu-job-rct-parallel": (2, 2),
    "gpu-cel-nomatch": (1, 0),
}


@pytest.fixture
def spec(request: pytest.FixtureRequest) -> Path:
    if not FOLDER:
        pytest.skip("E2E_NVIDIA_SPECS does not name a folder with NVIDIA's specs")
    return Path(FOLDER) / f"{request.param}.yaml"


@pytest.mark.parametrize("spec", SPECS, indirect=True)
def test_nvidia_spec(spec: Path, cluster: RealCluster, namespace: str) -> None:
    """The state that it is written for, with as many GPUs as it asks for, and not one line more in its logs."""
    with reached(cluster, spec, namespace, [expect.parse(text) for text in SPECS[spec.stem]]):
        pods, lines = PODS_AND_LINES[spec.stem]
        assert len(cluster.pods(namespace)) == pods
        logs = cluster.logs(namespace) if lines else {}
        listed = [line for log in logs.values() for line in log.splitlines() if _LISTED.match(line)]
        assert len(listed) == lines, logs
        if spec.stem == "gpu-job-rct-parallel":
            assert len({uuid for log in logs.values() for uuid in expect.seen_gpus(log)}) == 2, logs
        if spec.stem == "gpu-job-rct":
            assert all(log.endswith("GPU Job completed successfully\n") for log in logs.values()), logs
