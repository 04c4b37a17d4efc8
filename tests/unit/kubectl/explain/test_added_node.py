"""``kubectl dra explain --with-node``: the answer, the number of nodes, and unchecked requirements."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from dra_driver.kube.state_file import dump
from dra_driver.kubectl.commands.kubectl import main
from tests.fakes.dra_objects import claim, device_class, exactly, node, resource_slice
from tests.unit.kubectl.explain.clusters import A, allocated_claim, cluster, pod, template

NODE = "8xh100-sxm5-80gb"
FULL = [
    allocated_claim("one", *(f"gpu-{n}" for n in range(4)), on="a"),
    allocated_claim("two", "gpu-0", "gpu-1", on="b"),
]
BUILT_IN = "labels and taints of the node; CPU and memory; DaemonSets; devices of other drivers"


class Asking:
    """Ask about a cluster whose GPUs are all in use."""

    def __init__(self, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.folder, self.capsys = folder, capsys

    def __call__(self, *arguments: str, **parts: Any) -> Any:
        found = json.loads(self.text(*arguments, "-o", "json", **parts))
        return found.get("addedNode", found)

    def text(self, *arguments: str, gpus: str = NODE, **parts: Any) -> str:
        dump(cluster(**{"claims": FULL, **parts}), self.folder / "state.json")
        state = ("--cluster-state", str(self.folder / "state.json"))
        assert main(["explain", *arguments, "--with-node", gpus, *state]) in (0, 1)
        return self.capsys.readouterr().out


@pytest.fixture
def ask(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Asking:
    return Asking(tmp_path, capsys)


def replicas(count: int, **fields: Any) -> list[Any]:
    made = [pod(f"w-{index}", **{"template": "t", **fields}) for index in range(count)]
    for each in made:
        each["metadata"]["ownerReferences"] = [{"kind": "Job", "name": "w", "uid": "j", "controller": True}]
    return made


@pytest.mark.parametrize(
    ("count", "gpus", "sentence", "numbers"),
    [
        (1, NODE, "one such node has the devices for it", (1, 1, 1)),
        (8, NODE, "one such node has the devices for all 8 equal pods", (1, 8, 8)),
        (20, NODE, "3 such nodes have the devices for all 20 equal pods, 8 pods on each", (3, 20, 8)),
        (2, "1xl4-24gb", "2 such nodes have the devices for all 2 equal pods, 1 pod on each", (2, 2, 1)),
    ],
)
def test_nodes_are_counted_for_equal_pods(
    ask: Asking, count: int, gpus: str, sentence: str, numbers: tuple[int, ...]
) -> None:
    found = ask("job/w", gpus=gpus, templates=[template("t")], pods=replicas(count))
    assert (found["answer"], found["sentence"]) == ("helps", sentence)
    assert (found["nodeCount"], found["podCount"], found["podCountPerNode"]) == numbers


def test_pods_that_share_a_claim_fit_on_one_node_only(ask: Asking) -> None:
    both = [
        {"name": "shared", "resourceClaimName": "c"},
        {"name": "gpu", "resourceClaimTemplateName": "t"},
    ]
    pods = replicas(9, resourceClaims=both)
    found = ask("job/w", templates=[template("t")], pods=pods, claims=[*FULL, claim("c")])
    share = (
        "one such node has the devices for 7 of 9 equal pods; they share claim shared (c), so more nodes do not help"
    )
    assert (found["sentence"], found["nodeCount"], found["podCountPerNode"]) == (share, 1, 7)


def test_a_node_without_the_devices_does_not_help(ask: Asking) -> None:
    nine = [template("t", exactly(count=9))]
    found = ask("pod/train", templates=nine, pods=[pod(template="t")])
    even = "even an empty node of this kind does not have the devices for it: "
    assert found["sentence"] == f"{even}8 devices match request gpu: 8 left, 9 needed on one node"
    assert (found["answer"], found["nodeCount"], found["podCountPerNode"]) == ("doesNotHelp", 0, 0)
    one = [template("t", exactly(count=2), constraints=[{"matchAttribute": "gpu.nvidia.com/uuid"}])]
    found = ask("pod/train", templates=one, pods=[pod(template="t")])
    assert (
        found["sentence"]
        == f"{even}8 devices match request gpu: 7 excluded by a constraint, 1 left, 2 needed on one node"
    )


@pytest.mark.parametrize(
    ("parts", "wanted", "sentence"),
    [
        ({}, {"template": "t"}, "a node does not help"),
        (
            {"classes": [device_class()]},
            {"template": "lost"},
            "a node does not help",
        ),
    ],
)
def test_a_node_does_not_replace_a_missing_object(ask: Asking, parts: Any, wanted: Any, sentence: str) -> None:
    found = ask("pod/train", **{"classes": [], **parts}, templates=[template("t")], pods=[pod(**wanted)])
    assert found["answer"] == "doesNotHelp"
    assert found["sentence"] == sentence


def test_a_selector_that_fails_on_every_node_fails_with_an_added_node(ask: Asking) -> None:
    wanted = exactly(selectors=[{"cel": {"expression": f'{A}.architecture == "Hopper"'}}])
    found = ask("pod/train", templates=[template("t", wanted)], pods=[pod(template="t")], claims=[])
    assert found["sentence"] == "a node does not help"


@pytest.mark.parametrize(
    "spec",
    [
        {"nodeSelector": {"pool": "new"}},
        {"schedulingGates": [{"name": "example.com/gate"}]},
        {"containers": [{"name": "main", "resources": {"requests": {"cpu": "512", "example.com/fpga": "1"}}}]},
    ],
)
def test_requirements_that_a_template_does_not_decide_are_named_instead(ask: Asking, spec: Any) -> None:
    found = ask("pod/train", templates=[template("t")], pods=[pod(template="t", **spec)])
    assert found["answer"] == "helps"
    assert "; ".join(found["notChecked"]) == f"{BUILT_IN}; GpuPolicies: a state file has none; see --with-policy"


def test_a_pod_without_devices_and_devices_of_another_driver_are_unknown(ask: Asking) -> None:
    cpu = pod(nodeSelector={"pool": "new"})
    assert ask("pod/train", pods=[cpu])["answer"] == "unknown"
    nic = template("t", exactly(selectors=[{"cel": {"expression": 'device.driver == "nic.example.com"'}}]))
    found = ask("pod/train", templates=[nic], classes=[device_class(expression="true")], pods=[pod(template="t")])
    assert (found["answer"], found["nodeCount"]) == ("unknown", None)
    assert "driver nic.example.com has published no devices" in found["sentence"]


def test_no_node_is_needed_where_the_devices_fit(ask: Asking) -> None:
    found = ask("pod/train", templates=[template("t")], pods=[pod(template="t")], claims=[])
    assert (found["answer"], found["sentence"], found["notChecked"]) == (
        "notNeeded",
        "not needed: fits on 2 of 2 nodes",
        [],
    )
    runs = pod(claim="one", nodeName="a", status={"phase": "Running"})
    assert ask("pod/train", pods=[runs])["sentence"] == "not needed: runs on a"
    gated = pod(template="t", schedulingGates=[{"name": "example.com/gate"}])
    found = ask("pod/train", templates=[template("t")], pods=[gated], claims=[])
    assert found["answer"] == "notNeeded"


def test_a_cluster_without_nodes_and_a_claim_can_get_one(ask: Asking) -> None:
    found = ask("claim/c", claims=[claim("c")], nodes=[], slices=[])
    assert found["sentence"] == "one such node has the devices for it"
    taken = ask("claim/c", claims=[*FULL, claim("c")], nodes=[node("a"), node("b"), node("added-node")])
    assert taken["answer"] == "helps", "a node may have the name"


def test_a_releasable_claim_gets_devices_on_an_added_node(ask: Asking) -> None:
    """The scheduler releases a claim of a pod that cannot run on the claim's node, whose CPU may be in use."""
    pods = replicas(2, nodeSelector={"pool": "new"})
    claims = []
    for index, each in enumerate(pods):
        each["status"]["resourceClaimStatuses"] = [{"name": "gpu", "resourceClaimName": f"c-{index}"}]
        owner = {"kind": "Pod", "name": f"w-{index}", "uid": f"uid-of-w-{index}"}
        users = (f"w-{index}",)
        claims.append(allocated_claim(f"c-{index}", f"gpu-{index}", on="a", users=users, ownerReferences=[owner]))
    found = ask("job/w", templates=[template("t")], pods=pods, claims=claims)
    assert found["sentence"] == "one such node has the devices for all 2 equal pods"


