"""deploy/overlays as objects: what each changes, and that every path agrees with the process that uses it."""

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from dra_driver.cli.mps_host import MpsHostSettings
from dra_driver.config.options import flags_of, load
from dra_driver.config.settings import load_node_settings
from tests.fakes.kustomize import CLUSTER_SCOPED, DEPLOY, render

OVERLAYS = ("driver-container", "gpu-operator", "k0s", "namespace", "openshift")
MPS = "gpu.nvidia.com/mps"


def daemonset(objects: list[dict[str, Any]], name: str) -> dict[str, Any]:
    (found,) = [obj for obj in objects if (obj["kind"], obj["metadata"]["name"]) == ("DaemonSet", name)]
    spec: dict[str, Any] = found["spec"]["template"]["spec"]
    return spec


def environment(spec: dict[str, Any]) -> dict[str, str]:
    return {item["name"]: item["value"] for item in spec["containers"][0]["env"] if "value" in item}


def mounts(spec: dict[str, Any]) -> dict[str, tuple[str, str]]:
    """Path in the container and on the host by name of the volume."""
    hosts = {item["name"]: item["hostPath"]["path"] for item in spec["volumes"] if "hostPath" in item}
    inside = {item["name"]: item["mountPath"] for item in spec["containers"][0]["volumeMounts"]}
    return {name: (inside[name], path) for name, path in hosts.items()}


@pytest.mark.parametrize("overlay", [None, *OVERLAYS])
def test_every_setting_is_known_and_every_kubelet_path_is_the_same_inside_and_outside(overlay: str | None) -> None:
    """An unknown variable would be ignored, and the kubelet would dial a socket that it does not see."""
    objects = render(DEPLOY / "base" if overlay is None else DEPLOY / "overlays" / overlay)
    node, mps_host = daemonset(objects, "dra-driver-node"), daemonset(objects, "dra-driver-mps-host")
    settings = load_node_settings({}, environment(node) | {"NODE_NAME": "node-a"})
    own = f"{settings.kubelet_plugins_dir}/{settings.driver_name}"
    for name, path in (("plugins", own), ("plugins-registry", settings.kubelet_registrar_dir)):
        assert mounts(node)[name] == (path, path)
    assert mounts(node)["cdi"] == (settings.cdi_dir, settings.cdi_dir)
    assert mounts(mps_host)["mps"] == (f"{settings.kubelet_plugins_dir}/{MPS}",) * 2
    run = load(MpsHostSettings, {}, environment(mps_host)).run_dir
    assert mounts(mps_host)["run"] == (f"{run}/{settings.driver_name}-mps",) * 2
    known = {flag.option.env for flag in flags_of(MpsHostSettings)}
    assert environment(mps_host).keys() <= known
    plugins_of_mps_host = environment(mps_host).get("KUBELET_PLUGINS_DIR", "/var/lib/kubelet/plugins")
    assert plugins_of_mps_host == settings.kubelet_plugins_dir


@pytest.mark.parametrize("overlay", [None, *OVERLAYS])
def test_file_systems_that_the_mps_host_mounts_are_seen_by_the_container_runtime(overlay: str | None) -> None:
    """Without it no container of an MPS client starts: the folders that it mounts do not exist on the host."""
    spec = daemonset(
        render(DEPLOY / "base" if overlay is None else DEPLOY / "overlays" / overlay), "dra-driver-mps-host"
    )
    (run,) = [item for item in spec["containers"][0]["volumeMounts"] if item["name"] == "run"]
    assert run["mountPropagation"] == "Bidirectional"
    assert spec["containers"][0]["securityContext"]["privileged"], "Kubernetes demands it for Bidirectional"


