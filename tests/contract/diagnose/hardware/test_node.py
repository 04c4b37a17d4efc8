"""``kubectl dra hardware-check`` against the embedded API server, with a kubelet that plays the pod."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from dra_driver.core.errors import ApiUnreachableError
from dra_driver.diagnose.hardware import storage
from dra_driver.diagnose.hardware.remote import run_on_node
from dra_driver.diagnose.hardware.values import HardwareReport, Reading
from dra_driver.kube.pod_run import PodPlace
from dra_driver.kube.rest import RestClient
from dra_driver.kubectl.commands.kubectl import main
from dra_driver.sim.apiserver.server import ApiServer
from tests.fakes.pods_on_nodes import DEPLOYED, NAMESPACE, PODS, Kubelet, Refuses, Statuses, state
from tests.fakes.scripted_http import Exchange, ScriptedServer

REPORT = HardwareReport(about={"version": "1", "interrupted": False}, survey=Reading(), records=())
CREATING = state("Pending", waiting={"reason": "ContainerCreating"})
RUNNING = state("Running", running={})
ENDED = state("Failed", terminated={"exitCode": 2})


@pytest.fixture
def check(kubeconfig: str, tmp_path: Path) -> Callable[..., int]:
    def run(*arguments: str) -> int:
        output = ["--output", str(tmp_path / "report.json")]
        return main(["hardware-check", "node-7", "--kubeconfig", kubeconfig, *output, *arguments])

    return run


def test_lines_and_report_of_the_node_arrive_and_the_pod_is_gone(
    api: ApiServer, cluster: RestClient, check: Callable[..., int], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The exit status is that of the check: 2, as the node has no GPU."""
    script: Statuses = [
        (CREATING, ""),
        (RUNNING, "no usable NVIDIA GPU: none\n 1  CUDA\n"),
        (ENDED, f" 2  held\n{storage.pack(REPORT)}\n"),
    ]
    with Kubelet(api, cluster, script).running() as kubelet:
        assert check("--only", "3,4", "--gpu", "0") == 2
    assert storage.load(tmp_path / "report.json") == REPORT
    assert cluster.list(PODS)["items"] == []
    (pod,) = kubelet.pods
    assert pod["spec"]["nodeName"] == "node-7"
    assert pod["spec"]["containers"][0]["args"] == ["hardware-check", "--print-report", "--gpu", "0", "--only", "3,4"]
    lines = capsys.readouterr().out.splitlines()
    assert lines[:3] == ["no usable NVIDIA GPU: none", " 1  CUDA", " 2  held"]
    assert lines[3].startswith("report: ")


def test_an_image_that_cannot_be_pulled_does_not_wait_for_the_deadline(
    api: ApiServer, cluster: RestClient, check: Callable[..., int], capsys: pytest.CaptureFixture[str]
) -> None:
    waiting = {"reason": "ImagePullBackOff", "message": "Back-off pulling image"}
    with Kubelet(api, cluster, [(state("Pending", waiting=waiting), "")]).running():
        assert check() == 1
    assert "cannot start (ImagePullBackOff): Back-off pulling image" in capsys.readouterr().err


def test_a_pod_can_be_kept(
    api: ApiServer, cluster: RestClient, check: Callable[..., int], capsys: pytest.CaptureFixture[str]
) -> None:
    with Kubelet(api, cluster, [(ENDED, f"{storage.pack(REPORT)}\n")]).running() as kubelet:
        check("--keep")
    (pod,) = cluster.list(PODS)["items"]
    assert f"kept: pod {pod['metadata']['name']} in namespace {NAMESPACE}" in capsys.readouterr().out
    assert kubelet.pods[0]["metadata"]["name"] == pod["metadata"]["name"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--daemonset", "other"), "no DaemonSet other in namespace dra-driver"),
        (("-n", "other"), "no DaemonSet dra-driver-node in namespace other"),
        (("--only", "x"), "--only x: expected numbers"),
    ],
)
@pytest.mark.usefixtures("cluster")
def test_a_wrong_name_is_one_sentence(
    check: Callable[..., int], capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], message: str
) -> None:
    assert check(*arguments) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("refused", "right"),
    [
        ("GET /apis/apps", "needs the right to get daemonsets.apps in namespace dra-driver"),
        ("POST /api/v1", "needs the right to create pods in namespace dra-driver"),
    ],
)
def test_a_missing_right_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str], refused: str, right: str) -> None:
    def answer(exchange: Exchange) -> None:
        seen = f"{exchange.seen.method} {exchange.seen.path}"
        if seen.startswith((refused, "GET /api/v1/nodes")):
            exchange.json({"kind": "Status", "code": 403, "reason": "Forbidden", "message": "no"}, 403)
        else:
            exchange.json(DEPLOYED)

    with ScriptedServer(answer) as server:
        path = tmp_path / "kubeconfig"
        path.write_text(server.kubeconfig())
        assert main(["hardware-check", "node-7", "--kubeconfig", str(path)]) == 1
    assert right in capsys.readouterr().err


@pytest.mark.parametrize("loss", [KeyboardInterrupt(), ApiUnreachableError("no answer")], ids=["ctrl-c", "lost"])
@pytest.mark.parametrize("keep", [False, True])
def test_a_pod_is_deleted_although_the_answer_to_creating_it_was_lost(
    cluster: RestClient, loss: BaseException, keep: bool
) -> None:
    place = PodPlace(command="kubectl dra hardware-check", node="node-7", keep=keep)
    said: list[str] = []
    with pytest.raises(type(loss)):
        run_on_node(Refuses(cluster, loss, creates=True), place, (), said.append)
    assert all("deletionTimestamp" in pod["metadata"] for pod in cluster.list(PODS)["items"])  # the kubelet's turn
    assert said == []


def test_signals_while_the_pod_is_deleted_change_nothing(
    api: ApiServer, cluster: RestClient, kubeconfig: str, tmp_path: Path
) -> None:
    script = (
        "import os, signal, sys\n"
        "from dra_driver.kube.rest import RestClient\n"
        "delete = RestClient.delete\n"
        "def slow(*arguments):\n"
        "    os.kill(os.getpid(), signal.SIGINT); os.kill(os.getpid(), signal.SIGTERM)\n"
        "    return delete(*arguments)\n"
        "RestClient.delete = slow\n"
        "from dra_driver.kube import pod_run\n"
        "pod_run.STEP_S = 0.1\n"
        "get = RestClient.get_text\n"
        "def text(*arguments):\n"
        "    os.kill(os.getpid(), signal.SIGINT)\n"
        "    return get(*arguments)\n"
        "RestClient.get_text = text\n"
        "from dra_driver.kubectl.commands.kubectl import main\n"
        "sys.exit(main(sys.argv[1:]))\n"
    )
    with Kubelet(api, cluster, [(RUNNING, "one line\n")]).running():
        command = [sys.executable, "-c", script, "hardware-check", "node-7", "--kubeconfig", kubeconfig]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 130, done.stderr
    assert all("deletionTimestamp" in pod["metadata"] for pod in cluster.list(PODS)["items"])
