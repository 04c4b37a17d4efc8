"""Each switch of deploy/chart: which objects it adds, and that it changes nothing else."""

import argparse
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml

from dra_driver.config.exporter_settings import ExporterSettings
from dra_driver.config.options import load
from dra_driver.config.settings import load_node_settings
from dra_driver.kube.connection import SERVICE_ACCOUNT_DIR
from dra_driver.kubectl.commands import ui
from dra_driver.kubectl.web.sessions import origins_of
from dra_driver.node.process.detaching import LABELS, PAUSED
from dra_driver.scheduler.allocation.nodes import NodeUsage, unfit_reason
from tests.fakes import chart
from tests.fakes.chart import Obj, environment, pod_spec

NODE = ("DaemonSet", "dra-driver-node")
GPU_LABELS = (
    "nvidia.com/gpu.present",
    "feature.node.kubernetes.io/pci-10de.present",
    "feature.node.kubernetes.io/pci-0302_10de.present",
    "feature.node.kubernetes.io/pci-0300_10de.present",
)
ADDED: list[tuple[str, set[tuple[str, str]]]] = [
    ("mpsHost", {("ServiceAccount", "dra-driver-mps-host"), ("DaemonSet", "dra-driver-mps-host")}),
    ("claimStatus", {(kind, "dra-driver-claim-status") for kind in ("ClusterRole", "ClusterRoleBinding")}),
    ("claimEvents", {(kind, "dra-driver-claim-events") for kind in ("ClusterRole", "ClusterRoleBinding")}),
    ("drainer", {("ClusterRole", "dra-driver-drainer"), ("Role", "dra-driver-drainer")}),
    ("networkPolicy", {("NetworkPolicy", "dra-driver")}),
    ("ui", {(kind, "dra-driver-ui") for kind in ("ServiceAccount", "Deployment", "Service")}),
    ("resourceQuota", {("ResourceQuota", "dra-driver")}),
    ("openshift", {("RoleBinding", f"dra-driver-scc-{name}") for name in ("privileged", "nonroot")}),
]


def identities(objects: list[Obj]) -> set[tuple[str, str]]:
    return {(obj["kind"], obj["metadata"]["name"]) for obj in objects}


@pytest.mark.parametrize(("switch", "added"), ADDED, ids=[switch for switch, _ in ADDED])
def test_a_switch_adds_its_objects_and_no_others(switch: str, added: set[tuple[str, str]]) -> None:
    before, after = chart.objects(), chart.objects({switch: {"enabled": True}})
    assert identities(after) - identities(before) == added
    kept = [obj for obj in after if (obj["kind"], obj["metadata"]["name"]) not in added]
    changed = [obj["metadata"]["name"] for obj, old in zip(kept, before, strict=True) if obj != old]
    assert changed == (["dra-driver-node"] if switch in {"claimStatus", "claimEvents"} else [])


def test_delivered_are_the_node_process_and_a_controller_that_writes_status_alone() -> None:
    objects = chart.objects()
    workloads = {each for each in identities(objects) if each[0] in {"DaemonSet", "Deployment", "Pod", "Job"}}
    assert workloads == {NODE, ("Deployment", "dra-driver-controller")}
    roles = {name for kind, name in identities(objects) if kind == "ClusterRole"}
    assert roles == {"dra-driver-node", "dra-driver-controller", "dra-driver-viewer"}
    assert ("Role", "dra-driver-usage-reader") not in identities(objects)
    assert not {kind for kind, _ in identities(objects) if kind.startswith("Mutating")}
    rules = chart.found(objects, "ClusterRole", "dra-driver-controller")["rules"]
    assert {resource for rule in rules for resource in rule["resources"]} == {
        *("gpunodes", "gpupolicies", "gpupolicies/status")
    }


def test_a_controller_with_all_parts_off_has_a_role_without_rights() -> None:
    objects = chart.objects({"policyStatus": {"enabled": False}, "eviction": {"enabled": False}})
    assert chart.found(objects, "ClusterRole", "dra-driver-controller")["rules"] == []