def test_a_claim_that_another_pod_uses_stays_on_its_node(ask: Asking) -> None:
    waiting = pod(claim="c", nodeSelector={"pool": "new"})
    found = ask("pod/train", pods=[waiting], claims=[allocated_claim("c", "gpu-0", on="a", users=("other", "train"))])
    assert found["answer"] == "doesNotHelp"
    assert found["sentence"].endswith("claim gpu (c) is allocated to devices that this node cannot reach")


def test_network_devices_of_other_pods_stay_in_use(ask: Asking) -> None:
    fabric: Any = resource_slice("fabric", {"name": "nic-0"})
    del fabric["spec"]["nodeName"]
    fabric["spec"] |= {"allNodes": True, "driver": "nic.example.com"}
    held = allocated_claim("taken", "nic-0", on="fabric")
    held["status"]["allocation"]["devices"]["results"][0]["driver"] = "nic.example.com"
    nic = template("t", exactly(selectors=[{"cel": {"expression": 'device.driver == "nic.example.com"'}}]))
    asked = {"templates": [nic], "classes": [device_class(expression="true")], "pods": [pod(template="t")]}
    slices = [fabric]
    found = ask("pod/train", **asked, slices=slices, claims=[held])
    assert found["sentence"].endswith("1 device matches request gpu: 1 in use")
    assert ask("pod/train", **asked, slices=slices, claims=[])["answer"] == "notNeeded"


