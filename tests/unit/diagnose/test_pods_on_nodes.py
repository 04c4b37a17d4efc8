"""The pods of `kubectl dra doctor --on-node` and `hardware-check` see what the node process sees, and are none of its.

The doctor's can change nothing on the node.
"""

import argparse
import copy
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from dra_driver.core.errors import ConfigurationError
from dra_driver.diagnose.doctor.on_node import DEADLINE_S, doctor_pod, left_behind
from dra_driver.diagnose.hardware.main import add_choices, passed_on, total_s
from dra_driver.diagnose.hardware.remote import NAME, pod_for
from dra_driver.kube.pod_run import has_started, is_over, why_not_running
from tests.fakes.pods_on_nodes import DEPLOYED
from tests.harness.raising import fails

TEMPLATE = DEPLOYED["spec"]["template"]["spec"]
Made = Callable[[dict[str, Any]], Mapping[str, Any]]


def made(daemon_set: dict[str, Any] = DEPLOYED, **given: Any) -> Mapping[str, Any]:
    return doctor_pod(daemon_set, "node-7", suffix="0", **given)


def hardware_pod(daemon_set: dict[str, Any] = DEPLOYED, *arguments: str) -> Mapping[str, Any]:
    return pod_for(daemon_set, "node-7", arguments, suffix="0")


def long_hardware_pod(daemon_set: dict[str, Any]) -> Mapping[str, Any]:
    return pod_for(daemon_set, "node-7", ("--for", "45m"), suffix="0", total_s=total_s("45m"))


def test_all_choices_reach_the_pod() -> None:
    parser = argparse.ArgumentParser()
    add_choices(parser)
    given = ["--i-own-this-gpu", "--gpu", "1", "--only", "3", "--keep-identities", "--for", "45m", "--allow-xid"]
    assert passed_on(parser.parse_args(given)) == given
    assert {action.option_strings[0] for action in parser._actions} - {"-h"} == set(given) - {"1", "3", "45m"}


@pytest.mark.parametrize(
    ("make", "deadline_s"), [(made, DEADLINE_S), (hardware_pod, 900), (long_hardware_pod, 900 + 2700)]
)
def test_it_ends_by_itself_and_belongs_to_no_daemon_set(make: Made, deadline_s: int) -> None:
    """A command that was killed deletes nothing; the controller deletes pods that match its selector."""
    pod = make(DEPLOYED)
    assert pod["spec"]["activeDeadlineSeconds"] == deadline_s
    assert pod["spec"]["restartPolicy"] == "Never"
    assert pod["spec"]["nodeName"] == "node-7"
    assert pod["spec"]["automountServiceAccountToken"] is False
    assert pod["metadata"]["namespace"] == DEPLOYED["metadata"]["namespace"]
    assert not DEPLOYED["spec"]["selector"]["matchLabels"].items() <= pod["metadata"]["labels"].items()


@pytest.mark.parametrize("make", [made, hardware_pod])
def test_another_daemon_set_is_refused(make: Made) -> None:
    other = copy.deepcopy(DEPLOYED)
    other["spec"]["template"]["spec"]["containers"][0]["args"] = ["mps-host"]
    with fails(ConfigurationError, "ContainerNotFound", match="dra-driver-node"):
        make(other)


def test_every_folder_of_the_host_is_read_only() -> None:
    """The node process' own are writable in its pod; the scratch folder is no folder of the host."""
    pod = made(pods=("team-a/x", "team-b/y"), cri_socket="/run/x.sock")
    (container,) = pod["spec"]["containers"]
    assert container["args"][5:] == ["--cri-socket", "/run/x.sock", "--pod", "team-a/x", "--pod", "team-b/y"]
    of_host = {each["name"] for each in pod["spec"]["volumes"] if "hostPath" in each}
    mounts = [each for each in container["volumeMounts"] if each["name"] in of_host]
    assert {"/host", "/dev", "/var/lib/kubelet/plugins_registry"} <= {each["mountPath"] for each in mounts}
    for mount in mounts:
        assert mount["readOnly"] is True, mount
        assert mount["recursiveReadOnly"] == "IfPossible"
        assert "mountPropagation" not in mount, "the API server refuses both together"
    assert container["securityContext"]["readOnlyRootFilesystem"] is True
    assert container["terminationMessagePath"] == "/run/termination-log", "the default is in /dev, which is the host's"


