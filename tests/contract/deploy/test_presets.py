"""Every preset of deploy/chart, with all processes on: paths agree with the process that uses them."""

from pathlib import Path
from typing import Any

import pytest

from dra_driver.config.controller_settings import ControllerSettings
from dra_driver.config.options import flags_of, load
from dra_driver.config.settings import NodeSettings, load_node_settings
from dra_driver.hardware.sharing.main import MpsHostSettings
from tests.fakes import chart
from tests.fakes.chart import Obj, environment, mounts, pod_spec

NAMES = tuple(sorted(path.stem for path in chart.PRESETS.glob("*.yaml")))
# A preset may be used with every other value, so it is looked at with both processes of nodes and the controller.
ALL_ON: Obj = {"mpsHost": {"enabled": True}, "controller": {"enabled": True}}
NODE, MPS = ("DaemonSet", "dra-driver-node"), ("DaemonSet", "dra-driver-mps-host")
presets = pytest.mark.parametrize("preset", NAMES)
both = pytest.mark.parametrize("workload", [NODE, MPS], ids=["node", "mps-host"])


def rendered(preset: str) -> list[Obj]:
    values = chart.preset(preset)
    return chart.objects(values | {name: values.get(name, {}) | on for name, on in ALL_ON.items()})


@presets
def test_every_setting_is_known_and_every_kubelet_path_is_the_same_inside_and_outside(preset: str) -> None:
    """An unknown variable would be ignored, and the kubelet would dial a socket that it does not see."""
    objects = rendered(preset)
    node, mps_host = pod_spec(objects, *NODE), pod_spec(objects, *MPS)
    settings = load_node_settings({}, environment(node) | {"NODE_NAME": "node-a"})
    own = f"{settings.kubelet_plugins_dir}/{settings.driver_name}"
    for name, path in (("plugins", own), ("plugins-registry", settings.kubelet_registrar_dir)):
        assert mounts(node)[name] == (path, path)
    assert mounts(node)["cdi"] == (settings.cdi_dir, settings.cdi_dir)
    assert mounts(mps_host)["mps"] == (f"{own}/mps",) * 2
    of_mps = load(MpsHostSettings, {}, environment(mps_host))
    assert mounts(mps_host)["run"] == (f"{of_mps.run_dir}/{settings.driver_name}-mps",) * 2
    assert (of_mps.kubelet_plugins_dir, of_mps.driver_name) == (settings.kubelet_plugins_dir, settings.driver_name)


@presets
@pytest.mark.parametrize(
    ("workload", "settings"),
    [(NODE, NodeSettings), (MPS, MpsHostSettings), (("Deployment", "dra-driver-controller"), ControllerSettings)],
    ids=["node", "mps-host", "controller"],
)
def test_no_variable_is_set_twice_and_each_is_a_setting(
    preset: str, workload: tuple[str, str], settings: type[Any]
) -> None:
    (container,) = pod_spec(rendered(preset), *workload)["containers"]
    names = [item["name"] for item in container["env"]]
    assert len(names) == len(set(names))
    of_nvidias_runtime = {"NVIDIA_VISIBLE_DEVICES", "NVIDIA_DRIVER_CAPABILITIES"}
    assert set(names) - of_nvidias_runtime <= {flag.env for flag in flags_of(settings)}


@presets
@both
def test_the_driver_root_is_what_the_container_sees_of_the_host(preset: str, workload: tuple[str, str]) -> None:
    """A wrong pair of paths starts pods without a GPU and without an error."""
    spec = pod_spec(rendered(preset), *workload)
    variables = environment(spec)
    inside, outside = mounts(spec)["driver-root"]
    (mount,) = [item for item in spec["containers"][0]["volumeMounts"] if item["name"] == "driver-root"]
    assert mount["readOnly"]
    if "DRIVER_ROOT" not in variables:
        assert (variables["HOST_ROOT"], outside) == (inside, "/")
        assert mount["mountPropagation"] == "HostToContainer"
        return
    assert "HOST_ROOT" not in variables, "the mount does not show the host's /"
    assert Path(variables["DRIVER_ROOT"]).is_relative_to(inside)
    below = variables["DRIVER_ROOT"].removeprefix(inside)
    if "DRIVER_ROOT_ON_HOST" in variables:
        assert Path(variables["DRIVER_ROOT_ON_HOST"]) == Path(outside + below)
    if "DEV_ROOT" in variables:
        assert (variables["DEV_ROOT"], variables["DEV_ROOT_ON_HOST"]) == (
            variables["DRIVER_ROOT"],
            variables["DRIVER_ROOT_ON_HOST"],
        )


@both
def test_a_driver_container_is_seen_through_its_parent_folder(workload: tuple[str, str]) -> None:
    """A mount of /run/nvidia/driver itself would keep the root of a driver container that is gone."""
    spec = pod_spec(rendered("driver-container"), *workload)
    (volume,) = [item for item in spec["volumes"] if item["name"] == "driver-root"]
    assert volume["hostPath"] == {"path": "/run/nvidia", "type": "DirectoryOrCreate"}
    assert environment(spec)["DRIVER_ROOT"] == "/driver-root/driver"


def test_with_simulated_gpus_the_mps_host_runs_the_simulated_programs() -> None:
    objects = chart.objects(chart.preset("simulated"))
    node, mps_host = pod_spec(objects, *NODE), pod_spec(objects, *MPS)
    root = f"{mounts(node)['plugins'][0]}/simulated-root"
    assert environment(node)["SIMULATE"]
    assert environment(mps_host)["DRIVER_ROOT"] == root
    assert mounts(mps_host)["driver-root"] == (root, root)
    assert "affinity" not in node, "no Node has a label of GPUs there"


