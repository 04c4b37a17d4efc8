"""Broken nodes, one fault each: the doctor names it first, says what was seen, and what to do."""

import errno
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from operator import methodcaller
from pathlib import Path
from typing import Any

import pytest

from dra_driver.core.finding import Finding, Layer, Status
from dra_driver.diagnose.doctor.node_driver import NvmlAnswer
from dra_driver.diagnose.doctor.report import DoctorReport
from dra_driver.diagnose.hardware.values import CheckRecord, Reading
from dra_driver.diagnose.node_state import Places
from tests.fakes.broken_node import DRIVER, BrokenNode
from tests.fakes.node_faults import FAULTS, NVIDIA_PLUGIN, Fault, container, nothing_installed

Break = Callable[[BrokenNode], object]


@pytest.fixture
def node() -> Iterator[BrokenNode]:
    """A healthy node in a folder with a short name."""
    folder = Path(tempfile.mkdtemp(prefix="dn"))
    found = BrokenNode(folder)
    yield found
    found.close()
    shutil.rmtree(folder)


def test_a_healthy_node_has_nothing_to_tell(node: BrokenNode) -> None:
    report = node.report()
    assert [finding for finding in report.findings if finding.status is not Status.OK] == []
    assert report.exit_status == 0
    assert {finding.check for finding in report.findings} >= {"driver-versions", "cdi-switch", "registration-socket"}


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.breaks.__name__)
def test_the_fault_is_named_first(node: BrokenNode, fault: Fault) -> None:
    fault.breaks(node)
    report = node.report()
    first = report.first_broken
    assert first is not None, shown(report)
    assert (first.check, first.layer, first.reason) == (fault.check, fault.layer, fault.reason), shown(report)
    assert fault.seen in first.seen
    assert fault.fix in first.fix
    assert first.expected
    assert report.exit_status == 1


def having(**values: Any) -> Break:
    def change(node: BrokenNode) -> None:
        for name, value in values.items():
            setattr(node, name, value)

    return change


def listening(path: str, *, dead: bool = True) -> Break:
    return methodcaller("serve", path, dead=dead)


def missing_nodes(node: BrokenNode) -> None:
    del node.dev.nodes["/dev/nvidia1"]


def mode_of_root(node: BrokenNode) -> None:
    node.dev.add("/dev/nvidia0", 195, 0, 0o600)


def default_runtime(node: BrokenNode) -> None:
    handlers = {**node.runtime.config["containerd"], "defaultRuntimeName": "nvidia"}
    node.runtime.config = {**node.runtime.config, "containerd": handlers}


def not_ready(node: BrokenNode) -> None:
    node.runtime.not_ready = ("NetworkReady is false (NetworkPluginNotReady): no network config found",)


def container_without_claim(node: BrokenNode) -> None:
    node.runtime.running = {"main": container([], [])}


REGISTRY = "kubelet/plugins_registry"
POD = having(pods=("default/train",))
WARNED: dict[str, tuple[Any, ...]] = {
    "one GPU on vfio": (
        "VfioBound",
        "0000:02:00.0",
        methodcaller("gpu", "0000:02:00.0", "vfio-pci"),
        having(nvml=NvmlAnswer(gpus=1)),
    ),
    "GPU left out": (
        "GpuLeftOut",
        "0000:02:00.0: GPU is lost",
        having(nvml=NvmlAnswer(gpus=1, left_out=("0000:02:00.0: GPU is lost",))),
    ),
    "GPU missing": ("GpuMissing", "2 GPUs are bound to nvidia, NVML counts 1", having(nvml=NvmlAnswer(gpus=1))),
    "missing node": ("DeviceNodesMissing", "/dev/nvidia1", missing_nodes),
    "mode of root": ("RestrictedMode", "/dev/nvidia0 has the mode 0600", mode_of_root),
    "default runtime": ("DefaultRuntime", "nvidia", default_runtime),
    "runtime not ready": ("RuntimeNotReady", "NetworkReady", not_ready),
    "old pod": ("StaleSockets", "1234-reg.sock", listening(f"{REGISTRY}/{DRIVER}-1234-reg.sock")),
    "other driver": (
        "StaleSocketsOfOthers",
        "net.example.com-reg.sock",
        listening(f"{REGISTRY}/net.example.com-reg.sock"),
    ),
    "uninstalled plugin": ("StaleDevicePluginSocket", "nvidia-gpu.sock", listening(NVIDIA_PLUGIN)),
    "allowed plugin": (
        "DevicePluginAllowed",
        "ALLOW_SECOND_PUBLISHER",
        listening(NVIDIA_PLUGIN, dead=False),
        methodcaller("set", allow_second_publisher=True),
    ),
    "pod without claim": ("NoCdiName", "container main", POD, container_without_claim),
    "pod elsewhere": ("NoContainerRunning", "", POD),
    "no CDI folder": ("NoCdiDirectory", "cdi", methodcaller("remove", "cdi")),
}
"""By fault: the reason of the warning, a value in it, and the steps that break the node."""


