"""Configs of the device plugin, layouts, ClusterPolicies and values of charts become policies and values."""

from itertools import combinations
from typing import Any

import pytest
import yaml

from dra_driver.config.policy import policy_of, policy_problems
from dra_driver.kubectl.migrate import MigrateOptions, translate
from dra_driver.kubectl.migrate.ledger import at
from tests.fakes import chart
from tests.unit.kubectl.migrate.helpers import documents, migrated, of_inputs, policy, said

SHARED = "version: v1\nsharing: {timeSlicing: {resources: [{name: nvidia.com/gpu, replicas: 4}]}}\n"
MPS = "version: v1\nsharing: {mps: {resources: [{name: nvidia.com/gpu, replicas: 10}]}}\n"


def layout(name: str, *entries: str) -> str:
    return "version: v1\nmig-configs:\n  " + name + ":\n" + "".join(f"  - {entry}\n" for entry in entries)


def config_map(**configs: str) -> str:
    data = {key.replace("_", "-"): text for key, text in configs.items()}
    return yaml.safe_dump({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "c"}, "data": data})


def node(name: str, **labels: str) -> str:
    keys = {"plugin": "nvidia.com/device-plugin.config", "mig": "nvidia.com/mig.config"}
    found = {keys[key]: value for key, value in labels.items()}
    return yaml.safe_dump({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": found}})


EMPTY = "version: v1\nflags: {}\n"
NAMED = config_map(default=EMPTY, shared=SHARED)
OFF = layout("off", "{devices: all, mig-enabled: false}")
SHARES = {"strategy": "TimeSlicing", "maxShares": 4, "defaultShare": {"parts": 4}}


@pytest.mark.parametrize(
    ("inputs", "name", "spec"),
    [
        # Replicas have no memory of their own, so shares are bounded by their number alone.
        ([SHARED], "device-plugin-input", {"sharing": SHARES}),
        (
            [MPS],
            "device-plugin-input",
            {"sharing": {"strategy": "MPS", "maxShares": 10, "defaultShare": {"parts": 10}}},
        ),
        # The device plugin offered whole GPUs alone.
        (["version: v1\nflags: {migStrategy: none}\n"], "device-plugin-input", {"forms": {"migProfiles": []}}),
        # Only input nodes count.
        (
            [NAMED, node("a", plugin="shared"), node("b")],
            "device-plugin-shared",
            {"select": {"nodeNames": ["a"]}, "priority": 10, "sharing": SHARES},
        ),
        # A GPU with MIG on and no devices offered nothing before, and offers nothing now.
        (
            [layout("empty", "{devices: all, mig-enabled: true, mig-devices: {}}"), node("a", mig="empty")],
            "mig-empty",
            {"select": {"nodeNames": ["a"]}, "priority": 40, "availability": "Hidden"},
        ),
        # A policy applies alone, and a layout's is stronger than a config's.
        (
            [SHARED, OFF, node("a", mig="off")],
            "mig-off",
            {
                "select": {"nodeNames": ["a"]},
                "priority": 40,
                "forms": {"migProfiles": []},
                "mig": {"mode": "WhenFree"},
                "sharing": SHARES,
            },
        ),
    ],
    ids=["time slicing", "MPS", "strategy none", "a config by label", "MIG without devices", "whole GPUs stay shared"],
)
def test_configurations_become_policies(inputs: list[str], name: str, spec: dict[str, object]) -> None:
    assert policy(migrated("\n---\n".join(inputs)), name) == spec


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (SHARED, ["carried over", "Neither replicas nor time-sliced shares limit memory"]),
        (MPS, ["changed meaning", "1/10 of memory and compute", "a claim without amounts gets it"]),
        (MPS.replace("10", "300"), ["no compute gets 1 percent", "100 such claims fit"]),
    ],
)
def test_report_names_the_limits_that_replicas_had(text: str, words: list[str]) -> None:
    (found,) = said(migrated(text), ".replicas")
    assert [each for each in words if each not in found] == []


def test_mps_wins_over_time_slicing_and_needs_the_mps_host() -> None:
    both = yaml.safe_load(MPS)
    both["sharing"] |= yaml.safe_load(SHARED)["sharing"]
    found = migrated(yaml.safe_dump(both))
    assert policy(found, "device-plugin-input")["sharing"]["strategy"] == "MPS"
    assert found.values["mpsHost"] == {"enabled": True}


RENAMED = "renameByDefault: true, "
REFUSED = "failRequestsGreaterThanOne: true, "