@pytest.mark.parametrize(("switch", "variable"), [("claimStatus", "CLAIM_STATUS"), ("claimEvents", "CLAIM_EVENTS")])
def test_a_right_comes_with_the_setting_that_uses_it(switch: str, variable: str) -> None:
    before = environment(pod_spec(chart.objects(), *NODE))
    after = environment(pod_spec(chart.objects({switch: {"enabled": True}}), *NODE))
    assert after == before | {variable: "true"}
    settings = load_node_settings({}, after | {"NODE_NAME": "node-a"})
    assert getattr(settings, variable.lower())


def test_claim_status_allows_no_more_than_own_entries_of_own_claims() -> None:
    objects = chart.objects({"claimStatus": {"enabled": True}})
    role = chart.found(objects, "ClusterRole", "dra-driver-claim-status")
    rules = {rule["resources"][0]: (rule["verbs"], rule.get("resourceNames")) for rule in role["rules"]}
    assert rules == {
        "resourceclaims/status": (["patch"], None),
        "resourceclaims/driver": (["associated-node:patch"], ["gpu.nvidia.com"]),
    }


def test_claim_status_is_refused_on_older_clusters(tmp_path: Path) -> None:
    """There the right lets every node write the allocation of every claim. Without a cluster Helm renders for 1.36."""
    assert chart.refusal({"claimStatus": {"enabled": True}}) == ""
    shutil.copytree(chart.CHART, tmp_path / "chart")
    template = tmp_path / "chart" / "templates" / "claim-status.yaml"
    text = template.read_text()
    assert '"<1.36.0-0"' in text
    template.write_text(text.replace('"<1.36.0-0"', '"<1.37.0-0"'))
    with pytest.raises(chart.renderer().WrongValuesError, match=r"claimStatus\.enabled: .* Kubernetes v1\.36"):
        chart.renderer().render(tmp_path / "chart", {"claimStatus": {"enabled": True}})


def test_claim_events_allow_no_more_than_writing_events() -> None:
    objects = chart.objects({"claimEvents": {"enabled": True}})
    role = chart.found(objects, "ClusterRole", "dra-driver-claim-events")
    assert role["rules"] == [{"apiGroups": [""], "resources": ["events"], "verbs": ["create", "patch"]}]


def test_the_network_policy_selects_all_pods() -> None:
    objects = chart.objects({name: {"enabled": True} for name in ("networkPolicy", "mpsHost", "controller")})
    (expression,) = chart.found(objects, "NetworkPolicy", "dra-driver")["spec"]["podSelector"]["matchExpressions"]
    workloads = [obj for obj in objects if obj["kind"] in {"DaemonSet", "Deployment"}]
    labels = [obj["spec"]["template"]["metadata"]["labels"] for obj in workloads]
    assert {label[expression["key"]] for label in labels} == set(expression["values"])


def test_the_page_in_the_cluster_has_no_rights_and_no_token() -> None:
    """Pod Security Standards, profile restricted; of the cluster, it mounts the CA only."""
    objects = chart.objects({"ui": {"enabled": True}})
    bindings = [obj for obj in objects if "dra-driver-ui" in str(obj.get("subjects"))]
    assert bindings == []
    assert chart.found(objects, "ServiceAccount", "dra-driver-ui")["automountServiceAccountToken"] is False
    pod = pod_spec(objects, "Deployment", "dra-driver-ui")
    (container,) = pod["containers"]
    assert pod["automountServiceAccountToken"] is False
    assert pod["volumes"] == [
        {"name": "ca", "configMap": {"name": "kube-root-ca.crt", "items": [{"key": "ca.crt", "path": "ca.crt"}]}}
    ]
    assert container["volumeMounts"][0]["mountPath"] == str(SERVICE_ACCOUNT_DIR)
    assert pod["securityContext"]["runAsNonRoot"]
    assert pod["securityContext"]["runAsUser"] > 0
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    own = container["securityContext"]
    assert (own["allowPrivilegeEscalation"], own["readOnlyRootFilesystem"]) == (False, True)
    assert own["capabilities"] == {"drop": ["ALL"]}
    assert {"cpu", "memory"} <= container["resources"]["limits"].keys()
    assert not {"hostNetwork", "hostPID", "hostIPC"} & pod.keys()


