"""``doctor --on-node`` and ``hardware-check NODE`` on the embedded API server, with a kubelet that plays the pod."""

import contextlib
import json
import subprocess
import sys
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from msgspec import to_builtins

from dra_driver.core.document import to_wire
from dra_driver.core.errors import ApiUnreachableError, ConfigurationError, ForbiddenError, ServerBusyError
from dra_driver.core.finding import Finding, Layer, Status
from dra_driver.diagnose.doctor.on_node import node_of_pod, visit_node
from dra_driver.diagnose.doctor.report import DoctorReport, document_of
from dra_driver.diagnose.hardware import storage
from dra_driver.diagnose.hardware.remote import run_on_node
from dra_driver.diagnose.hardware.values import HardwareReport, Reading
from dra_driver.kube.pod_run import PodFailedError, PodPlace
from dra_driver.kube.rest import RestClient
from dra_driver.kubectl.commands.kubectl import main
from dra_driver.sim.apiserver.server import ApiServer
from tests.fakes.pods_on_nodes import DEPLOYED, NAMESPACE, PODS, Kubelet, Refuses, Statuses, state
from tests.fakes.scripted_http import Exchange, ScriptedServer

FINDING = Finding(
    check="uvm", layer=Layer.UVM, status=Status.FAIL, object="node/node-7", seen="not loaded", fix="Load it."
)
REPORT = DoctorReport(target="node/node-7", findings=(FINDING,), source="the node itself")
PLACE = PodPlace(command="kubectl dra doctor --on-node", node="node-7")


def ended(log: str) -> Statuses:
    return [(state("Failed", terminated={"exitCode": 1}), log)]


def test_the_nodes_report_arrives_and_the_pod_is_gone(api: ApiServer, cluster: RestClient) -> None:
    log = f"a warning\n{json.dumps(to_wire(document_of(REPORT)))}\nlibnvidia: bye\n"
    said: list[str] = []
    with Kubelet(api, cluster, ended(log)).running() as kubelet:
        report = visit_node(cluster, PLACE, said.append, pods=("team-a/train",))
    assert report.findings == (FINDING,)
    assert report.source == "a pod on node node-7"
    (pod,) = kubelet.pods
    args = pod["spec"]["containers"][0]["args"]
    assert args == ["doctor", "--output", "json", "--host", "/host", "--pod", "team-a/train"]
    assert cluster.list(PODS)["items"] == []
    assert said == []


@pytest.mark.parametrize("log", ["", "Traceback\n", "{}\n[1]\n", '{"kind": "Other"}\n'])
def test_a_pod_without_a_report_says_why_and_is_deleted(api: ApiServer, cluster: RestClient, log: str) -> None:
    """An image of an older version, for example, does not know the command."""
    with Kubelet(api, cluster, ended(log)).running(), pytest.raises(PodFailedError, match="exit status 1"):
        visit_node(cluster, PLACE, print)
    assert cluster.list(PODS)["items"] == []


def test_a_report_of_another_version_is_refused(api: ApiServer, cluster: RestClient) -> None:
    log = json.dumps(to_wire(document_of(REPORT)) | {"apiVersion": "v7"}) + "\n"
    with Kubelet(api, cluster, ended(log)).running(), pytest.raises(ConfigurationError, match="of apiVersion v7"):
        visit_node(cluster, PLACE, print)
    assert cluster.list(PODS)["items"] == []


class LosesLogs(Refuses):
    """The API server, which cannot read logs for a while; it gets the last of the pod's when it is over."""

    def __init__(self, client: RestClient, times: int) -> None:
        super().__init__(client, RuntimeError())
        self._times = times
        self.get_text = self._get_text  # type: ignore[assignment]
        self.create = client.create  # type: ignore[method-assign]

    def _get_text(self, path: str) -> str:
        self._times -= 1
        if self._times >= 0:
            raise ServerBusyError("Internal error: dial tcp: connection refused", status=500)
        return self._client.get_text(path)


@pytest.mark.parametrize("times", [2, 100])
def test_a_log_that_cannot_be_read_is_no_log_without_a_report(api: ApiServer, cluster: RestClient, times: int) -> None:
    """The API server asks the kubelet for it: it is asked again, and in the end the reason is told."""
    log = json.dumps(to_wire(document_of(REPORT))) + "\n"
    fails = contextlib.nullcontext() if times < 5 else pytest.raises(ServerBusyError, match="connection refused")
    with Kubelet(api, cluster, ended(log)).running(), fails:
        report = visit_node(LosesLogs(cluster, times), PLACE, print, sleep=lambda _s: None)
        assert report.findings == (FINDING,)
    assert cluster.list(PODS)["items"] == []


