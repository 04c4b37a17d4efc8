"""The output of ``kubectl dra node-template`` equals the published ResourceSlices of a node process."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from dra_driver.hardware.gpu import catalog
from dra_driver.kubectl.commands.kubectl import main
from dra_driver.node.slices.gates import same
from dra_driver.sim.cluster import Cluster
from tests.scenario.conftest import ROOT, TIMEOUT_S, cluster_of

BOARDS = sorted(catalog.models())
FEW = ("a100-sxm4-40gb", "h100-sxm5-80gb", "t4-16gb")
POLICIES = ("a100-sevenths", "mig-1g-only", "mps-pool", "t4-eighths", "time-sliced-pool", "monitored-gpus")


def template(capsys: pytest.CaptureFixture[str], *arguments: str) -> list[Any]:
    assert main(["node-template", *arguments, "-o", "json"]) == 0
    return [item["spec"] for item in json.loads(capsys.readouterr().out)["items"]]


def published(cluster: Cluster, node: str) -> list[Any]:
    slices = sorted(cluster.slices(node), key=lambda item: str(item["metadata"]["name"]))
    return [{**item["spec"], "pool": {**item["spec"]["pool"], "generation": 1}} for item in slices]


def expect_equal(
    cluster: Cluster, nodes: Mapping[str, str], capsys: pytest.CaptureFixture[str], *arguments: str
) -> None:
    for node, spec in nodes.items():
        wanted = template(capsys, spec, "--node", node, *arguments)

        def differs(node: str = node, wanted: list[Any] = wanted) -> str | None:
            return None if same(wanted, published(cluster, node)) else f"{node} publishes {published(cluster, node)}"

        cluster.wait(differs, TIMEOUT_S, f"the template of {spec}")


@pytest.mark.slow
def test_every_board_of_the_catalog(capsys: pytest.CaptureFixture[str]) -> None:
    nodes = {f"n{number}": f"2x{board}" for number, board in enumerate(BOARDS)}
    with cluster_of(nodes) as cluster:
        expect_equal(cluster, nodes, capsys)


@pytest.mark.parametrize("name", [*(pytest.param(name, marks=pytest.mark.slow) for name in POLICIES[1:]), POLICIES[0]])
def test_policies(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    policy: Path = ROOT / "examples" / "policies" / f"{name}.yaml"
    nodes = {f"n{number}": f"1x{board}" for number, board in enumerate(FEW)}
    with cluster_of(nodes, policies=[policy]) as cluster:
        expect_equal(cluster, nodes, capsys, "--policy", str(policy))


def test_policies_with_problems_print_no_template(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    wrong = tmp_path / "wrong.yaml"
    wrong.write_text((ROOT / "examples/policies/t4-eighths.yaml").read_text().replace("sharing:", "shraing:"))
    assert main(["node-template", "1xt4-16gb", "--policy", str(wrong)]) == 1
    said = capsys.readouterr()
    assert said.out == ""
    assert "shraing" in said.err