def test_arguments_of_the_page_are_valid_and_its_ports_agree() -> None:
    values = {"enabled": True, "origins": ["https://gpus.example.com"], "maxSessions": 3}
    objects = chart.objects({"ui": values, "networkPolicy": {"enabled": True}}, namespace="gpus")
    (container,) = pod_spec(objects, "Deployment", "dra-driver-ui")["containers"]
    assert container["args"][0] == "ui"
    parser = argparse.ArgumentParser()
    ui.add_arguments(parser)
    args = parser.parse_args(container["args"][1:])
    assert (args.sign_in, args.all_addresses, args.max_sessions, args.driver_namespace) == (True, True, 3, "gpus")
    assert origins_of(args.origin) == {"gpus.example.com": "https://gpus.example.com"}
    ports = [port["containerPort"] for port in container["ports"]]
    assert ports == [args.port]
    service = chart.found(objects, "Service", "dra-driver-ui")["spec"]
    assert (service["type"], service["ports"][0]["targetPort"]) == ("ClusterIP", container["ports"][0]["name"])
    policy = chart.found(objects, "NetworkPolicy", "dra-driver-ui")["spec"]
    labels = chart.found(objects, "Deployment", "dra-driver-ui")["spec"]["template"]["metadata"]["labels"]
    assert service["selector"] == policy["podSelector"]["matchLabels"] == labels
    assert policy["ingress"][0]["ports"] == [{"port": args.port}]
    assert policy["ingress"][0]["from"] == [{"namespaceSelector": {"matchLabels": {"gpu.dra-driver.io/ui": "true"}}}]
    for name in ("readinessProbe", "livenessProbe"):
        assert container[name]["httpGet"]["httpHeaders"] == [{"name": "Host", "value": "localhost"}]


def test_on_openshift_the_page_may_run_as_its_fixed_user() -> None:
    objects = chart.objects({"ui": {"enabled": True}, "openshift": {"enabled": True}, "controller": {"enabled": False}})
    (subject,) = chart.found(objects, "RoleBinding", "dra-driver-scc-nonroot")["subjects"]
    assert subject["name"] == "dra-driver-ui"


def test_the_quota_is_for_the_priority_classes_that_are_used() -> None:
    def scope(**values: Any) -> list[str]:
        quota = chart.found(
            chart.objects({"resourceQuota": {"enabled": True}, **values}), "ResourceQuota", "dra-driver"
        )
        (expression,) = quota["spec"]["scopeSelector"]["matchExpressions"]
        classes: list[str] = expression["values"]
        return classes

    assert scope() == ["system-node-critical", "system-cluster-critical"]
    assert scope(controller={"enabled": False}) == ["system-node-critical"]


def test_further_classes_check_the_driver_first() -> None:
    """An expression that reads an attribute which a device of another driver lacks stops scheduling on every node."""
    extra = {
        "name": "hopper.example.com",
        "expression": 'device.attributes["gpu.nvidia.com"].architecture == "Hopper" || false',
        "extendedResourceName": "example.com/hopper",
    }
    objects = chart.objects({"deviceClasses": {"extendedResourceName": "", "extra": [extra]}})
    spec = chart.found(objects, "DeviceClass", "hopper.example.com")["spec"]
    (selector,) = spec["selectors"]
    assert selector["cel"]["expression"] == f'device.driver == "gpu.nvidia.com" && ({extra["expression"]})'
    assert spec["extendedResourceName"] == "example.com/hopper"
    assert "extendedResourceName" not in chart.found(objects, "DeviceClass", "gpu.nvidia.com")["spec"]


def test_policies_are_files_of_the_config_map() -> None:
    text = "kind: GpuPolicy\nspec:\n  priority: 1\n"
    data = chart.found(chart.objects({"policies": {"a.yaml": text}}), "ConfigMap", "dra-driver-policies")["data"]
    assert {name: yaml.safe_load(value) for name, value in data.items()} == {"a.yaml": yaml.safe_load(text)}