@pytest.mark.parametrize("overlay", [None, *OVERLAYS])
@pytest.mark.parametrize("name", ["dra-driver-node", "dra-driver-mps-host"])
def test_the_driver_root_is_what_the_container_sees_of_the_host(overlay: str | None, name: str) -> None:
    """A wrong pair of paths starts pods without a GPU and without an error."""
    spec = daemonset(render(DEPLOY / "base" if overlay is None else DEPLOY / "overlays" / overlay), name)
    variables = environment(spec)
    inside, outside = mounts(spec)["driver-root"]
    (mount,) = [item for item in spec["containers"][0]["volumeMounts"] if item["name"] == "driver-root"]
    assert mount["mountPropagation"] == "HostToContainer"
    if not variables.get("DRIVER_ROOT"):
        assert (variables["HOST_ROOT"], outside) == (inside, "/")
        return
    assert not variables["HOST_ROOT"], "the mount does not show the host's /"
    assert variables["DRIVER_ROOT"].startswith(inside)
    below = variables["DRIVER_ROOT"].removeprefix(inside)
    if "DRIVER_ROOT_ON_HOST" in variables:
        assert Path(variables["DRIVER_ROOT_ON_HOST"]) == Path(outside + below)
    if "DEV_ROOT" in variables:
        assert (variables["DEV_ROOT"], variables["DEV_ROOT_ON_HOST"]) == (
            variables["DRIVER_ROOT"],
            variables["DRIVER_ROOT_ON_HOST"],
        )


@pytest.mark.parametrize("name", ["dra-driver-node", "dra-driver-mps-host"])
def test_a_driver_container_is_seen_through_its_parent_folder(name: str) -> None:
    """A mount of /run/nvidia/driver itself would keep the root of a driver container that is gone."""
    spec = daemonset(render(DEPLOY / "overlays" / "driver-container"), name)
    (volume,) = [item for item in spec["volumes"] if item["name"] == "driver-root"]
    assert volume["hostPath"] == {"path": "/run/nvidia", "type": "DirectoryOrCreate"}
    assert environment(spec)["DRIVER_ROOT"] == "/driver-root/driver"


@pytest.mark.parametrize("overlay", [None, *OVERLAYS])
@pytest.mark.parametrize("name", ["dra-driver-node", "dra-driver-mps-host"])
def test_the_hosts_dev_is_mounted_to_be_written_and_nothing_else_is_put_into_it(overlay: str | None, name: str) -> None:
    """Pods in a user namespace get the host's nodes. The kubelet puts its termination log into /dev by default."""
    spec = daemonset(render(DEPLOY / "base" if overlay is None else DEPLOY / "overlays" / overlay), name)
    (container,) = spec["containers"]
    (mount,) = [item for item in container["volumeMounts"] if item["name"] == "dev"]
    assert mount == {"name": "dev", "mountPath": "/dev"}
    assert mounts(spec)["dev"] == ("/dev", "/dev")
    assert not container["terminationMessagePath"].startswith("/dev")


@pytest.mark.parametrize("overlay", [None, *OVERLAYS])
@pytest.mark.parametrize("name", ["dra-driver-node", "dra-driver-mps-host"])
def test_only_folders_of_the_driver_can_be_written(overlay: str | None, name: str) -> None:
    """Not the container's own files, and no folder of another plugin. The host's / is another matter."""
    spec = daemonset(render(DEPLOY / "base" if overlay is None else DEPLOY / "overlays" / overlay), name)
    (container,) = spec["containers"]
    assert container["securityContext"]["readOnlyRootFilesystem"] is True
    writable = {item["name"] for item in container["volumeMounts"] if not item.get("readOnly")}
    assert writable <= {"plugins", "plugins-registry", "cdi", "dev", "mps", "run", "shm"}
    for volume in ("plugins", "mps"):
        assert "/gpu.nvidia.com" in mounts(spec).get(volume, ("", "/gpu.nvidia.com"))[1]


@pytest.mark.parametrize("overlay", [None, *OVERLAYS])
def test_no_probe_can_restart_the_mps_host(overlay: str | None) -> None:
    """Its end ends the work of every MPS client of the node."""
    spec = daemonset(
        render(DEPLOY / "base" if overlay is None else DEPLOY / "overlays" / overlay), "dra-driver-mps-host"
    )
    (container,) = spec["containers"]
    assert "livenessProbe" not in container
    assert "startupProbe" not in container
    assert container["readinessProbe"]["exec"]["command"] == ["/opt/dra-driver/bin/dra-driver", "mps-host", "--check"]


