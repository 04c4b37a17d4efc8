"""Device nodes on the host, as a whole node process keeps them; as root with real nodes, in a folder of the test."""

import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dra_driver.hardware.gpu.simulated.root import UVM_MISSING
from dra_driver.kube.rest import RestClient
from dra_driver.node.process.hardware import SIMULATED_ROOT
from tests.contract.node.process.processes import DRIVER, Node, claim_maker, devices, events

CALL_S = 45.0
"""The kubelet's own limit."""


def prepared(rest: RestClient, running: Node) -> Any:
    return running.prepare(claim_maker(rest).make(0), CALL_S)


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


def test_a_claims_nodes_are_on_the_host_before_the_answer(
    rest: RestClient, node: Callable[..., Node], tmp_path: Path
) -> None:
    dev = tmp_path / "dev"
    dev.mkdir()
    if not may_make_nodes(dev):
        pytest.skip("this user may not make device nodes")
    stale = os.makedev(194, 0)
    os.mknod(dev / "nvidia0", stat.S_IFCHR | 0o600, stale)
    running = node(host_dev=str(dev)).start()
    running.register()
    running.wait_for(lambda: devices(rest))
    assert not prepared(rest, running).error
    assert {name: numbers(dev / name) for name in ("nvidia0", "nvidiactl", "nvidia-uvm", "nvidia-uvm-tools")} == {
        "nvidia0": (195, 0),
        "nvidiactl": (195, 255),
        "nvidia-uvm": (510, 0),
        "nvidia-uvm-tools": (510, 1),
    }
    assert (dev / "nvidia0").stat().st_mode & 0o777 == 0o666
    assert numbers((dev / "char/195:0").resolve()) == (195, 0)
    assert os.readlink(dev / "char/510:0") == "../nvidia-uvm"  # noqa: PTH115 - not normalised
    running.wait_for((dev / "nvidia1").exists, timeout_s=20)
    assert running.ready() == (200, "ok\n")


def test_a_dev_that_cannot_be_written_is_a_warning(rest: RestClient, node: Callable[..., Node]) -> None:
    running = node(host_dev="/proc").start()
    running.register()
    running.wait_for(lambda: devices(rest))
    assert not prepared(rest, running).error
    running.wait_for(lambda: events(rest, "DeviceNodeProblem"), timeout_s=20)
    status, text = running.ready()
    assert (status, text.splitlines()[0]) == (200, "ok")
    assert "remark: the host's /dev/nvidia-uvm is not the character device 510:0: it cannot be made: " in text
    assert 'dra_driver_device_node_problems{kind="node"} 6.0' in running.metrics()


def test_without_nvidia_uvm_the_node_says_so_until_it_is_loaded(rest: RestClient, node: Callable[..., Node]) -> None:
    running = node()
    fault = running.folder / "plugins" / DRIVER / SIMULATED_ROOT / UVM_MISSING
    fault.parent.mkdir(parents=True)
    fault.touch()
    running.start()
    running.register()
    running.wait_for(lambda: "lists nvidia but not nvidia-uvm" in running.ready()[1], timeout_s=20)
    assert running.ready()[0] == 503
    running.wait_for(lambda: events(rest, "CudaUnavailable"), timeout_s=20)
    assert "modprobe nvidia-uvm" in events(rest, "CudaUnavailable")[0]
    assert devices(rest) == []
    fault.unlink()
    running.wait_for(lambda: devices(rest), timeout_s=20)
    running.wait_for(lambda: running.ready() == (200, "ok\n"), timeout_s=20)
    assert not prepared(rest, running).error