def test_replicas_of_a_manifest_share_the_answer_of_those_that_do_not_fit(ask: Asking) -> None:
    job = {"spec": {"parallelism": 5, "template": {"spec": pod(template="t")["spec"]}}}
    file = ask.folder / "job.yaml"
    file.write_text(yaml.safe_dump({"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "w"}, **job}))
    found = ask("-f", str(file), gpus="2xl4-24gb", templates=[template("t", exactly(count=2))], claims=[])
    answers = [(item["name"], item["addedNode"]["answer"], item["addedNode"]["podCount"]) for item in found["items"]]
    assert answers == [
        *((f"w-{index}", "notNeeded", None) for index in range(3)),
        *((f"w-{index}", "helps", 2) for index in (3, 4)),
    ]


def test_the_list_of_waiting_pods_has_an_answer_for_each_cause(ask: Asking) -> None:
    shown = ask.text("-A", templates=[template("t")], pods=replicas(9))
    assert f"  with {NODE}: 2 such nodes have the devices for all 9 equal pods, 8 pods on each\n" in shown
    assert " ".join(shown.split()).endswith(
        f"not checked: {BUILT_IN}; GpuPolicies: a state file has none; see --with-policy"
    )
    alone = ask.text("pod/w-0", templates=[template("t")], pods=replicas(1))
    assert f"\nWith a node of {NODE}\n  one such node has the devices for it\n  not checked: labels" in alone


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--with-node", "8xh10-sxm5-80gb"), "unknown GPU model 'h10-sxm5-80gb': did you mean h100-sxm5-80gb"),
        (("--with-policy", "x.yaml"), "--with-policy: needs --with-node"),
        (("--with-node", NODE, "--with-policy", "x.yaml"), "cannot read x.yaml"),
        (("--with-node", NODE, "--with-policy", "{wrong}"), "spec.shraing: unknown field"),
        (("--with-node", NODE, "--with-policy", "{wrong}"), "spec.priority"),
    ],
)
def test_bad_input_is_refused_with_every_problem(
    ask: Asking, arguments: tuple[str, ...], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    wrong = ask.folder / "wrong.yaml"
    head = {"apiVersion": "gpu.dra-driver.io/v1alpha1", "kind": "GpuPolicy", "metadata": {"name": "p"}}
    wrong.write_text(yaml.safe_dump({**head, "spec": {"shraing": {}, "priority": "high"}}))
    dump(cluster(templates=[template("t")], pods=[pod(template="t")]), ask.folder / "state.json")
    given = [each.format(wrong=wrong) for each in arguments]
    assert main(["explain", "pod/train", *given, "--cluster-state", str(ask.folder / "state.json")]) == 2
    assert said in capsys.readouterr().err
