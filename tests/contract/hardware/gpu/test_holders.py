"""Processes that have a file open, as the kernel shows them."""

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from dra_driver.hardware.gpu.holders import GpuHolder, GpuHolders, scan

MINOR = 7777777777
"""No GPU has it."""


@pytest.fixture
def holder(tmp_path: Path) -> Iterator["subprocess.Popen[bytes]"]:
    """Another process that has a file open whose name ends as that of a GPU's device node."""
    node = tmp_path / f"nvidia{MINOR}"
    node.touch()
    with node.open() as file, subprocess.Popen([shutil.which("sleep") or "sleep", "60"], stdin=file) as process:
        yield process
        process.kill()


def test_another_process_is_found(holder: "subprocess.Popen[bytes]") -> None:
    """By what /proc says about its open files; this process has the file open as well and is passed over."""
    assert scan(Path("/proc"), MINOR).holders == (GpuHolder(pid=holder.pid, name="sleep"),)


def test_a_process_that_has_ended_is_not_named(holder: "subprocess.Popen[bytes]") -> None:
    """Not even before its parent has collected it: a zombie has no open files."""
    holder.kill()
    with Path(f"/proc/{holder.pid}/stat").open() as stat:
        while stat.read().rpartition(")")[2].split()[0] != "Z":
            stat.seek(0)
    answer = GpuHolders(lambda: [Path("/proc")], lambda _: MINOR)("GPU-0")
    assert answer is not None
    assert answer.startswith("no other process has it open")