@pytest.mark.parametrize("name", ["dra-driver-node", "dra-driver-mps-host"])
def test_nodes_with_boards_of_either_class_are_chosen(name: str) -> None:
    """Node Feature Discovery labels a board with a display output by another class than one without."""
    affinity = daemonset(render(DEPLOY / "base"), name)["affinity"]["nodeAffinity"]
    terms = affinity["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
    keys = [term["matchExpressions"][0]["key"] for term in terms]
    assert keys == [
        "nvidia.com/gpu.present",
        "feature.node.kubernetes.io/pci-10de.present",
        "feature.node.kubernetes.io/pci-0302_10de.present",
        "feature.node.kubernetes.io/pci-0300_10de.present",
    ]


def test_on_openshift_both_accounts_and_no_others_may_use_the_privileged_constraint() -> None:
    """``default``, which the MPS host has elsewhere, is the account of every other pod of the namespace."""
    objects = render(DEPLOY / "overlays" / "openshift")
    (binding,) = [obj for obj in objects if obj.get("roleRef", {}).get("name") == "system:openshift:scc:privileged"]
    assert (binding["kind"], binding["metadata"]["namespace"]) == ("RoleBinding", "dra-driver")
    accounts = {(subject["kind"], subject["namespace"], subject["name"]) for subject in binding["subjects"]}
    names = [daemonset(objects, name)["serviceAccountName"] for name in ("dra-driver-node", "dra-driver-mps-host")]
    assert accounts == {("ServiceAccount", "dra-driver", name) for name in names}
    made = {obj["metadata"]["name"] for obj in objects if obj["kind"] == "ServiceAccount"}
    assert set(names) <= made
    assert "default" not in names
    assert daemonset(objects, "dra-driver-mps-host")["automountServiceAccountToken"] is False


def test_another_namespace_moves_everything_but_the_role_for_events() -> None:
    """The API server accepts events about nodes only in ``default``; every binding names the moved account."""
    objects = render(DEPLOY / "overlays" / "namespace")
    namespaces = {
        (obj["kind"], obj["metadata"]["name"]): obj["metadata"]["namespace"]
        for obj in objects
        if obj["kind"] not in CLUSTER_SCOPED
    }
    events = [key for key, namespace in namespaces.items() if namespace == "default"]
    assert sorted(events) == [("Role", "dra-driver-node-events"), ("RoleBinding", "dra-driver-node-events")]
    assert {namespace for key, namespace in namespaces.items() if key not in events} == {"gpu-driver"}
    subjects = [subject for obj in objects for subject in obj.get("subjects", ())]
    assert [subject["namespace"] for subject in subjects] == ["gpu-driver"] * 2
    assert [obj["metadata"]["name"] for obj in objects if obj["kind"] == "Namespace"] == ["gpu-driver"]


def test_the_network_policy_selects_all_pods() -> None:
    (policy,) = render(DEPLOY / "components" / "network-policy")
    (expression,) = policy["spec"]["podSelector"]["matchExpressions"]
    objects = render(DEPLOY / "components" / "controller", render(DEPLOY / "base"))
    workloads = [obj for obj in objects if obj["kind"] in {"DaemonSet", "Deployment"}]
    labels = [obj["spec"]["template"]["metadata"]["labels"] for obj in workloads]
    assert {label[expression["key"]] for label in labels} == set(expression["values"])


def test_the_claim_status_component_allows_no_more_than_own_entries_of_own_claims() -> None:
    """The right to write a claim's status is narrowed by the driver's name and the node of the token."""
    objects = render(DEPLOY / "components" / "claim-status", render(DEPLOY / "base"))
    (role,) = [obj for obj in objects if obj["metadata"]["name"] == "dra-driver-claim-status" and "rules" in obj]
    rules = {rule["resources"][0]: (rule["verbs"], rule.get("resourceNames")) for rule in role["rules"]}
    assert rules == {
        "resourceclaims/status": (["patch"], None),
        "resourceclaims/driver": (["associated-node:patch"], ["gpu.nvidia.com"]),
    }
    (daemonset,) = [
        obj for obj in objects if obj["metadata"]["name"] == "dra-driver-node" and obj["kind"] == "DaemonSet"
    ]
    env = {each["name"]: each.get("value") for each in daemonset["spec"]["template"]["spec"]["containers"][0]["env"]}
    assert (env["CLAIM_STATUS"], env["HTTP_ADDR"]) == ("true", ":8080")


def test_the_claim_events_component_allows_no_more_than_writing_events() -> None:
    """And switches them on, without a change of other settings."""
    objects = render(DEPLOY / "components" / "claim-events", render(DEPLOY / "base"))
    (role,) = [obj for obj in objects if obj["metadata"]["name"] == "dra-driver-claim-events" and "rules" in obj]
    assert role["rules"] == [{"apiGroups": [""], "resources": ["events"], "verbs": ["create", "patch"]}]
    (binding,) = [obj for obj in objects if obj.get("roleRef", {}).get("name") == "dra-driver-claim-events"]
    assert binding["subjects"] == [{"kind": "ServiceAccount", "name": "dra-driver-node", "namespace": "dra-driver"}]
    before, after = (environment(daemonset(each, "dra-driver-node")) for each in (render(DEPLOY / "base"), objects))
    assert after == before | {"CLAIM_EVENTS": "true"}
    assert load_node_settings({}, after | {"NODE_NAME": "node-a"}).claim_events


@pytest.mark.parametrize("folder", ["base", *(f"overlays/{name}" for name in OVERLAYS)])
def test_kubectl_renders_the_same_objects(folder: str) -> None:
    """The renderer of these tests against kustomize itself."""
    kubectl = os.environ.get("KUBECTL") or shutil.which("kubectl")
    if kubectl is None:
        pytest.skip("no kubectl on PATH and $KUBECTL is not set")
    command = [kubectl, "kustomize", str(DEPLOY / folder)]
    text = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout
    assert by_identity(list(yaml.safe_load_all(text))) == by_identity(render(DEPLOY / folder))


def by_identity(objects: list[dict[str, Any]]) -> dict[tuple[str, str], Any]:
    return {(obj["kind"], obj["metadata"]["name"]): comparable(obj) for obj in objects}


def comparable(obj: dict[str, Any]) -> Any:
    """Without the namespace that kustomize 5.5 gives to cluster-scoped kinds unknown to it, and without order."""
    if obj["kind"] in CLUSTER_SCOPED:
        obj["metadata"].pop("namespace", None)
    return unordered(obj)


def unordered(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: unordered(item) for key, item in value.items()}
    if isinstance(value, list):
        return sorted((unordered(item) for item in value), key=lambda item: json.dumps(item, sort_keys=True))
    return value


def test_cleanup_sees_every_place_of_both_processes() -> None:
    """What it does not see stays on the node; the folder that it removes must not be a mount itself."""
    base = render(DEPLOY / "base")
    node, mps_host = daemonset(base, "dra-driver-node"), daemonset(base, "dra-driver-mps-host")
    pod = yaml.safe_load((DEPLOY / "cleanup/pod.yaml").read_text())["spec"]
    found, variables = mounts(pod), environment(pod)
    for name, path in (mounts(node) | mounts(mps_host)).items():
        assert [mount for mount in found.values() if Path(path[1]).is_relative_to(mount[1])], name
    assert found["plugins"][1] == str(Path(mounts(node)["plugins"][1]).parent)
    assert (variables["MPS_RUN_DIR"], "/run") == found["run"]
    assert {name: variables[name] for name in ("CDI_DIR", "HOST_ROOT")} == {
        name: environment(node)[name] for name in ("CDI_DIR", "HOST_ROOT")
    }
    (run,) = [item for item in pod["containers"][0]["volumeMounts"] if item["name"] == "run"]
    assert run["mountPropagation"] == "Bidirectional"
    assert pod["containers"][0]["image"] == node["containers"][0]["image"]
