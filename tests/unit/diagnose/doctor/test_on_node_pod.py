"""The pod of `kubectl dra doctor --on-node` sees what the node process sees, and can change none of it."""

import copy
from pathlib import Path
from typing import Any

import pytest
import yaml

from dra_driver.core.errors import ConfigurationError
from dra_driver.diagnose.doctor.on_node import DEADLINE_S, doctor_pod, left_behind

DEPLOYED: dict[str, Any] = yaml.safe_load(
    (Path(__file__).parents[4] / "deploy/base/daemonset.yaml").read_text(encoding="utf-8")
)
TEMPLATE = DEPLOYED["spec"]["template"]["spec"]


def made(daemon_set: dict[str, Any] = DEPLOYED, **given: Any) -> dict[str, Any]:
    return doctor_pod(daemon_set, "node-7", suffix="0", **given)


def test_every_folder_of_the_host_is_read_only() -> None:
    """The node process' own are writable in its pod; the scratch folder is no folder of the host."""
    pod = made()
    (container,) = pod["spec"]["containers"]
    of_host = {each["name"] for each in pod["spec"]["volumes"] if "hostPath" in each}
    mounts = [each for each in container["volumeMounts"] if each["name"] in of_host]
    assert {"/host", "/dev", "/var/lib/kubelet/plugins_registry"} <= {each["mountPath"] for each in mounts}
    for mount in mounts:
        assert mount["readOnly"] is True, mount
        assert mount["recursiveReadOnly"] == "IfPossible"
        assert "mountPropagation" not in mount, "the API server refuses both together"
    assert container["securityContext"]["readOnlyRootFilesystem"] is True


def test_it_has_image_namespace_and_privileges_of_the_node_process_and_no_more() -> None:
    """NVML needs its device nodes; a cluster with the unprivileged variant gets an unprivileged doctor."""
    pod, original = made(), TEMPLATE["containers"][0]
    (container,) = pod["spec"]["containers"]
    assert container["image"] == original["image"]
    assert container["securityContext"].get("privileged") == original["securityContext"].get("privileged")
    assert pod["metadata"]["namespace"] == DEPLOYED["metadata"]["namespace"]
    assert pod["spec"]["automountServiceAccountToken"] is False
    assert not {"hostPID", "hostNetwork", "hostIPC"} & pod["spec"].keys()
    less = copy.deepcopy(DEPLOYED)
    less["spec"]["template"]["spec"]["containers"][0]["securityContext"] = {"capabilities": {"drop": ["ALL"]}}
    security = made(less)["spec"]["containers"][0]["securityContext"]
    assert security == {"capabilities": {"drop": ["ALL"]}, "readOnlyRootFilesystem": True}


def test_what_may_be_missing_in_a_broken_cluster_is_not_mounted() -> None:
    """A pod waits for ever for a ConfigMap that is not there; the doctor is to start all the same."""
    pod = made()
    assert all("hostPath" in each or "emptyDir" in each for each in pod["spec"]["volumes"])
    names = {each["name"] for each in pod["spec"]["volumes"]}
    assert {each["name"] for each in pod["spec"]["containers"][0]["volumeMounts"]} == names


def test_it_ends_by_itself_and_belongs_to_no_daemon_set() -> None:
    """A command that was killed deletes nothing."""
    pod = made()
    assert pod["spec"]["activeDeadlineSeconds"] == DEADLINE_S
    assert pod["spec"]["restartPolicy"] == "Never"
    assert pod["spec"]["nodeName"] == "node-7"
    assert not DEPLOYED["spec"]["selector"]["matchLabels"].items() <= pod["metadata"]["labels"].items()


def test_the_message_of_its_end_is_not_written_into_the_hosts_dev() -> None:
    """The default path is in /dev, which is the host's in this pod."""
    assert made()["spec"]["containers"][0]["terminationMessagePath"] == "/run/termination-log"


def test_pods_and_socket_are_passed_on() -> None:
    """As flags of the command in the pod."""
    args = made(pods=("team-a/x", "team-b/y"), cri_socket="/run/x.sock")["spec"]["containers"][0]["args"]
    assert args[5:] == ["--cri-socket", "/run/x.sock", "--pod", "team-a/x", "--pod", "team-b/y"]


def test_another_daemon_set_is_refused() -> None:
    """The MPS host's, for example."""
    other = copy.deepcopy(DEPLOYED)
    other["spec"]["template"]["spec"]["containers"][0]["args"] = ["mps-host"]
    with pytest.raises(ConfigurationError, match="does not run the node process"):
        made(other)


def test_only_old_pods_are_left_behind() -> None:
    """One without a time is new."""
    pods = [
        {"metadata": {"name": "old", "creationTimestamp": "2026-11-22T10:00:00Z"}},
        {"metadata": {"name": "new", "creationTimestamp": "2026-11-22T12:00:00Z"}},
        {"metadata": {"name": "odd"}},
    ]
    assert left_behind(pods, "2026-11-22T11:00:00Z") == ["old"]
