"""Device nodes on the host, as a whole node process keeps them; as root with real nodes, in a folder of the test."""

import os
import stat
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from dra_driver.hardware.gpu.simulated.root import UVM_MISSING
from dra_driver.kube.rest import RestClient
from dra_driver.node.process.hardware import SIMULATED_ROOT
from tests.contract.node.process.processes import DRIVER, NODE, ask, devices
from tests.fakes.kubelet import DraClient, dial, register
from tests.fakes.node_process import NodeProcess
from tests.harness.claims_api import ClaimMaker, ensure_namespace
from tests.harness.servers import free_port

CALL_S = 45.0
"""The kubelet's own limit."""
EVENTS = "/api/v1/namespaces/default/events"


class Host:
    """A node process that the kubelet has registered, and what is seen of it from outside."""

    def __init__(self, rest: RestClient, process: NodeProcess, port: int) -> None:
        self.rest, self.process, self.port = rest, process, port

    def start(self) -> "Host":
        with suppress(Exception):  # another test's node of the same name
            self.rest.create("/api/v1/nodes", {"metadata": {"name": NODE}})
        self.process.start()
        self.process.wait_for(self.process.registration.exists)
        register(self.process.registration)
        return self

    def ready(self) -> tuple[int, str]:
        return ask(self.port, "/readyz")

    def events(self, reason: str) -> list[str]:
        return [item["message"] for item in self.rest.list(EVENTS)["items"] if item["reason"] == reason]

    def prepare(self) -> Any:
        """The answer for a claim of the first GPU."""
        ensure_namespace(self.rest)
        claim = ClaimMaker(self.rest, node=NODE, driver=DRIVER).make(0)
        with dial(self.process.dra) as channel:
            client, name = DraClient(channel), {"namespace": claim["namespace"], "name": claim["name"]}
            answer = client.prepare(claim["uid"], timeout=CALL_S, **name)
        return answer.claims[claim["uid"]]


@pytest.fixture
def host(rest: RestClient, node: Callable[..., NodeProcess]) -> Callable[..., Host]:
    def made(**flags: str) -> Host:
        port = free_port()
        return Host(rest, node(http_addr=f"127.0.0.1:{port}", **flags), port)

    return made


def numbers(path: Path) -> tuple[int, int]:
    status = path.lstat()
    assert stat.S_ISCHR(status.st_mode)
    return os.major(status.st_rdev), os.minor(status.st_rdev)


def may_make_nodes(folder: Path) -> bool:
    try:
        os.mknod(folder / "probe", stat.S_IFCHR, os.makedev(195, 0))
    except PermissionError:
        return False
    (folder / "probe").unlink()
    return True


def test_a_claims_nodes_are_on_the_host_before_the_answer(host: Callable[..., Host], tmp_path: Path) -> None:
    """For pods in a user namespace, whose runtime mounts them."""
    dev = tmp_path / "dev"
    dev.mkdir()
    if not may_make_nodes(dev):
        pytest.skip("this user may not make device nodes")
    stale = os.makedev(194, 0)
    os.mknod(dev / "nvidia0", stat.S_IFCHR | 0o600, stale)
    running = host(host_dev=str(dev)).start()
    running.process.wait_for(lambda: devices(running.rest))
    assert not running.prepare().error
    assert {name: numbers(dev / name) for name in ("nvidia0", "nvidiactl", "nvidia-uvm", "nvidia-uvm-tools")} == {
        "nvidia0": (195, 0),
        "nvidiactl": (195, 255),
        "nvidia-uvm": (510, 0),
        "nvidia-uvm-tools": (510, 1),
    }
    assert (dev / "nvidia0").stat().st_mode & 0o777 == 0o666
    assert numbers((dev / "char/195:0").resolve()) == (195, 0)
    assert os.readlink(dev / "char/510:0") == "../nvidia-uvm"  # noqa: PTH115 - not normalised
    running.process.wait_for((dev / "nvidia1").exists, timeout_s=20)
    assert running.ready() == (200, "ok\n")


def test_a_dev_that_cannot_be_written_is_a_warning(host: Callable[..., Host]) -> None:
    """Most pods work: they are prepared. The folder is one in which not even root can make files."""
    running = host(host_dev="/proc").start()
    running.process.wait_for(lambda: devices(running.rest))
    assert not running.prepare().error
    running.process.wait_for(lambda: running.events("DeviceNodeProblem"), timeout_s=20)
    status, text = running.ready()
    assert (status, text.splitlines()[0]) == (200, "ok")
    assert "remark: the host's /dev/nvidia-uvm is not the character device 510:0: it cannot be made: " in text
    assert 'dra_driver_device_node_problems{kind="node"} 6.0' in ask(running.port, "/metrics")[1]


def test_without_nvidia_uvm_the_node_says_so_until_it_is_loaded(host: Callable[..., Host]) -> None:
    """In readiness and as an event, with no devices published: CUDA would not start in any pod."""
    running = host()
    fault = running.process.folder / "plugins" / DRIVER / SIMULATED_ROOT / UVM_MISSING
    fault.parent.mkdir(parents=True)
    fault.touch()
    running.start()
    running.process.wait_for(lambda: "lists nvidia but not nvidia-uvm" in running.ready()[1], timeout_s=20)
    assert running.ready()[0] == 503
    running.process.wait_for(lambda: running.events("CudaUnavailable"), timeout_s=20)
    assert "modprobe nvidia-uvm" in running.events("CudaUnavailable")[0]
    assert devices(running.rest) == []
    fault.unlink()
    running.process.wait_for(lambda: devices(running.rest), timeout_s=20)
    running.process.wait_for(lambda: running.ready() == (200, "ok\n"), timeout_s=20)
    assert not running.prepare().error


@pytest.mark.slow
def test_nvidia_uvm_that_is_unloaded_fails_the_next_prepare(host: Callable[..., Host]) -> None:
    """Until the slices are withdrawn, the scheduler still sends pods. The prepare waits 10 s for the module."""
    running = host().start()
    running.process.wait_for(lambda: devices(running.rest))
    root = running.process.folder / "plugins" / DRIVER / SIMULATED_ROOT
    (root / UVM_MISSING).parent.mkdir(parents=True, exist_ok=True)
    (root / UVM_MISSING).touch()
    listed = root / "proc/devices"
    listed.write_text(listed.read_text().replace("510 nvidia-uvm\n", ""))
    error = running.prepare().error
    assert "it was unloaded a moment ago" in error
    assert "run `nvidia-modprobe -u -c0`" in error
