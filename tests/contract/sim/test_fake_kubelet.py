"""The simulated kubelet over real unix sockets: registration, calls, restarts."""

import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from dra_driver.core.errors import ClaimError, RetryableError
from dra_driver.sim.node.kubelet import DraManager
from dra_driver.sim.node.kubelet_state import NodeClaim
from tests.contract.node.process.conftest import DRIVER, Plugin, folder, plugin
from tests.harness.raising import fails

__all__ = ["folder", "plugin"]

INTERVAL_S = 0.02


def claim(uid: str = "uid-1", *drivers: str) -> NodeClaim:
    return NodeClaim(namespace="default", name=f"claim-{uid}", uid=uid, drivers=drivers or (DRIVER,))


def until(holds: Callable[[], bool], what: str, timeout_s: float = 10.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not holds():
        assert time.monotonic() < deadline, f"waited {timeout_s:g} s for {what}"
        time.sleep(INTERVAL_S)


@pytest.fixture
def kubelet(plugin: Plugin, folder: Path) -> Iterator[DraManager]:
    made = start(folder)
    until(lambda: DRIVER in made.drivers(), "the registration")
    yield made
    made.stop()


def start(folder: Path, **more: object) -> DraManager:
    made = DraManager(folder / "reg", folder / "state", interval_s=INTERVAL_S, **more)  # type: ignore[arg-type]
    made.start()
    return made


def test_registers_and_speaks_the_newest_service(kubelet: DraManager, plugin: Plugin) -> None:
    """The plugin is notified of its registration; calls go to the first of its services that a kubelet supports."""
    until(lambda: plugin.registration.problem is None, "the notification")
    assert kubelet.plugin(DRIVER).service == "v1.DRAPlugin"
    assert kubelet.plugin(DRIVER).endpoint == str(plugin.paths.dra)


def test_prepares_once_and_unprepares_once(kubelet: DraManager, plugin: Plugin) -> None:
    kubelet.prepare("pod-1", [claim()])
    kubelet.prepare("pod-2", [claim()])
    assert [ref.uid for ref in plugin.preparer.prepared] == ["uid-1"]
    assert [device.device for device in kubelet.state.devices("uid-1")] == ["gpu-0"]
    kubelet.unprepare("pod-1")
    assert plugin.preparer.unprepared == []
    kubelet.unprepare("pod-2")
    kubelet.unprepare("pod-2")
    assert [ref.uid for ref in plugin.preparer.unprepared] == ["uid-1"]


def test_an_error_of_one_claim_is_the_pods_error(kubelet: DraManager, plugin: Plugin) -> None:
    plugin.preparer.answers["uid-1"] = ClaimError("GPU gpu-9 does not exist here")
    with fails(RetryableError, "PrepareFailed", match="gpu-9"):
        kubelet.prepare("pod-1", [claim()])
    del plugin.preparer.answers["uid-1"]
    kubelet.prepare("pod-1", [claim()])
    assert kubelet.state.devices("uid-1")


def test_nothing_is_called_while_a_driver_is_missing(kubelet: DraManager, plugin: Plugin) -> None:
    with fails(RetryableError, "DriverNotRegistered", match=r"nic\.example\.com"):
        kubelet.prepare("pod-1", [claim(), claim("uid-2", "nic.example.com")])
    assert plugin.preparer.prepared == []
    assert kubelet.state.pods() == frozenset()


def test_a_restarted_kubelet_prepares_again_and_can_still_unprepare(
    kubelet: DraManager, plugin: Plugin, folder: Path
) -> None:
    """A pod that starts after the restart prepares its claim again; unpreparing works without the claim object."""
    kubelet.prepare("pod-1", [claim()])
    kubelet.stop()
    again = start(folder)
    try:
        until(lambda: DRIVER in again.drivers(), "the second registration")
        again.prepare("pod-1", [claim()])
        assert len(plugin.preparer.prepared) == 2
        again.unprepare("pod-1")
        assert len(plugin.preparer.unprepared) == 1
    finally:
        again.stop()


def test_health_streams_are_opened_and_held(kubelet: DraManager, plugin: Plugin) -> None:
    """Kubelets up to 1.36 open one to every driver and keep it open."""
    from dra_driver.core.telemetry import metrics

    until(lambda: metrics.health_streams._value.get() == 1, "the health stream")
    assert kubelet.plugin(DRIVER).health_messages == 0


def test_a_socket_that_vanishes_deregisters_and_one_that_returns_registers(kubelet: DraManager, plugin: Plugin) -> None:
    plugin.paths.registration.unlink()
    until(lambda: DRIVER not in kubelet.drivers(), "the deregistration")
    plugin.endpoints.check()
    until(lambda: DRIVER in kubelet.drivers(), "the new registration")
    kubelet.prepare("pod-1", [claim()])


def test_slices_are_wiped_when_a_driver_stays_away(plugin: Plugin, folder: Path) -> None:
    wiped: list[str] = []
    made = start(folder, wiping_delay_s=0.1, on_wipe=wiped.append)
    try:
        until(lambda: DRIVER in made.drivers(), "the registration")
        plugin.stop(0.0)
        until(lambda: bool(wiped), "the wipe")
        time.sleep(0.3)  # a second wipe would come by now
        assert wiped == [DRIVER]
    finally:
        made.stop()


def test_other_files_in_the_registry_are_ignored(plugin: Plugin, folder: Path) -> None:
    (folder / "reg" / "plain-reg.sock").write_text("")
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(folder / "reg" / "a-dead-reg.sock"))
    (folder / "reg" / "link.sock").symlink_to("/nowhere")
    made = start(folder)
    try:
        until(lambda: DRIVER in made.drivers(), "the registration")
        assert made.drivers() == {DRIVER}
    finally:
        made.stop()
