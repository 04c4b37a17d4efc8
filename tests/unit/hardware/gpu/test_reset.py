"""A reset through nvidia-smi, and the processes that keep a GPU from it, with programs and a proc of the test."""

import itertools
import os
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from dra_driver.core.errors import (
    CommandError,
    DeviceLostError,
    GpuBusyError,
    HardwareError,
    NotPermittedError,
    ResetRequiredError,
)
from dra_driver.core.model.ids import GpuUuid
from dra_driver.hardware.driver_root.smi import Smi
from dra_driver.hardware.gpu.holders import MAX_FILES, GpuHolders
from dra_driver.hardware.gpu.reset import TIMEOUT, SmiPersistence, SmiReset, has_reset

GPU = GpuUuid("GPU-00000000-0000-0000-0000-000000000001")
BUSY = "The following GPUs could not be reset: GPU 00000000:65:00.0: In use by another client"


def smi(root: Path, script: str) -> SmiReset:
    program = root / "usr/bin/nvidia-smi"
    program.parent.mkdir(parents=True)
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    return SmiReset(Smi(str(root), environment={"PATH": os.environ["PATH"]}))


def test_one_gpu_is_reset_by_its_uuid(tmp_path: Path) -> None:
    """Without -i, nvidia-smi resets all GPUs of the node."""
    smi(tmp_path, f'echo "$@" > {tmp_path}/asked; echo "GPU 00000000:65:00.0 was successfully reset."')(GPU, 5.0)
    assert (tmp_path / "asked").read_text() == f"--gpu-reset -i {GPU}\n"


@pytest.mark.parametrize(
    ("status", "text", "error"),
    [
        (255, BUSY, GpuBusyError),
        (1, "GPU 0 is currently in use by another process.", GpuBusyError),
        (3, "Not available", ResetRequiredError),
        (255, "Resetting GPU 00000000:65:00.0 is not supported.", ResetRequiredError),
        (4, "Insufficient Permissions", NotPermittedError),
        (6, "No devices were found", DeviceLostError),
        (9, "NVIDIA-SMI has failed", ResetRequiredError),
        (15, "GPU is lost", DeviceLostError),
        (255, "Unknown Error", CommandError),
    ],
)
def test_each_exit_status_is_its_own_error(tmp_path: Path, status: int, text: str, error: type[HardwareError]) -> None:
    reset = smi(tmp_path, f'echo "{text}"; exit {status}')
    with pytest.raises(error, match=f"status {status}.*{text[:20]}") as raised:
        reset(GPU, 5.0)
    assert type(raised.value) is error


def test_a_reset_that_hangs_is_a_timeout_and_a_missing_program_is_not(tmp_path: Path) -> None:
    reset = smi(tmp_path, "exec sleep 60")
    with pytest.raises(CommandError, match="reboot the node") as raised:
        reset(GPU, 0.2)
    assert raised.value.reason == TIMEOUT
    (tmp_path / "usr/bin/nvidia-smi").unlink()
    with pytest.raises(CommandError) as raised:
        reset(GPU, 0.2)
    assert raised.value.reason != TIMEOUT


@pytest.mark.parametrize(
    ("script", "expected"),
    [("echo Enabled", True), ("echo Disabled", False), ("echo '[N/A]'", None), ("echo Unknown Error; exit 255", None)],
)
def test_persistence_mode_is_read_and_switched(tmp_path: Path, script: str, expected: bool | None) -> None:
    smi(tmp_path, f'echo "$@" >> {tmp_path}/asked; {script}')
    persistence = SmiPersistence(Smi(str(tmp_path), environment={"PATH": os.environ["PATH"]}))
    assert persistence.is_on(GPU) is expected
    asked = [f"--query-gpu=persistence_mode --format=csv,noheader -i {GPU}"]
    if "exit" not in script:
        persistence.switch(GPU, False)
        asked.append(f"-pm 0 -i {GPU}")
    assert (tmp_path / "asked").read_text().splitlines() == asked


def test_the_kernel_says_whether_it_can_reset_a_function(tmp_path: Path) -> None:
    (tmp_path / "bus/pci/devices/0000:65:00.0").mkdir(parents=True)
    assert not has_reset(str(tmp_path))("0000:65:00.0")
    (tmp_path / "bus/pci/devices/0000:65:00.0/reset").touch()
    assert has_reset(str(tmp_path))("0000:65:00.0")


def process(proc: Path, pid: int, name: str, *targets: str) -> None:
    files = proc / str(pid) / "fd"
    files.mkdir(parents=True)
    (proc / str(pid) / "comm").write_text(f"{name}\n")
    for number, target in enumerate(targets):
        (files / str(number)).symlink_to(target)


def test_processes_that_nvidia_smi_releases_itself_do_not_block_a_reset(tmp_path: Path) -> None:
    process(tmp_path, 10, "nvidia-persistenced"[:15], "/dev/nvidia1")
    process(tmp_path, 11, "nv-fabricmanager"[:15], "/dev/nvidia1")
    process(tmp_path, 12, "python", "/dev/nvidia0")
    holders = GpuHolders(lambda: [tmp_path], lambda _: 1)
    assert holders.blocking(GPU) == ()
    process(tmp_path, 13, "python", "/dev/nvidia1")
    assert holders.blocking(GPU) == ("python (process 13)",)
    assert holders.is_running("nv-fabricmanager") is True
    assert holders.is_running("nvidia-imex") is False


def test_known_holders_come_with_advice(tmp_path: Path) -> None:
    for pid in range(20, 30):
        process(tmp_path, pid, "python", "/dev/nvidia1")
    process(tmp_path, 30, "nv-hostengine", "/dev/nvidia1")
    found = GpuHolders(lambda: [tmp_path], lambda _: 1).blocking(GPU)
    assert found is not None
    assert found[0].startswith("nv-hostengine (process 30): stop DCGM")
    assert (len(found), found[-1]) == (5, "7 more")


def test_a_process_whose_files_are_hidden_is_unknown() -> None:
    """Without CAP_SYS_PTRACE the node process cannot read the open files of other users' processes."""
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o777)  # noqa: PTH101, S103 - another user writes into it
        with another_user():
            _hidden(Path(folder) / "proc")


def _hidden(proc: Path) -> None:
    process(proc, 12, "python", "/dev/null")
    assert GpuHolders(lambda: [proc], lambda _: 1).blocking(GPU) == ()
    (proc / "12" / "fd").chmod(0)
    assert GpuHolders(lambda: [proc], lambda _: 1).blocking(GPU) is None


@contextmanager
def another_user() -> Iterator[None]:
    """Root reads everything, so that the block runs as another user where the test runs as root."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)


def test_a_process_with_more_files_than_were_read_is_unknown(tmp_path: Path) -> None:
    process(tmp_path, 12, "python", *["/dev/null"] * (MAX_FILES + 1))
    assert GpuHolders(lambda: [tmp_path], lambda _: 1).blocking(GPU) is None


def test_without_a_readable_proc_nothing_is_known(tmp_path: Path) -> None:
    """Unknown is not free."""
    holders = GpuHolders(lambda: [tmp_path / "missing"], lambda _: 1)
    assert (holders.blocking(GPU), holders.is_running("nv-fabricmanager")) == (None, None)


def test_an_incomplete_search_for_processes_is_unknown(tmp_path: Path) -> None:
    process(tmp_path, 12, "python", "/dev/null")
    process(tmp_path, 13, "python", "/dev/null")
    slow = itertools.count(0.0, 0.8)
    assert GpuHolders(lambda: [tmp_path], lambda _: 1, lambda: next(slow)).blocking(GPU) is None
