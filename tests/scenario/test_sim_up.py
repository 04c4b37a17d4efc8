"""`dra-driver sim up`: its output is enough to use the cluster, and it leaves nothing behind."""

import json
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from dra_driver.core.command_line.main import main
from dra_driver.core.errors import DraError
from dra_driver.kube.connection import Connection
from dra_driver.kube.rest import RestClient
from dra_driver.kubectl.commands import kubectl
from dra_driver.kubectl.commands.usage_source import ask_exporters
from tests.scenario.conftest import ROOT

COMMAND = [sys.executable, "-m", "dra_driver.core.command_line.main", "sim", "up", "--node", "n1=1xl4-24gb"]


@pytest.fixture
def running(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    policies = tmp_path / "policies"
    policies.mkdir()
    policy = {"apiVersion": "gpu.dra-driver.io/v1alpha1", "kind": "GpuPolicy", "metadata": {"name": "turns"}}
    (policies / "turns.yaml").write_text(json.dumps(policy | {"spec": {"sharing": {"strategy": "TimeSlicing"}}}))
    flags = [
        "--controller",
        "--usage",
        "--nics",
        "--kubeconfig",
        str(tmp_path / "kubeconfig"),
        "--policy-dir",
        str(policies),
    ]
    with subprocess.Popen(
        [*COMMAND, *flags], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=ROOT
    ) as child:
        yield child
        child.kill()


def _until(child: subprocess.Popen[str], text: str) -> str:
    assert child.stdout is not None
    lines: list[str] = []
    for line in child.stdout:
        lines.append(line)
        if text in line:
            return "".join(lines)
    raise AssertionError("".join(lines))


def wait_for(found: Callable[[], list[str]]) -> list[str]:
    """What is found, once something is."""
    deadline = time.monotonic() + 60
    while not (names := found()) and time.monotonic() < deadline:
        time.sleep(0.05)
    return names


def exporters(rest: RestClient) -> list[str]:
    with suppress(DraError):
        return [f"from {ask_exporters(rest, 'dra-driver').source}"]
    return []


@pytest.mark.parametrize("how", [signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.slow)])
def test_up_serves_until_it_is_stopped(
    running: subprocess.Popen[str], tmp_path: Path, how: signal.Signals, capsys: pytest.CaptureFixture[str]
) -> None:
    output = _until(running, "Ctrl-C stops the cluster")
    assert f"policies     {tmp_path / 'policies'}" in output
    assert f"export KUBECONFIG={tmp_path / 'kubeconfig'}" in output
    rest = RestClient(Connection.load(str(tmp_path / "kubeconfig")))
    slices = rest.list("/apis/resource.k8s.io/v1/resourceslices")["items"]
    (device,), (card,) = (
        item["spec"]["devices"] for item in sorted(slices, key=lambda item: -len(item["spec"]["driver"]))
    )
    assert card["attributes"]["dra.net/rdma"] == {"bool": True}
    root = "resource.kubernetes.io/pcieRoot"
    assert card["attributes"][root] == device["attributes"][root]
    assert device["attributes"]["sharingStrategy"] == {"string": "TimeSlicing"}
    assert len(rest.list("/apis/resource.k8s.io/v1/deviceclasses")["items"]) == 4

    lease = "/apis/coordination.k8s.io/v1/namespaces/default/leases"
    assert wait_for(lambda: [item["metadata"]["name"] for item in rest.list(lease)["items"]]) == [
        "dra-driver-controller"
    ]

    exporter = re.search(r"http://127\.0\.0\.1:(\d+)/usage", output)
    assert exporter is not None
    assert wait_for(lambda: exporters(rest)) == ["from 1 of 1 exporters"]

    smoke = re.search(r"    kubectl dra (smoke --all-nodes) ", (ROOT / "README.md").read_text())
    assert smoke is not None
    assert kubectl.main([*smoke[1].split(), "--kubeconfig", str(tmp_path / "kubeconfig")]) == 0
    assert re.search(r"n1 +share \(TimeSlicing\) +ok ", capsys.readouterr().out)

    log = re.search(r"log of its node process: (\S+)", output)
    assert log is not None
    folder = Path(log[1]).parents[1]
    assert folder.is_dir()
    running.send_signal(how)
    assert running.wait(20) == 0
    assert not folder.exists()
    assert [path.name for path in tmp_path.iterdir()] == ["policies"]
    assert (tmp_path / "policies" / "turns.yaml").exists()
    with socket.socket() as other:
        assert other.connect_ex(("127.0.0.1", int(exporter[1]))) != 0


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--node", "x"], "'x' is not a node: expected NAME=SPEC"),
        (["--node", "n1=1xnope-1gb"], "nope-1gb"),
        (["--node", "n1=1xl4-24gb", "--policy-dir", "/nonexistent"], "/nonexistent is not a directory"),
    ],
)
def test_wrong_usage_starts_nothing(flags: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["sim", "up", *flags]) == 2
    assert message in capsys.readouterr().err


def test_the_page_of_an_embedded_cluster_opens_and_ends_with_it() -> None:
    pytest.importorskip("jinja2", reason="jinja2 is in requirements/dev.txt and not installed: run make")
    command = [
        sys.executable,
        "-m",
        "dra_driver.core.command_line.main",
        "sim",
        "up",
        "--ui",
        "--node",
        "gpu-a=1xa100-sxm4-40gb",
    ]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as sim:
        try:
            assert sim.stdout is not None
            told = next(line for line in sim.stdout if line.startswith("page "))
            address, log = told.split()[1], Path(told.split()[-1])
            assert log.is_file()
            with urllib.request.urlopen(address, timeout=30) as answer:  # noqa: S310  the address is loopback
                assert answer.status == 200
                assert "HttpOnly" in answer.headers["set-cookie"]
        finally:
            sim.send_signal(signal.SIGTERM)
            sim.wait(60)
    port = int(re.findall(r":(\d+)/", address)[0])
    with socket.socket() as other:
        assert other.connect_ex(("127.0.0.1", port)) != 0