@pytest.mark.parametrize(
    ("reason", "seen", "breaks"), [(row[0], row[1], row[2:]) for row in WARNED.values()], ids=WARNED
)
def test_what_may_work_is_a_warning(node: BrokenNode, reason: str, seen: str, breaks: tuple[Break, ...]) -> None:
    """GPUs may still work, so the exit status is 0."""
    for step in breaks:
        step(node)
    report = node.report()
    warned = [finding for finding in report.findings if finding.status is Status.WARN]
    assert [finding.reason for finding in warned] == [reason], shown(report)
    assert seen in warned[0].seen
    assert warned[0].fix
    assert report.exit_status == 0


def test_where_nothing_is_installed_every_layer_says_so(node: BrokenNode) -> None:
    nothing_installed(node)
    report = node.report()
    failed = {finding.check for finding in report.findings if finding.status is Status.FAIL}
    expected = {"kubelet", "gpus-on-bus", "driver-root", "kernel-module", "runtime-answers", "plugin-folders"}
    assert failed == expected, shown(report)
    told = [each for each in report.findings if each.status is not Status.OK]
    assert all(each.seen and each.expected and each.fix for each in told)


def test_k3s_has_the_kubelet_inside(node: BrokenNode) -> None:
    """No process is called kubelet there."""
    node.put("proc/4711/comm", "k3s-server\n")
    report = node.report()
    assert report.exit_status == 0
    assert "inside k3s-server" in next(each.seen for each in report.findings if each.check == "kubelet")


def test_a_process_that_does_not_see_the_host_gives_no_verdict_about_it(node: BrokenNode) -> None:
    """/proc with hidepid, or the driver's own pod: kubelet and runtime may well be there."""
    for path in ("proc/4711", "proc/2", "run/containerd/containerd.sock"):
        node.remove(path)
    report = node.report()
    found = {each.check: each.status for each in report.findings if each.status is not Status.OK}
    assert found == {"kubelet": Status.WARN, "runtime-answers": Status.UNKNOWN}, shown(report)
    assert report.exit_status == 2


def test_simulated_gpus_need_no_driver(node: BrokenNode) -> None:
    nothing_of_nvidia = ("usr/lib", "sys", "proc/driver")
    for folder in nothing_of_nvidia:
        node.remove(folder)
    node.put("proc/devices", "Character devices:\n  1 mem\n")
    node.set(simulate="1xh100-sxm5-80gb")
    assert node.report().exit_status == 0


def test_a_container_with_its_device_is_well(node: BrokenNode) -> None:
    node.pods = ("default/train",)
    node.runtime.running = {"main": container([node.claim("aa-11")], ["/dev/nvidia0"])}
    report = node.report()
    (found,) = [finding for finding in report.findings if finding.check == "container"]
    assert (found.status, found.object) == (Status.OK, "pod/default/train")
    assert "/dev/nvidia0" in found.seen


def test_the_records_take_their_place_among_the_layers(node: BrokenNode) -> None:
    """The driver's folder without a journal, whose MPS host is gone."""
    plugin = node.view.own_folder
    names = ("cdi", "registry", "run", "shm")
    node.places = Places(driver=DRIVER, plugin=plugin, **{name: node.path / name for name in names})
    (plugin / "health.json").write_text("no JSON")
    report = node.report()
    warned = [each for each in report.findings if each.status is Status.WARN]
    assert [(each.check, each.layer, each.object) for each in warned] == [("records", Layer.PREPARE, "node/node-1")]
    assert warned[0].seen.startswith("health of GPUs: ")
    layers = [finding.layer for finding in report.findings]
    assert layers.index(Layer.PREPARE) < layers.index(Layer.CDI)


def test_a_difference_of_the_hardware_is_a_warning(node: BrokenNode) -> None:
    """GPUs may work all the same; a check without an answer is an open question, a skipped one is left out."""
    statuses = {5: Status.FAIL, 7: Status.UNKNOWN, 8: Status.SKIPPED}
    node.hardware = tuple(
        CheckRecord(
            number=number,
            reading=Reading(),
            finding=Finding(status=status, seen="x", expected="y", meaning="it means z", check="a name"),
        )
        for number, status in statuses.items()
    )
    found = [each for each in node.report().findings if each.layer is Layer.HARDWARE]
    assert [(each.status, each.seen) for each in found] == [
        (Status.WARN, "check 5, a name: x"),
        (Status.UNKNOWN, "check 7, a name: x"),
    ]
    assert all("it means z" in each.fix for each in found)


def test_a_dev_that_cannot_be_read_is_unknown(node: BrokenNode) -> None:
    def refuse(_path: str) -> None:
        raise OSError(errno.EACCES, os.strerror(errno.EACCES))

    node.dev.look = refuse  # type: ignore[assignment, method-assign]
    report = node.report()
    (found,) = report.unknown
    assert found.check == "device-nodes"
    assert "Permission denied" in found.seen
    assert report.exit_status == 2


def test_a_runtime_of_an_unknown_kind_is_unknown(node: BrokenNode) -> None:
    node.runtime = replace(node.runtime, name="youki-cri", release="0.1")
    assert [finding.check for finding in node.report().unknown] == ["cdi-switch"]


def shown(report: DoctorReport) -> str:
    return "\n".join(f"{each.status} {each.layer} {each.check}: {each.seen}" for each in report.findings)