@pytest.mark.parametrize(
    ("inputs", "values"),
    [
        ([SHARED],
         {"extendedResourceName": "", "shared": {"extendedResourceName": "nvidia.com/gpu", "oneEach": False}}),
        ([SHARED.replace("{resources", "{" + REFUSED + "resources")],
         {"extendedResourceName": "", "shared": {"extendedResourceName": "nvidia.com/gpu", "oneEach": True}}),
        ([SHARED.replace("{resources", "{" + RENAMED + "resources")],
         {"shared": {"extendedResourceName": "nvidia.com/gpu.shared", "oneEach": False}}),
        # The plugin's MPS always refuses several replicas (sharing.go).
        ([MPS.replace("{resources", "{" + RENAMED + "resources")],
         {"shared": {"extendedResourceName": "nvidia.com/gpu.shared", "oneEach": True}}),
        ([NAMED], None),  # nvidia.com/gpu is a whole GPU on other nodes
        ([EMPTY], None),
        ([SHARED.replace("gpu,", "mig-1g.10gb,")], None),
    ],
)  # fmt: skip
def test_chart_values_give_unmodified_pods_the_shares_of_replicas(inputs: list[str], values: Any) -> None:
    found = migrated("---\n".join(inputs))
    assert found.values.get("deviceClasses") == values
    if values is not None:
        classes = [each for each in chart.objects(found.values) if each["kind"] == "DeviceClass"]
        names = {each["metadata"]["name"]: each["spec"].get("extendedResourceName") for each in classes}
        assert names["shared.gpu.nvidia.com"] == values["shared"]["extendedResourceName"]
        assert (names["gpu.nvidia.com"] == "nvidia.com/gpu") == ("extendedResourceName" not in values)
        refusing = any(each["metadata"]["name"] == "dra-driver-one-share-each" for each in chart.objects(found.values))
        assert refusing == values["shared"]["oneEach"]


def test_conflicting_names_of_replicas_are_reported() -> None:
    other = MPS.replace("{resources", "{" + RENAMED + "resources")
    found = migrated(config_map(a=SHARED.replace("{resources", "{" + RENAMED + "resources"), b=other))
    assert any("deviceClasses.shared.oneEach" in hint for hint in found.hints)


def test_without_nodes_such_a_policy_is_for_none() -> None:
    """A policy for all nodes would share GPUs that were never shared."""
    found = migrated(NAMED)
    (pattern,) = policy(found, "device-plugin-shared")["select"]["nodeNames"]
    assert pattern == "NODES WITH nvidia.com/device-plugin.config=shared"
    assert "select.nodeNames" in found.hints[0]


@pytest.mark.parametrize("configs", [{"only": SHARED}, {"default": SHARED, "other": EMPTY}])
def test_the_default_config_is_for_every_node(configs: dict[str, str]) -> None:
    """The plugin's config-manager uses the only config, or the config named default."""
    found = migrated(config_map(**configs))
    assert "select" not in policy(found, f"device-plugin-{next(iter(configs))}")


def test_a_clusterpolicy_names_the_default_configs() -> None:
    found = of_inputs("cluster-policy", "plugin-configmap", "mig-parted", "nodes")
    assert policy(found, "device-plugin-shared-4").get("select") is None
    assert policy(found, "mig-all-disabled")["priority"] == 20


def test_many_nodes_are_several_policies() -> None:
    """A policy has 32 patterns at most."""
    nodes = [node(f"n{number}", plugin="shared") for number in range(70)]
    found = migrated("\n---\n".join([NAMED, *nodes]))
    sizes = [len(each["spec"]["select"]["nodeNames"]) for each in found.policies]
    assert sizes == [32, 32, 6]
    assert len({each["metadata"]["name"] for each in found.policies}) == 3


def test_a_layout_becomes_the_partitions_of_the_gpu_and_their_classes() -> None:
    entry = '{device-filter: ["0x233010DE"], devices: [4, 5], mig-enabled: true, mig-devices: {1g.10gb: 2, 3g.40gb: 1}}'
    found = migrated(layout("half", entry))
    spec = policy(found, "mig-half")
    assert spec["forms"] == {"whole": False}
    layout_of = [{"profile": "1g.10gb", "count": 2}, {"profile": "3g.40gb", "count": 1}]
    assert spec["mig"] == {"mode": "WhenFree", "layout": layout_of}, "A100 and A30 need a reset for their mode"
    assert spec["select"]["minors"] == [4, 5]
    assert spec["select"]["productNames"] == ["NVIDIA H100 80GB HBM3"]
    assert [each["metadata"]["name"] for each in found.classes] == ["mig-1g.10gb.nvidia.com", "mig-3g.40gb.nvidia.com"]


def test_seven_partitions_of_a_guide_become_a_pinned_layout() -> None:
    """The config all-1g.5gb of the GPU Operator's guide: any GPU, so that the board is unknown."""
    found = migrated(layout("all-1g.5gb", "{devices: all, mig-enabled: true, mig-devices: {1g.5gb: 7}}"))
    spec = policy(found, "mig-all-1g-5gb")
    assert spec["mig"] == {"mode": "WhenFree", "layout": [{"profile": "1g.5gb", "count": 7}]}
    (text,) = said(found, '["1g.5gb"]')
    assert text.startswith("carried over: became mig.layout of policy mig-all-1g-5gb")
    assert [problem for each in found.policies for problem in policy_problems(each)] == []


