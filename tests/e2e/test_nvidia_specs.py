"""Claims written for NVIDIA's own driver work unchanged.

The specs are read from the folder in E2E_NVIDIA_SPECS and applied unchanged; `nvidia_specs` has the expected results.
"""

import os
import re
from pathlib import Path

import pytest

from dra_driver.sim.client import load
from dra_driver.sim.demo.expectations import parse_expectation
from dra_driver.sim.demo.requirements import Requirements
from tests.e2e.cluster import RealCluster
from tests.e2e.gates import gates_of
from tests.e2e.host import Host
from tests.e2e.nvidia_specs import SPECS, View
from tests.e2e.scenario import check_partitions, reached

FOLDER = os.environ.get("E2E_NVIDIA_SPECS")
_LISTED = re.compile(r"GPU \d+: ")
# Those with the same needs follow each other, so that GPUs and policies are changed seldom.
ORDER = sorted(SPECS, key=lambda name: str(SPECS[name].requirements))


@pytest.fixture
def requirements(name: str) -> Requirements:
    if not FOLDER:
        pytest.skip("E2E_NVIDIA_SPECS does not name a folder with NVIDIA's specs")
    return SPECS[name].requirements


def marked(name: str) -> pytest.MarkDecorator:
    """With the feature gates that the spec's objects need."""
    return pytest.mark.needs(*(gates_of(load(Path(FOLDER) / f"{name}.yaml")) if FOLDER else ()))


@pytest.mark.parametrize("name", [pytest.param(name, marks=marked(name)) for name in ORDER])
def test_nvidia_spec(name: str, cluster: RealCluster, host: Host | None, namespace: str) -> None:
    """The expected state, with exactly as many GPUs in the logs as it requests.

    After its deletion, GPUs are whole, modes and time slices as before, and no MPS daemon runs (see namespace).
    """
    spec, path = SPECS[name], Path(str(FOLDER)) / f"{name}.yaml"
    with reached(cluster, path, namespace, [parse_expectation(text) for text in spec.reaches]) as home:
        assert len(cluster.pods(home)) == spec.pods
        logs = cluster.logs(home) if spec.lines else {}
        listed = [line for log in logs.values() for line in log.splitlines() if _LISTED.match(line)]
        assert len(listed) == spec.lines, logs
        if host is not None:
            check_partitions(cluster, host.hardware, home)
            if spec.check is not None:
                spec.check(View(cluster=cluster, namespace=home, hardware=host.hardware))