def test_a_refusal_by_pod_security_names_namespace_and_label(cluster: RestClient) -> None:
    refusal = ForbiddenError('pods "x" is forbidden: violates PodSecurity "baseline:latest": privileged', status=403)
    with pytest.raises(PodFailedError) as caught:
        visit_node(Refuses(cluster, refusal), PLACE, print)
    assert "Pod Security of namespace dra-driver refuses the pod" in str(caught.value)
    assert "pod-security.kubernetes.io/enforce=privileged" in str(caught.value)


def leave(cluster: RestClient, name: str, component: str = "doctor") -> None:
    labels = {"app.kubernetes.io/name": "dra-driver", "app.kubernetes.io/component": component}
    container = {"name": component, "image": "x"}
    spec = {"containers": [container], "nodeName": "node-7"}
    metadata = {"name": name, "namespace": NAMESPACE, "labels": labels}
    cluster.create(PODS, {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec})


@pytest.mark.parametrize(("later_s", "deleted"), [(60, False), (3600, True)])
def test_what_a_killed_command_left_is_deleted_by_the_next_one(
    cluster: RestClient, later_s: int, deleted: bool
) -> None:
    """Not what may be another user's who looks at a node now, and no pods of others."""
    leave(cluster, "dra-doctor-old")
    leave(cluster, "dra-driver-node-x", "node")
    said: list[str] = []
    clock: Callable[[], datetime] = lambda: datetime.now(UTC) + timedelta(seconds=later_s)  # noqa: E731
    with pytest.raises(ForbiddenError):
        visit_node(Refuses(cluster, ForbiddenError("no", status=403)), PLACE, said.append, now=clock)
    left = {
        pod["metadata"]["name"] for pod in cluster.list(PODS)["items"] if "deletionTimestamp" not in pod["metadata"]
    }
    assert left == {"dra-driver-node-x"} | (set() if deleted else {"dra-doctor-old"})
    assert any("dra-doctor-old" in line for line in said) == deleted


def test_a_node_that_does_not_exist_is_refused(cluster: RestClient) -> None:
    with pytest.raises(ConfigurationError, match="no node 'node-9'"):
        visit_node(cluster, PodPlace(command="x", node="node-9"), print)


@pytest.mark.usefixtures("signals")
def test_the_command_adds_what_the_node_says(
    api: ApiServer, cluster: RestClient, kubeconfig: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with Kubelet(api, cluster, ended(json.dumps(to_wire(document_of(REPORT))) + "\n")).running():
        status = main(["doctor", "node/node-7", "--on-node", "-o", "json", "--kubeconfig", kubeconfig])
    wire = json.loads(capsys.readouterr().out)
    assert status == wire["exitStatus"] != 0
    assert to_builtins(FINDING) in wire["items"]
    assert "a pod on node node-7" in wire["source"]
    assert cluster.list(PODS)["items"] == []


@pytest.mark.usefixtures("signals")
def test_a_node_that_cannot_be_looked_at_leaves_the_rest_of_the_report(
    api: ApiServer, cluster: RestClient, kubeconfig: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with Kubelet(api, cluster, ended("no report\n")).running():
        main(["doctor", "node/node-7", "--on-node", "-o", "json", "--kubeconfig", kubeconfig])
    wire = json.loads(capsys.readouterr().out)
    (found,) = [each for each in wire["items"] if each["check"] == "on-node"]
    assert (found["status"], found["layer"]) == ("unknown", "node")
    assert len(wire["items"]) > 1


@pytest.mark.parametrize("target", [[], ["claim/x"]])
@pytest.mark.usefixtures("signals", "cluster")
def test_a_look_at_a_node_needs_a_node(kubeconfig: str, capsys: pytest.CaptureFixture[str], target: list[str]) -> None:
    assert main(["doctor", *target, "--on-node", "--kubeconfig", kubeconfig]) == 2
    assert "--on-node needs" in capsys.readouterr().err


def test_the_node_of_a_pod_is_where_it_runs(cluster: RestClient) -> None:
    leave(cluster, "dra-doctor-old")
    assert node_of_pod(cluster, NAMESPACE, "dra-doctor-old") == "node-7"
    with pytest.raises(ConfigurationError, match="no pod 'other'"):
        node_of_pod(cluster, NAMESPACE, "other")


HARDWARE_REPORT = HardwareReport(about={"version": "1", "interrupted": False}, survey=Reading(), records=())
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
        (ENDED, f" 2  held\n{storage.pack(HARDWARE_REPORT)}\n"),
    ]
    with Kubelet(api, cluster, script).running() as kubelet:
        assert check("--only", "3,4", "--gpu", "0") == 2
    assert storage.load(tmp_path / "report.json") == HARDWARE_REPORT
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
    with Kubelet(api, cluster, [(ENDED, f"{storage.pack(HARDWARE_REPORT)}\n")]).running() as kubelet:
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