@presets
@both
def test_the_hosts_dev_is_mounted_to_be_written_and_nothing_else_is_put_into_it(
    preset: str, workload: tuple[str, str]
) -> None:
    """Pods in a user namespace get the host's nodes. The kubelet puts its termination log into /dev by default."""
    spec = pod_spec(rendered(preset), *workload)
    (container,) = spec["containers"]
    assert not container["terminationMessagePath"].startswith("/dev")
    if container["securityContext"]["privileged"]:
        (mount,) = [item for item in container["volumeMounts"] if item["name"] == "dev"]
        assert mount == {"name": "dev", "mountPath": "/dev"}
        assert mounts(spec)["dev"] == ("/dev", "/dev")
    else:
        assert "dev" not in mounts(spec)


@presets
@both
def test_only_folders_of_the_driver_can_be_written(preset: str, workload: tuple[str, str]) -> None:
    spec = pod_spec(rendered(preset), *workload)
    (container,) = spec["containers"]
    assert container["securityContext"]["readOnlyRootFilesystem"] is True
    writable = {item["name"] for item in container["volumeMounts"] if not item.get("readOnly")}
    assert writable <= {"plugins", "plugins-registry", "cdi", "dev", "mps", "run", "shm"}
    for volume in ("plugins", "mps"):
        assert "/gpu.nvidia.com" in mounts(spec).get(volume, ("", "/gpu.nvidia.com"))[1]


@presets
def test_no_probe_can_restart_the_mps_host_and_the_runtime_sees_what_it_mounts(preset: str) -> None:
    """Its end ends the work of every MPS client of the node; without the second no container of a client starts."""
    (container,) = pod_spec(rendered(preset), *MPS)["containers"]
    assert not {"livenessProbe", "startupProbe"} & container.keys()
    assert container["readinessProbe"]["exec"]["command"] == ["/opt/dra-driver/bin/dra-driver", "mps-host", "--check"]
    (run,) = [item for item in container["volumeMounts"] if item["name"] == "run"]
    assert run["mountPropagation"] == "Bidirectional"
    assert container["securityContext"]["privileged"], "Kubernetes demands it for Bidirectional"


def test_the_unprivileged_node_process_has_no_rights_and_a_policy_for_whole_gpus_alone() -> None:
    objects = chart.objects(chart.preset("unprivileged"))
    spec = pod_spec(objects, *NODE)
    own = spec["containers"][0]["securityContext"]
    assert not own["privileged"]
    assert not own["allowPrivilegeEscalation"]
    assert own["capabilities"] == {"drop": ["ALL"]}
    assert spec["runtimeClassName"] == "nvidia"
    assert environment(spec)["NVIDIA_VISIBLE_DEVICES"] == "all"
    assert [obj for obj in objects if obj["metadata"]["name"] == MPS[1]] == []
    (text,) = chart.found(objects, "ConfigMap", "dra-driver-policies")["data"].values()
    assert "migProfiles: []" in text


def test_on_openshift_the_controller_may_run_as_its_fixed_user() -> None:
    """The default constraint takes the users of the namespace's range alone."""
    objects = rendered("openshift")
    (binding,) = [obj for obj in objects if obj.get("roleRef", {}).get("name") == "system:openshift:scc:nonroot-v2"]
    assert [subject["name"] for subject in binding["subjects"]] == ["dra-driver-controller"]


def test_on_openshift_the_accounts_of_both_processes_may_use_the_privileged_constraint_and_no_others() -> None:
    """``default`` is the account of every other pod of the namespace."""
    objects = rendered("openshift")
    (binding,) = [obj for obj in objects if obj.get("roleRef", {}).get("name") == "system:openshift:scc:privileged"]
    assert (binding["kind"], binding["metadata"]["namespace"]) == ("RoleBinding", "dra-driver")
    accounts = {(subject["kind"], subject["namespace"], subject["name"]) for subject in binding["subjects"]}
    names = [pod_spec(objects, *each)["serviceAccountName"] for each in (NODE, MPS)]
    assert accounts == {("ServiceAccount", "dra-driver", name) for name in names}
    made = {obj["metadata"]["name"] for obj in objects if obj["kind"] == "ServiceAccount"}
    assert set(names) <= made
    assert "default" not in names
    assert pod_spec(objects, *MPS)["automountServiceAccountToken"] is False


@presets
def test_cleanup_sees_every_place_of_both_processes(preset: str) -> None:
    """What it does not see stays on the node; the folder that it removes must not be a mount itself."""
    objects = rendered(preset)
    node, mps_host = pod_spec(objects, *NODE), pod_spec(objects, *MPS)
    values = chart.preset(preset) | {"cleanup": {"node": "node-a"}}
    pod = chart.found(chart.objects(values), "Pod", "dra-driver-cleanup-node-a")["spec"]
    seen, variables = mounts(pod), environment(pod)
    for name, path in (mounts(node) | mounts(mps_host)).items():
        assert [mount for mount in seen.values() if Path(path[1]).is_relative_to(mount[1])], name
    assert seen["plugins"][1] == str(Path(mounts(node)["plugins"][1]).parent)
    assert (variables["MPS_RUN_DIR"], "/run") == seen["run"]
    of_node = environment(node)
    shared = ("CDI_DIR", "HOST_ROOT", "DRIVER_ROOT", "SIMULATE", "KUBELET_PLUGINS_DIR", "DRIVER_NAME")
    assert {name: variables.get(name) for name in shared} == {name: of_node.get(name) for name in shared}
    (run,) = [item for item in pod["containers"][0]["volumeMounts"] if item["name"] == "run"]
    assert run["mountPropagation"] == "Bidirectional"
    assert pod["containers"][0]["image"] == node["containers"][0]["image"]
