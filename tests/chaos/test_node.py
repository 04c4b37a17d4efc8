"""The node reboots, its CDI folder is wiped, the pod of the node process is another one, the machine's name changes."""

import re
import subprocess
import time
from pathlib import Path

import pytest

from tests.chaos.stage import FaultRecord, Stage
from tests.fakes.live_node import LiveNode, until

FIRST_POD = "aaaaaaaa-0000-4000-8000-000000000001"
SECOND_POD = "bbbbbbbb-0000-4000-8000-000000000002"
WIPED_S = 10.0  # as the page says; the process looks each 5 s


def power_off(node: LiveNode, *, keep_cdi: bool) -> None:
    node.power_off(keep_cdi=keep_cdi)
    for path in (*node.folders.registry.iterdir(), node.socket):
        path.unlink(missing_ok=True)


def recovered(stage: Stage, claims: int) -> str:
    """The log line about claims of the former boot, which has to count them all."""
    line = stage.wait_logged("claims recovered")
    counts = {name: int(count) for name, count in re.findall(r"(\w+)=(\d+)", line)}
    assert counts["earlier_boot"] + counts["undone"] == claims, line
    return line


@pytest.mark.parametrize(
    "keep_cdi",
    [
        pytest.param(True, id="run kept", marks=pytest.mark.fault("reboot-run-kept")),
        pytest.param(False, id="run empty", marks=pytest.mark.fault("reboot-run-empty")),
    ],
)
def test_after_a_reboot_every_pod_gets_its_devices_again(keep_cdi: bool, stage: Stage, fault: FaultRecord) -> None:
    node = stage.node
    power_off(node, keep_cdi=keep_cdi)
    since = time.monotonic()
    node.power_on()
    assert node.states() == {}, "no claim of the former boot is prepared"
    seen = recovered(stage, 4)
    for form, (claim, answer, _) in list(stage.held.items()):
        again = node.prepare(claim)
        assert again.error == "", form
        assert [device.device_name for device in again.devices] == [device.device_name for device in answer], form
        stage.held[form] = (claim, list(again.devices), node.cdi_files()[claim["uid"]].read_bytes())
    stage.finish(fault, since, seen=seen)


@pytest.mark.fault("reboot-pods-gone")
def test_after_a_reboot_claims_of_pods_that_are_gone_leave_nothing(stage: Stage, fault: FaultRecord) -> None:
    power_off(stage.node, keep_cdi=True)
    claims = [stage.end(form) for form in tuple(stage.held)]
    for claim in claims:
        stage.scheduler.release(claim)
    since = time.monotonic()
    stage.node.power_on()
    assert stage.node.unprepare(claims[0]) == ""
    until(lambda: not stage.node.leftovers(), f"a clean node: {stage.node.leftovers()}", 30.0)
    seen = recovered(stage, len(claims))
    stage.finish(fault, since, seen=seen)


@pytest.mark.fault("run-wiped")
def test_wiped_cdi_files_come_back_while_the_process_runs(stage: Stage, fault: FaultRecord) -> None:
    since = time.monotonic()
    for path in stage.node.folders.cdi.iterdir():
        path.unlink()
    until(lambda: len(stage.node.cdi_files()) == len(stage.held), "the claims' files to be back", WIPED_S)
    stage.finish(fault, since, seen=stage.wait_logged("CDI file|missing|written again"))


@pytest.mark.fault("pod-uid-changed")
def test_another_pod_of_the_node_process_takes_over(stage: Stage, fault: FaultRecord) -> None:
    node = stage.node
    for uid in (FIRST_POD, SECOND_POD):
        node.kill()
        since = time.monotonic()
        command = node.process.command
        before = command[: command.index("--pod-uid")] if node.pod_uid else command
        node.process.command = [*before, "--pod-uid", uid]
        node.pod_uid = uid
        node.start()
        stage.assert_intact()
    former = list(node.plugin.glob(f"*{FIRST_POD}*")) + list(node.folders.registry.glob(f"*{FIRST_POD}*"))
    assert former == [], "sockets of a pod that is gone"
    stage.finish(fault, since, seen=stage.logged("serving the kubelet"))


SHIFTED_CLOCK = """
import sys
import time
real = time.time
def shifted():
    if sys._getframe(1).f_globals.get("__name__", "").startswith("grpc"):
        return real()
    try:
        return real() + float(open({file!r}).read() or 0)
    except OSError:
        return real()
time.time = shifted
"""
"""A module that Python loads at its start: the wall clock of that process is off by what the file says, at any time.

Not for gRPC, which compares it with the kernel's clock, to which this process cannot lie: when a real clock jumps, both
do, and only calls in work end too early or too late.
"""


@pytest.mark.parametrize("hours", [2, -2])
@pytest.mark.fault("clock-jumps")
def test_a_clock_that_jumps_while_the_process_runs_changes_nothing(
    hours: int, tmp_path: Path, fault: FaultRecord
) -> None:
    offset = tmp_path / "offset"
    (tmp_path / "sitecustomize.py").write_text(SHIFTED_CLOCK.format(file=str(offset)))
    with Stage(wrap=["env", f"PYTHONPATH={tmp_path}"]) as stage:
        claim = stage.spare_claim()
        offset.write_text(str(hours * 3600))
        since = time.monotonic()
        stage.node.remove_slices()
        assert stage.prepare(claim) == ""
        logged = stage.wait_logged("claim prepared.*gpu-4")
        assert logged
        times = [line.split("T")[1][:5] for line in stage.node.log().splitlines() if "claim prepared" in line]
        assert times[-1][:2] != times[0][:2], "the clock did not jump"
        stage.drop(claim)
        stage.finish(fault, since, seen=f"lines of the log jump from {times[0]} to {times[-1]}; nothing else happens")


@pytest.mark.fault("hostname-changed")
def test_another_hostname_changes_nothing(fault: FaultRecord) -> None:
    rename = ["unshare", "--map-root-user", "--user", "--uts", "sh", "-c", 'hostname another-name; exec "$@"', "sh"]
    tried = subprocess.run([*rename, "true"], capture_output=True, check=False)
    if tried.returncode != 0:
        pytest.skip("this user may not make a user namespace")
    with Stage() as stage:
        stage.node.kill()
        stage.node.process.command[:0] = ["env", "HOSTNAME=another-name", *rename]
        since = time.monotonic()
        stage.node.start()
        names = {item["spec"]["nodeName"] for item in stage.node.slices()}
        assert names == {stage.node.name}
        stage.finish(fault, since, seen=f"a machine named another-name publishes slices of node {', '.join(names)}")
