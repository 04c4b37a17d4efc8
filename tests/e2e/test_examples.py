"""Every example reaches the state that its comments state, on a real cluster, and leaves nothing behind."""

from pathlib import Path

import pytest

from dra_driver.sim import expect
from tests.e2e.cluster import ROOT, RealCluster
from tests.e2e.scenario import reached

EXAMPLES = sorted((ROOT / "examples").glob("*.yaml"))


def test_there_are_examples() -> None:
    """A wrong path would make every test below vanish silently."""
    assert len(EXAMPLES) >= 11


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_example(cluster: RealCluster, namespace: str, path: Path) -> None:
    """State, number of GPUs, and in each log the very GPUs granted and no other."""
    with reached(cluster, path, namespace, expect.read(path)):
        logs = cluster.logs(namespace, phase="Succeeded")
        seen = {pod: len(expect.seen_gpus(log)) for pod, log in logs.items()}
        assert set(seen.values()) <= {1}, f"pods of a Job that did not see one GPU each: {seen}"
