"""The pod of `kubectl dra hardware-check` sees what the node process sees, and is not taken for one of its pods."""

import copy
from pathlib import Path
from typing import Any

import pytest
import yaml

from dra_driver.core.errors import ConfigurationError
from dra_driver.diagnose.hardware.remote import NAME, pod_for
from dra_driver.kube.node_pod import has_started, is_over, why_not_running

DEPLOYED: dict[str, Any] = yaml.safe_load(
    (Path(__file__).parents[4] / "deploy/base/daemonset.yaml").read_text(encoding="utf-8")
)


def made(daemon_set: dict[str, Any] = DEPLOYED, *arguments: str) -> dict[str, Any]:
    return pod_for(daemon_set, "node-7", arguments, suffix="0")


def test_the_pod_has_image_places_and_privileges_of_the_deployed_node_process() -> None:
    """Taken from deploy/base itself."""
    pod, template = made(DEPLOYED, "--only", "3"), DEPLOYED["spec"]["template"]["spec"]
    (container,), original = pod["spec"]["containers"], template["containers"][0]
    for field in ("image", "env", "securityContext"):
        assert container[field] == original[field]
    assert container["volumeMounts"][:-1] == original["volumeMounts"]
    assert pod["spec"]["volumes"][:-1] == template["volumes"]
    scratch = pod["spec"]["volumes"][-1]
    assert (scratch["emptyDir"], container["volumeMounts"][-1]["mountPath"]) == ({"sizeLimit": "256Mi"}, "/tmp")
    assert pod["spec"]["serviceAccountName"] == template["serviceAccountName"]
    assert container["args"] == ["hardware-check", "--print-report", "--only", "3"]
    assert pod["spec"]["nodeName"] == "node-7"
    assert pod["metadata"]["namespace"] == DEPLOYED["metadata"]["namespace"]
    assert not {"livenessProbe", "readinessProbe", "startupProbe", "ports"} & container.keys()


def test_the_pod_ends_and_is_not_one_of_the_daemon_set() -> None:
    """The controller deletes pods that match its selector and are not its own."""
    pod = made()
    selector = DEPLOYED["spec"]["selector"]["matchLabels"]
    assert not selector.items() <= pod["metadata"]["labels"].items()
    assert pod["spec"]["restartPolicy"] == "Never"
    assert pod["spec"]["activeDeadlineSeconds"] == 900
    assert pod["spec"]["terminationGracePeriodSeconds"] >= 60, "restoring MIG takes its time"
    assert pod["spec"]["automountServiceAccountToken"] is False


def test_a_command_in_place_of_arguments_is_replaced_at_the_same_word() -> None:
    """Overlays may call the program by its path."""
    other = copy.deepcopy(DEPLOYED)
    container = other["spec"]["template"]["spec"]["containers"][0]
    container["command"] = ["/opt/bin/dra-driver", "kubelet-plugin", "--log-level=debug"]
    container["args"] = []
    assert made(other)["spec"]["containers"][0]["command"] == [
        "/opt/bin/dra-driver",
        "hardware-check",
        "--print-report",
    ]
    container |= {"command": ["/opt/bin/dra-driver"], "args": ["kubelet-plugin", "--driver-name=x"]}
    found = made(other)["spec"]["containers"][0]
    assert (found["command"], found["args"]) == (["/opt/bin/dra-driver"], ["hardware-check", "--print-report"])


def test_another_daemon_set_is_refused() -> None:
    """The MPS host's, for example."""
    other = copy.deepcopy(DEPLOYED)
    other["spec"]["template"]["spec"]["containers"][0]["args"] = ["mps-host"]
    with pytest.raises(ConfigurationError, match=r"does not run the node process: none of its containers \(node\)"):
        made(other)


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
    """And one that may still start says nothing."""
    assert why_not_running(pod, NAME) == text


def test_a_log_is_read_from_the_start_of_the_container_to_the_end_of_the_pod() -> None:
    """Before, the API server refuses it."""
    assert not has_started(with_state("Pending", {"waiting": {"reason": "ContainerCreating"}}), NAME)
    assert has_started(with_state("Running", {"running": {}}), NAME)
    assert has_started(with_state("Failed"), NAME)
    assert [is_over(with_state(phase)) for phase in ("Pending", "Running", "Succeeded", "Failed")] == [
        False,
        False,
        True,
        True,
    ]
