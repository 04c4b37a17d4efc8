"""Every example, and those from practice, meet the expectations in their comments and leave nothing."""

import sys
from collections.abc import Iterator
from pathlib import Path
from subprocess import run

import pytest

from dra_driver.kube.connection import Connection
from dra_driver.kube.published.listing import observed_devices
from dra_driver.kube.rest import RestClient
from dra_driver.sim.cluster import Cluster
from dra_driver.sim.demo import demo
from dra_driver.sim.demo.requirements import ClusterPool, Requirements, group_examples, read_requirements
from dra_driver.sim.demo.scenario import Scenario
from tests.fakes.practice import PRACTICE, WORKLOADS, for_embedded, needed_api, without_operators
from tests.harness.servers import RestClusterClient
from tests.harness.shown import holds
from tests.scenario.conftest import NODES, ROOT

# Examples that need the same cluster follow each other, so that each is started once.
EXAMPLES = [path for group in group_examples(sorted((ROOT / "examples").glob("*.yaml"))).values() for path in group]


@pytest.fixture(scope="module")
def pool() -> Iterator[ClusterPool]:
    with ClusterPool(NODES, lambda started: started.apply(ROOT / demo.CLASSES)) as made:
        yield made


@pytest.fixture
def cluster(pool: ClusterPool) -> Cluster:
    return pool.cluster(Requirements())


def test_there_are_examples() -> None:
    """With a wrong path, the tests below would have no parameters and pass."""
    assert len(EXAMPLES) >= 11


def test_examples_run_over_the_network_too(cluster: Cluster) -> None:
    client = RestClusterClient(RestClient(Connection.load(str(cluster.kubeconfig))))
    scenario = Scenario(client, leftovers=cluster.leftovers, reach_s=20.0, delete_s=20.0)
    result = scenario.run(ROOT / "examples" / "two-containers-one-claim.yaml", namespace="over-rest")
    assert result.problem is None
    assert [container.log for container in result.containers] == [result.containers[0].log] * 2


def test_the_readme_shows_what_the_demo_prints_of_an_example(cluster: Cluster) -> None:
    told: list[str] = []
    demo.run_examples(cluster, [ROOT / "examples" / "two-gpus-one-request.yaml"], told.append)
    holds("README.md", "make demo     # of two-gpus-one-request.yaml", told[0], masked=r"\d\.\d+ s|claim=[0-9a-f-]{36}")


def test_an_example_with_an_unmet_expectation_fails(cluster: Cluster, tmp_path: Path) -> None:
    text = (ROOT / "examples" / "one-gpu.yaml").read_text().replace("sees 1 GPU", "sees 2 GPUs")
    wrong = tmp_path / "wrong.yaml"
    wrong.write_text(text)
    result = Scenario(cluster.client, leftovers=cluster.leftovers, reach_s=1.0).run(wrong, namespace="wrong")
    assert result.problem is not None
    assert "its containers see 1 GPUs, expected 2" in result.problem


@pytest.mark.slow
@pytest.mark.timeout(420)
def test_the_demo_succeeds() -> None:
    command = [sys.executable, "-m", "dra_driver.core.command_line.main", "sim", "demo", "--root", str(ROOT)]
    done = run(command, capture_output=True, text=True, timeout=400, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    count = len(EXAMPLES) + 1  # the chapter about a policy counts as one
    assert f"{count} of {count} examples met their expectations" in done.stdout
    assert "pod/notebook Running sees 1 MIG device of profile 1g.10gb\n" in done.stdout
    assert "$ kubectl get gpunodes" in done.stdout
    assert "$ kubectl get gpupolicies" in done.stdout
    assert "again    gpu-7 of gpu-b: whole or as one of 25 MIG devices" in done.stdout
    assert "kubectl get resourceslices" in done.stdout
    assert "pod demo-pending/train cannot fit" in done.stdout
    assert "The ResourceSlices did not change" in done.stdout
    assert "new pods use them again" in done.stdout
    assert "The holders are deleted, and train runs on gpu-b" in done.stdout
    assert "event    greedy: GpuMemoryOverGrant: Claim uses 20Gi of gpu-0" in done.stdout
    assert "event    greedy: GpuEviction: " in done.stdout


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


SMALL = "1 MIG device of profile 1g.10gb"
WORKLOAD_DEVICES = {  # of each pod template with a claim, in the order of the file
    "inferenceservice": [SMALL],
    "jobset": ["1 GPU"],
    "leaderworkerset": ["2 GPUs"],
    "llminferenceservice": ["2 GPUs", "1 GPU"],
    "raycluster": ["1 GPU", SMALL],
    "trainjob": ["2 GPUs"],
}


@pytest.mark.parametrize("path", WORKLOADS, ids=lambda path: path.stem)
def test_pods_of_a_workload_example_run(pool: ClusterPool, path: Path, tmp_path: Path) -> None:
    """A pod of each template of the operator's objects; no operator runs here."""
    cluster = pool.cluster(read_requirements(path))
    reduced = tmp_path / path.name
    reduced.write_text(without_operators(path, WORKLOAD_DEVICES[path.stem]), encoding="utf-8")
    scenario = Scenario(cluster.client, leftovers=cluster.leftovers, reach_s=30.0, delete_s=30.0)
    result = scenario.run(reduced, namespace=f"w-{path.stem}")
    assert result.problem is None