@pytest.mark.parametrize(
    ("devices", "profiles", "why"),
    [
        ("{1g.5gb: 1, 3g.20gb: 2}", ["1g.5gb", "3g.20gb"], "do not fit"),
        ("{1g.10gb: 7}", ["1g.10gb"], "do not fit"),
        ("{1g.12gb: 2}", ["1g.12gb"], "not all of these boards"),
        ("{1g.5gb: 17}", ["1g.5gb"], "at most 8 profiles and 16"),
        ("{1c.3g.20gb: 2, 1g.5gb: 1}", ["3g.20gb", "1g.5gb"], "compute instances are not supported"),
    ],
)
def test_a_layout_that_cannot_be_pinned_allows_its_profiles(devices: str, profiles: list[str], why: str) -> None:
    """A node would refuse such a policy, and publish nothing of the GPU."""
    entry = f"{{device-filter: ['0x20B010DE'], devices: all, mig-enabled: true, mig-devices: {devices}}}"
    found = migrated(layout("odd", entry))
    spec = policy(found, "mig-odd")
    assert spec["forms"] == {"whole": False, "migProfiles": profiles}
    assert spec["mig"] == {"mode": "WhenFree"}
    assert any(why in note.message for note in found.notes if "mig-devices" in note.field)


def test_a_compute_instance_is_explained_and_its_gpu_instance_is_offered() -> None:
    found = migrated(layout("part", "{devices: all, mig-enabled: true, mig-devices: {1c.3g.20gb: 3}}"))
    assert policy(found, "mig-part")["forms"] == {"whole": False, "migProfiles": ["3g.20gb"]}
    assert [each["metadata"]["name"] for each in found.classes] == ["mig-3g.20gb.nvidia.com"]
    (text,) = said(found, '["1c.3g.20gb"]')
    assert text.startswith("not carried over")
    assert text.endswith("request the GPU instance 3g.20gb")


def test_a_filter_for_unknown_boards_makes_no_policy() -> None:
    entry = '{device-filter: "0x99AA10DE", devices: all, mig-enabled: true, mig-devices: {1g.10gb: 7}}'
    found = migrated(layout("new", entry))
    assert found.policies == []
    assert "not carried over: unknown PCI id" in said(found, "device-filter")[0]


def test_a_layout_and_a_config_of_some_of_its_nodes_are_joined() -> None:
    found = migrated("\n---\n".join([NAMED, OFF, node("a", mig="off", plugin="shared"), node("b", mig="off")]))
    joined = policy(found, "mig-off-device-plugin-shared")
    assert joined["select"] == {"nodeNames": ["a"]}
    assert joined["priority"] > policy(found, "mig-off")["priority"]
    assert "sharing" not in policy(found, "mig-off")


@pytest.mark.parametrize("names", [("mig-parted",), ("cluster-policy", "plugin-configmap", "mig-parted", "nodes")])
def test_policies_that_come_out_are_valid_and_do_not_contradict(names: tuple[str, ...]) -> None:
    """A node would refuse a set in which two of one priority match one GPU and differ."""
    found = of_inputs(*names).policies
    assert [problem for each in found for problem in policy_problems(each)] == []
    read = [policy_of(each) for each in found]
    assert len({each.name for each in read}) == len(read)
    for one, other in combinations(read, 2):
        nodes = set(one.select.node_names or "*") & set(other.select.node_names or "*")
        same = one.priority == other.priority and nodes
        apart = set(one.select.product_names or ()) ^ set(other.select.product_names or ())
        assert not same or apart, f"{one.name} and {other.name}"


def test_two_configs_for_all_nodes_are_hinted() -> None:
    one, other = documents(SHARED, "one.yaml"), documents(MPS, "two.yaml")
    found = translate([*one, *other], MigrateOptions(), documents)
    assert any("device-plugin-one and device-plugin-two" in hint for hint in found.hints)


@pytest.mark.parametrize(
    ("name", "path", "value"),
    [
        ("cluster-policy", ("kubelet",), {"rootDir": "/var/lib/k0s/kubelet"}),
        ("cluster-policy", ("driver",), {"root": "/run/nvidia/driver", "hasDev": True}),
        ("operator-values", ("openshift",), {"enabled": True}),
        ("plugin-values", ("nodes",), {"selector": {"pool": "gpu"}}),
        ("plugin-values", ("driver", "cdiHook"), "/usr/bin/nvidia-cdi-hook"),
        ("dra-driver-values", ("kubelet",), {"rootDir": "/var/lib/k0s/kubelet"}),
    ],
)
def test_values_of_the_charts_are_carried(name: str, path: tuple[str, ...], value: object) -> None:
    assert at(of_inputs(name).values, *path) == value


def test_conflicting_chart_values_are_hinted() -> None:
    found = migrated("nvidiaDriverRoot: /a\nmigStrategy: mixed\n---\nnvidiaDriverRoot: /b\nmigStrategy: mixed\n")
    assert found.values["driver"]["root"] == "/a"
    assert any("driver.root" in hint for hint in found.hints)


def test_a_renamed_resource_gets_a_class_for_its_products() -> None:
    found = migrated('version: v1\nresources: {gpus: [{pattern: "Tesla T4*", name: t4}]}\nflags: {}\n')
    (made,) = found.classes
    assert made["spec"]["extendedResourceName"] == "nvidia.com/t4"
    assert made["spec"]["selectors"][0]["cel"]["expression"].endswith('.productName.matches("^Tesla T4.*$")')
