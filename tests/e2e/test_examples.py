"""Every example meets the expectations in its comments on a real cluster, and leaves nothing behind."""

from pathlib import Path

import pytest

from dra_driver.kube.published.listing import observed_devices
from dra_driver.sim.demo.expectations import read_expectations
from dra_driver.sim.demo.requirements import Requirements, group_examples, read_requirements
from dra_driver.sim.loop import load
from tests.e2e.cluster import ROOT, RealCluster
from tests.e2e.forms import check_partitions, reached
from tests.e2e.gates import gates_of
from tests.e2e.host import Host

# Those with the same needs follow each other, so that GPUs and policies are changed seldom.
FOUND = sorted((ROOT / "examples").glob("*.yaml"))
EXAMPLES = [path for group in group_examples(FOUND).values() for path in group]


def test_there_are_examples() -> None:
    """With a wrong path, the tests below would have no parameters and pass."""
    assert len(EXAMPLES) >= 11


@pytest.fixture
def requirements(path: Path) -> Requirements:
    return read_requirements(path)


@pytest.mark.parametrize(
    "path", [pytest.param(path, id=path.stem, marks=pytest.mark.needs(*gates_of(load(path)))) for path in EXAMPLES]
)
def test_example(cluster: RealCluster, host: Host | None, namespace: str, path: Path) -> None:
    with reached(cluster, path, namespace, read_expectations(path)) as home:
        logs = cluster.logs(home, phase="Succeeded")
        seen = {pod: len(observed_devices(log).listed) for pod, log in logs.items()}
        assert set(seen.values()) <= {1}, f"pods of a Job that did not see one GPU each: {seen}"
        if host is not None:
            check_partitions(cluster, host.hardware, home)
