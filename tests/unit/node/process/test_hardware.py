"""Which hardware is chosen."""

from pathlib import Path

import pytest

from dra_driver.config.settings import load_node_settings
from dra_driver.core.errors import CommandError, ConfigurationError
from dra_driver.core.model.terms import Interval
from dra_driver.hardware.gpu.nvml.backend import NvmlBackend
from dra_driver.node.process import hardware
from tests.fakes.gpu_notes import FakeGpuNotes

SETTINGS = load_node_settings({"node_name": "node-a", "simulate": "2xh100-sxm5-80gb"}, {})


def test_simulated_gpus_bring_their_own_driver_root(tmp_path: Path) -> None:
    """No file of the machine's own driver is used."""
    found = hardware.choose(SETTINGS, tmp_path)
    assert found.root().here("/").startswith(str(tmp_path / hardware.SIMULATED_ROOT))
    assert len(found.backend.snapshot().gpus) == 2
    assert Path(found.proc_devices).is_file()


def test_driver_root_that_cannot_be_written_is_a_wrong_configuration(tmp_path: Path) -> None:
    """It ends with status 2, as every start does that needs a person."""
    (tmp_path / hardware.SIMULATED_ROOT).write_text("in the way")
    with pytest.raises(ConfigurationError, match="cannot start without a driver root"):
        hardware.choose(SETTINGS, tmp_path)


def real(**flags: str) -> hardware.Hardware:
    """The hardware of a node with NVML."""
    return hardware.choose(load_node_settings({"node_name": "node-a", **flags}, {}), Path("/nonexistent"))


def test_a_driver_root_on_the_host_alone_is_refused() -> None:
    """It would be ignored, and containers would get the files of another folder or none."""
    with pytest.raises(ConfigurationError, match=r"set without --driver-root \(DRIVER_ROOT\)"):
        real(host_root="/driver-root", driver_root_on_host="/opt/nvidia")


@pytest.mark.parametrize(
    ("flags", "on_host"),
    [
        ({"host_root": "/driver-root", "driver_root": "/driver-root/opt/nvidia"}, "/opt/nvidia/usr/bin/nvidia-smi"),
        ({"host_root": "/driver-root", "driver_root": "/driver-root"}, "/usr/bin/nvidia-smi"),
        ({"driver_root": "/opt/nvidia"}, "/opt/nvidia/usr/bin/nvidia-smi"),
        ({"host_root": "/driver-root", "driver_root": "/elsewhere"}, "/elsewhere/usr/bin/nvidia-smi"),
        (
            {"host_root": "/driver-root", "driver_root": "/driver-root/a", "driver_root_on_host": "/b"},
            "/b/usr/bin/nvidia-smi",
        ),
    ],
)
def test_a_driver_root_below_the_hosts_root_is_mounted_from_the_host(flags: dict[str, str], on_host: str) -> None:
    """Containers are given paths of the host; a path of this process' container is none."""
    assert str(real(**flags).root().host("/usr/bin/nvidia-smi")) == on_host


def test_the_nodes_processes_are_looked_for_below_the_hosts_root() -> None:
    """A container sees its own processes in /proc; those that have a GPU open are the node's."""
    found = real(host_root="/driver-root", driver_root="/driver-root/run/nvidia/driver")
    assert list(found.procs()) == [
        Path("/driver-root/proc"),
        Path("/driver-root/run/nvidia/driver/proc"),
        Path("/proc"),
    ]


def test_a_driver_container_shows_the_nodes_processes() -> None:
    """Where only its root is mounted, this process' own /proc has no other process of the node."""
    found = real(driver_root="/run/nvidia/driver")
    assert list(found.procs()) == [Path("/run/nvidia/driver/proc"), Path("/proc")]


def test_processes_are_looked_for_without_a_driver_too(tmp_path: Path) -> None:
    """Who has a GPU open is asked while the driver root may have gone."""
    assert list(real(host_root=str(tmp_path)).procs()) == [tmp_path / "proc", Path("/proc")]


def test_simulated_gpus_are_open_in_no_real_process(tmp_path: Path) -> None:
    """Their state names who has them open."""
    assert list(hardware.choose(SETTINGS, tmp_path).procs()) == []


def test_programs_of_the_driver_are_not_run_while_it_is_given_up(tmp_path: Path) -> None:
    """nvidia-smi opens the driver, and while it is replaced, half of one."""
    found = hardware.choose(SETTINGS, tmp_path)
    notes = FakeGpuNotes()
    slicer = found.tools(notes, tmp_path / "mps", lambda: None, found.backend.snapshot).slicer
    gpu = found.backend.snapshot().gpus[0].uuid
    slicer.set(gpu, Interval.SHORT, within_s=5.0)
    found.backend.detach("driver 580")
    with pytest.raises(CommandError, match="driver 580"):
        slicer.reset(gpu, within_s=5.0)
    found.backend.reattach()
    slicer.reset(gpu, within_s=5.0)


@pytest.mark.parametrize("flags", [{}, {"driver_root": "/driver-root"}], ids=["searched", "given"])
def test_of_two_node_processes_the_newer_one_keeps_reading_mig_instances(tmp_path: Path, flags: dict[str, str]) -> None:
    """They overlap in a rolling update and share the driver's folder."""
    old, new = (hardware.choose(load_node_settings({"node_name": "n", **flags}, {}), tmp_path) for _ in range(2))
    assert isinstance(old.backend, NvmlBackend)
    assert isinstance(new.backend, NvmlBackend)
    looks = [(old.backend.listings.may_read(), new.backend.listings.may_read()) for _ in range(3)]
    assert looks == [(True, False), (False, True), (False, True)]