def test_it_has_image_namespace_and_privileges_of_the_node_process_and_no_more() -> None:
    """NVML needs its device nodes; a cluster with the unprivileged variant gets an unprivileged doctor."""
    pod, original = made(), TEMPLATE["containers"][0]
    (container,) = pod["spec"]["containers"]
    assert container["image"] == original["image"]
    assert container["securityContext"].get("privileged") == original["securityContext"].get("privileged")
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


def test_only_old_pods_are_left_behind() -> None:
    """One without a time is new."""
    dated = {"old": "2026-11-22T10:00:00Z", "new": "2026-11-22T12:00:00Z"}
    pods = [{"metadata": {"name": name, "creationTimestamp": made}} for name, made in dated.items()]
    assert left_behind([*pods, {"metadata": {"name": "odd"}}], "2026-11-22T11:00:00Z") == ["old"]


def test_the_pod_has_image_places_and_privileges_of_the_deployed_node_process() -> None:
    pod = hardware_pod(DEPLOYED, "--only", "3")
    (container,), original = pod["spec"]["containers"], TEMPLATE["containers"][0]
    for field in ("image", "env", "securityContext"):
        assert container[field] == original[field]
    assert container["volumeMounts"][:-1] == original["volumeMounts"]
    assert pod["spec"]["volumes"][:-1] == TEMPLATE["volumes"]
    scratch = pod["spec"]["volumes"][-1]
    assert (scratch["emptyDir"], container["volumeMounts"][-1]["mountPath"]) == ({"sizeLimit": "256Mi"}, "/tmp")
    assert pod["spec"]["serviceAccountName"] == TEMPLATE["serviceAccountName"]
    assert container["args"] == ["hardware-check", "--print-report", "--only", "3"]
    assert pod["spec"]["terminationGracePeriodSeconds"] >= 60, "time to restore a GPU"
    assert not {"livenessProbe", "readinessProbe", "startupProbe", "ports"} & container.keys()


def test_a_command_in_place_of_arguments_is_replaced_at_the_same_word() -> None:
    """Overlays may call the program by its path."""
    other = copy.deepcopy(DEPLOYED)
    container = other["spec"]["template"]["spec"]["containers"][0]
    container["command"] = ["/opt/bin/dra-driver", "kubelet-plugin", "--log-level=debug"]
    container["args"] = []
    found = hardware_pod(other)["spec"]["containers"][0]
    assert found["command"] == ["/opt/bin/dra-driver", "hardware-check", "--print-report"]
    container |= {"command": ["/opt/bin/dra-driver"], "args": ["kubelet-plugin", "--driver-name=x"]}
    found = hardware_pod(other)["spec"]["containers"][0]
    assert (found["command"], found["args"]) == (["/opt/bin/dra-driver"], ["hardware-check", "--print-report"])


def with_state(phase: str, state: dict[str, Any] | None = None, **status: Any) -> dict[str, Any]:
    states = [{"name": "hardware-check", "state": state}] if state else []
    return {"status": {"phase": phase, "containerStatuses": states, **status}}


@pytest.mark.parametrize(
    ("pod", "text"),
    [
        (with_state("Pending"), ""),
        (with_state("Pending", {"waiting": {"reason": "ContainerCreating"}}), ""),
        (with_state("Running", {"running": {}}), ""),
        (with_state("Succeeded", {"terminated": {"exitCode": 0}}), ""),
        (
            with_state("Pending", {"waiting": {"reason": "ErrImagePull", "message": "no such\nimage"}}),
            "the pod cannot start (ErrImagePull): no such image",
        ),
        (
            with_state("Failed", {"terminated": {"exitCode": 137, "reason": "OOMKilled"}}),
            "the pod failed (OOMKilled, exit status 137)",
        ),
        (
            with_state("Failed", reason="DeadlineExceeded", message="too long"),
            "the pod failed (DeadlineExceeded): too long",
        ),
        ({}, ""),
    ],
)
def test_a_pod_that_cannot_give_a_report_says_why(pod: dict[str, Any], text: str) -> None:
    assert why_not_running(pod, NAME) == text


def test_a_log_is_read_from_the_start_of_the_container_to_the_end_of_the_pod() -> None:
    assert not has_started(with_state("Pending", {"waiting": {"reason": "ContainerCreating"}}), NAME)
    assert has_started(with_state("Running", {"running": {}}), NAME)
    assert has_started(with_state("Failed"), NAME)
    assert not any(is_over(with_state(phase)) for phase in ("Pending", "Running"))
    assert all(is_over(with_state(phase)) for phase in ("Succeeded", "Failed"))
