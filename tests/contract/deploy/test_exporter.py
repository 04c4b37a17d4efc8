"""The exporter's DaemonSet has what it reads, and no rights beyond that."""

from typing import Any

from dra_driver.config.exporter_settings import ExporterSettings
from dra_driver.config.options import load
from tests.fakes import chart

ON: dict[str, Any] = {"exporter": {"enabled": True}}


def pod(values: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    spec = chart.found(chart.objects(values), "DaemonSet", "dra-driver-exporter")["spec"]["template"]["spec"]
    (container,) = spec["containers"]
    return spec, container


def settings(container: dict[str, Any]) -> ExporterSettings:
    environ = {each["name"]: each.get("value", "node-a") for each in container["env"]}
    return load(ExporterSettings, {}, environ)


def test_it_has_no_token_no_host_pids_and_no_right_in_the_cluster() -> None:
    objects = chart.objects(ON)
    spec, _ = pod(ON)
    assert spec["automountServiceAccountToken"] is False
    assert "hostPID" not in spec
    assert pod({"exporter": {"enabled": True, "hostPID": True}})[0]["hostPID"] is True
    assert not [obj for obj in objects if "dra-driver-exporter" in str(obj.get("subjects"))]


def test_each_folder_is_mounted_where_its_setting_says() -> None:
    spec, container = pod(ON)
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
        context = pod(ON | more)[1]["securityContext"]
        assert context["capabilities"] == capabilities
        assert (context["privileged"], context["allowPrivilegeEscalation"]) == (False, False)
        assert context["readOnlyRootFilesystem"] is True


def test_the_node_process_writes_for_it_where_it_runs() -> None:
    for values, wanted in (({}, False), (ON, True)):
        spec = chart.found(chart.objects(values), "DaemonSet", "dra-driver-node")["spec"]["template"]["spec"]
        assert ({"name": "USAGE", "value": "true"} in spec["containers"][0]["env"]) is wanted


def test_another_kubelet_and_another_driver_name() -> None:
    values = ON | {"kubelet": {"rootDir": "/var/lib/k0s/kubelet"}, "driverName": "gpu.example.com"}
    spec, container = pod(values)
    found = settings(container)
    assert found.kubelet_plugins_dir == "/var/lib/k0s/kubelet/plugins"
    assert found.driver_name == "gpu.example.com"
    assert "/var/lib/k0s/kubelet/pod-resources" in str(spec["volumes"])
