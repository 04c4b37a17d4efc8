"""The examples from practice run on the embedded cluster, and their containers see what their first lines say."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from dra_driver.kube.published.listing import observed_devices
from dra_driver.sim.cluster import Cluster
from dra_driver.sim.demo import demo
from dra_driver.sim.demo.requirements import ClusterPool, group_examples, read_requirements
from dra_driver.sim.demo.scenario import Scenario
from tests.fakes.practice import PRACTICE, ROOT, for_embedded, needed_api

NODES = {"gpu-a": "2xa100-sxm4-40gb", "gpu-b": "2xh100-sxm5-80gb"}
# GPUs, and profiles of MIG devices, that each container sees.
SEEN = {
    "cronjob-nightly": (0, ("3g.40gb",)),
    "notebook-share": (1, ()),
    "statefulset-workers": (1, ()),
    "training-first-available": (2, ()),
    "triton-autoscaled-share": (1, ()),
    "triton-mig-slice": (0, ("1g.10gb",)),
    "triton-share": (1, ()),
    "triton-whole-gpu": (1, ()),
}
NOT_RUN = {"quota-on-classes"}  # the embedded cluster has no quotas
RUN = [path for path in PRACTICE if not needed_api(path) and path.stem not in NOT_RUN]
GROUPED = [path for group in group_examples(RUN).values() for path in group]


@pytest.fixture(scope="module")
def pool() -> Iterator[ClusterPool]:
    with ClusterPool(NODES, lambda started: started.apply(ROOT / demo.CLASSES)) as made:
        yield made


def test_every_example_is_run_or_known() -> None:
    assert {path.stem for path in RUN} == set(SEEN)


@pytest.mark.parametrize("path", GROUPED, ids=lambda path: path.stem)
def test_an_example_runs(pool: ClusterPool, path: Path, tmp_path: Path) -> None:
    """CronJobs as their Job, StatefulSets as their pods; probes, autoscalers and budgets have no part here."""
    cluster: Cluster = pool.cluster(read_requirements(path))
    reduced = tmp_path / path.name
    reduced.write_text(for_embedded(path), encoding="utf-8")
    scenario = Scenario(cluster.client, leftovers=cluster.leftovers, reach_s=30.0, delete_s=30.0)
    result = scenario.run(reduced, namespace=f"p-{path.stem}"[:63])
    assert result.problem is None
    seen = [observed_devices(container.log) for container in result.containers]
    found = {(len(item.gpus), tuple(part.profile for part in item.partitions)) for item in seen}
    assert found == {SEEN[path.stem]}
