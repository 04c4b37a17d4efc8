"""``kubectl dra explain --with-node``: its answer comes true when such a node is added to the embedded cluster."""

import json
from pathlib import Path
from typing import Any

import pytest

from dra_driver.kubectl.commands.kubectl import main
from dra_driver.sim.apiserver.jsonvalue import Obj
from dra_driver.sim.apiserver.kinds import GPU_POLICIES, NODES
from dra_driver.sim.cluster import Cluster
from tests.e2e.forms import policy
from tests.scenario.conftest import TIMEOUT_S, Pods, make_template

H100 = {"cel": {"expression": 'device.attributes["gpu.nvidia.com"].productName.contains("H100")'}}
CLUSTER = {"nodes": {"gpu-a": "1xt4-16gb", "gpu-b": "2xh100-sxm5-80gb"}}


def cordon(cluster: Cluster, *, on: bool) -> None:
    node = cluster.store.get(NODES, "gpu-b")
    node["spec"]["unschedulable"] = on
    cluster.store.update(NODES, node)


def added(cluster: Cluster, capsys: pytest.CaptureFixture[str], *arguments: str) -> Any:
    kubeconfig = ("--kubeconfig", str(cluster.kubeconfig))
    assert main(["explain", *arguments, *kubeconfig, "-o", "json"]) == 1
    return json.loads(capsys.readouterr().out)["addedNode"]


def test_the_named_node_is_uncordoned_and_the_pods_start(
    cluster: Cluster, namespace: str, pods: Pods, capsys: pytest.CaptureFixture[str]
) -> None:
    cordon(cluster, on=True)
    pods.create("pair", template=make_template(cluster, namespace, selectors=[H100], count=2))
    cluster.wait(lambda: None if pods.get("pair") else "missing", TIMEOUT_S, "the pod")
    found = added(cluster, capsys, "pod/pair", "-n", namespace, "--with-node", "2xh100-sxm5-80gb")
    assert (found["answer"], found["sentence"]) == ("helps", "one such node has the devices for it")
    small = added(cluster, capsys, "pod/pair", "-n", namespace, "--with-node", "1xh100-sxm5-80gb")
    assert small["sentence"].startswith("even an empty node of this kind does not have the devices for it: 1 device")
    other = added(cluster, capsys, "pod/pair", "-n", namespace, "--with-node", "4xl4-24gb")
    assert other["sentence"].endswith("none of 4 devices matches request gpu")
    cordon(cluster, on=False)
    pods.wait_ready("pair")
    pods.end("pair")


def test_policies_of_the_cluster_decide_what_an_added_node_offers(
    cluster: Cluster, namespace: str, pods: Pods, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    select = {"productNames": ["*L4*"]}
    shares: Obj = policy("l4", select=select, sharing={"strategy": "TimeSlicing", "maxShares": 4})
    cluster.client.create(shares, "")
    shared = {
        "cel": {"expression": 'device.attributes["gpu.nvidia.com"].?sharingStrategy.orValue("") == "TimeSlicing"'}
    }
    share = make_template(cluster, namespace, selectors=[shared], capacity={"requests": {"memory": "1Gi"}})
    pods.create("share", template=share)
    question = ("pod/share", "-n", namespace, "--with-node", "1xl4-24gb")
    assert added(cluster, capsys, *question)["answer"] == "helps"
    cluster.client.delete(GPU_POLICIES, "l4", "")
    assert added(cluster, capsys, *question)["answer"] == "doesNotHelp"
    (tmp_path / "l4.yaml").write_text(json.dumps(shares))
    assert added(cluster, capsys, *question, "--with-policy", str(tmp_path / "l4.yaml"))["answer"] == "helps"
    pods.end("share")