@pytest.mark.parametrize("name", ["dra-driver-node", "dra-driver-mps-host"])
def test_nodes_with_boards_of_either_class_are_chosen_and_every_term_has_the_conditions(name: str) -> None:
    """Node Feature Discovery labels a board with a display output by another class than one without."""
    condition = {"key": "nvidia.com/gpu.deploy.device-plugin", "operator": "In", "values": ["false"]}
    values = {"mpsHost": {"enabled": True}, "nodes": {"expressions": [condition]}}
    affinity = pod_spec(chart.objects(values), "DaemonSet", name)["affinity"]["nodeAffinity"]
    terms = affinity["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
    assert tuple(term["matchExpressions"][0]["key"] for term in terms) == GPU_LABELS
    assert all(condition in term["matchExpressions"] for term in terms)


def test_a_label_may_have_a_value() -> None:
    values = {"nodes": {"gpuLabels": ["kubernetes.azure.com/accelerator=nvidia", "a.example/b"]}}
    affinity = pod_spec(chart.objects(values), *NODE)["affinity"]["nodeAffinity"]
    terms = affinity["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
    assert [term["matchExpressions"] for term in terms] == [
        [{"key": "kubernetes.azure.com/accelerator", "operator": "In", "values": ["nvidia"]}],
        [{"key": "a.example/b", "operator": "In", "values": ["true"]}],
    ]


def test_another_driver_name_is_everywhere() -> None:
    every = {"enabled": True}
    values: Obj = {"mpsHost": every, "controller": every, "claimStatus": every}
    made = [obj for obj in chart.objects(values | {"driverName": "other.example"}) if obj["kind"] != "ConfigMap"]
    objects = [obj for obj in made if obj["kind"] != "CustomResourceDefinition"]
    text = re.sub(r"(gpu|mig)\.nvidia\.com\b(?=', 'labels|$)", "", str(objects))
    # What keeps the name: the classes, whose names claims have.
    assert "gpu.nvidia.com" not in text.replace("{'name': 'gpu.nvidia.com'", "").replace("'name': 'gpu.nvidia.com'", "")
    for name in ("dra-driver-node", "dra-driver-mps-host"):
        assert environment(pod_spec(objects, "DaemonSet", name))["DRIVER_NAME"] == "other.example"
    assert environment(pod_spec(objects, "Deployment", "dra-driver-controller"))["DRIVER_NAME"] == "other.example"


CLIENT, DRA = LABELS
NAMES = ("dra-driver-node", "dra-driver-mps-host")


def pod(name: str, preset: str = "plain-nodes") -> dict[str, Any]:
    objects = chart.objects(
        chart.preset(preset) | {"mpsHost": chart.preset(preset).get("mpsHost", {}) | {"enabled": True}}
    )
    template: dict[str, Any] = chart.found(objects, "DaemonSet", name)["spec"]["template"]
    return template


def runs(name: str, **labels: str) -> bool:
    metadata = {"name": "node-a", "labels": {"kubernetes.io/os": "linux", **labels}}
    node = {"metadata": metadata, "status": {"allocatable": {"cpu": "8", "memory": "64Gi", "pods": "110"}}}
    return not unfit_reason(pod(name), node, NodeUsage())


@pytest.mark.parametrize("gpu_label", GPU_LABELS)
def test_the_mps_host_leaves_a_node_whose_driver_is_upgraded(gpu_label: str) -> None:
    """It runs programs of the driver; on nodes without a GPU operator the label does not exist."""
    own = {gpu_label: "true"}
    assert runs("dra-driver-mps-host", **own)
    assert runs("dra-driver-mps-host", **own, **{CLIENT: "true"})
    assert runs("dra-driver-mps-host", **own, **{CLIENT: ""})
    assert not runs("dra-driver-mps-host", **own, **{CLIENT: PAUSED})
    assert not runs("dra-driver-mps-host", **own, **{CLIENT: "false"})


@pytest.mark.parametrize("gpu_label", GPU_LABELS)
def test_the_node_process_stays_until_the_last_claim_has_ended(gpu_label: str) -> None:
    """Pods that have claims are evicted after these labels are set; without it they would hang in Terminating."""
    assert runs("dra-driver-node", **{gpu_label: "true", CLIENT: PAUSED, DRA: PAUSED})


def test_with_the_preset_the_driver_manager_waits_for_the_mps_host() -> None:
    """It finds pods by the key of their nodeSelector alone (internal/kubernetes/client.go:194)."""
    assert CLIENT not in pod("dra-driver-mps-host")["spec"]["nodeSelector"]
    waited_for = [name for name in NAMES if CLIENT in pod(name, "gpu-operator")["spec"]["nodeSelector"]]
    assert waited_for == ["dra-driver-mps-host"]


ON: dict[str, Any] = {"exporter": {"enabled": True}}


def exporter_pod(values: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    spec = chart.found(chart.objects(values), "DaemonSet", "dra-driver-exporter")["spec"]["template"]["spec"]
    (container,) = spec["containers"]
    return spec, container


def settings(container: dict[str, Any]) -> ExporterSettings:
    environ = {each["name"]: each.get("value", "node-a") for each in container["env"]}
    return load(ExporterSettings, {}, environ)


def test_it_has_no_token_no_host_pids_and_no_right_in_the_cluster() -> None:
    objects = chart.objects(ON)
    spec, _ = exporter_pod(ON)
    assert spec["automountServiceAccountToken"] is False
    assert "hostPID" not in spec
    assert exporter_pod({"exporter": {"enabled": True, "hostPID": True}})[0]["hostPID"] is True
    assert not [obj for obj in objects if "dra-driver-exporter" in str(obj.get("subjects"))]


def test_each_folder_is_mounted_where_its_setting_says() -> None:
    spec, container = exporter_pod(ON)
    found = settings(container)
    mounts = {each["name"]: each for each in container["volumeMounts"]}
    paths = {each["name"]: each["hostPath"]["path"] for each in spec["volumes"]}
    own = f"{found.kubelet_plugins_dir}/{found.driver_name}/usage"
    assert mounts["own"]["mountPath"] == paths["own"] == own
    assert mounts["findings"]["mountPath"] == paths["findings"] == f"{own}/findings"
    assert (mounts["proc"]["mountPath"], paths["proc"]) == (found.proc_dir, "/proc")
    assert (mounts["logs"]["mountPath"], paths["logs"]) == (found.log_dir, "/var/log/containers")
    assert found.pod_resources_socket == f"{mounts['pod-resources']['mountPath']}/kubelet.sock"
    assert paths["pod-resources"] == "/var/lib/kubelet/pod-resources"
    assert {name for name, mount in mounts.items() if not mount.get("readOnly")} == {"findings"}


def test_without_real_gpus_it_has_no_privileges() -> None:
    simulated = {"drop": ["ALL"], "add": ["SYS_PTRACE"]}  # to read the environment of the processes of pods
    for more, capabilities in (
        ({"simulate": "1xh100-sxm5-80gb"}, simulated),
        ({"node": {"privileged": False}}, {"drop": ["ALL"]}),
    ):
        context = exporter_pod(ON | more)[1]["securityContext"]
        assert context["capabilities"] == capabilities
        assert (context["privileged"], context["allowPrivilegeEscalation"]) == (False, False)
        assert context["readOnlyRootFilesystem"] is True


def test_the_node_process_writes_for_it_where_it_runs() -> None:
    for values, wanted in (({}, False), (ON, True)):
        spec = chart.found(chart.objects(values), "DaemonSet", "dra-driver-node")["spec"]["template"]["spec"]
        assert ({"name": "USAGE", "value": "true"} in spec["containers"][0]["env"]) is wanted


def test_another_kubelet_and_another_driver_name() -> None:
    values = ON | {"kubelet": {"rootDir": "/var/lib/k0s/kubelet"}, "driverName": "gpu.example.com"}
    spec, container = exporter_pod(values)
    found = settings(container)
    assert found.kubelet_plugins_dir == "/var/lib/k0s/kubelet/plugins"
    assert found.driver_name == "gpu.example.com"
    assert "/var/lib/k0s/kubelet/pod-resources" in str(spec["volumes"])
