"""Who has a GPU open, read from laid-out proc trees."""

from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pytest

from dra_driver.hardware.gpu.holders import GpuHolder, GpuHolders, describe, scan

UUID = "GPU-0"


def process(proc: Path, pid: int, name: str, *files: str) -> Path:
    fds = proc / str(pid) / "fd"
    fds.mkdir(parents=True)
    (proc / str(pid) / "comm").write_text(f"{name}\n")
    for number, target in enumerate(("/dev/null", *files)):
        (fds / str(number)).symlink_to(target)
    return fds


def test_known_programs_come_first_with_advice(tmp_path: Path) -> None:
    process(tmp_path, 7, "python3", "/dev/nvidiactl", "/dev/nvidia0", "/dev/nvidia-caps/nvidia-cap21")
    process(tmp_path, 8, "python3", "/dev/nvidia10", "/dev/nvidiactl", "/dev/nvidia-uvm")
    process(tmp_path, 4711, "nv-hostengine", "/dev/nvidia0")
    found = scan(tmp_path, 0)
    assert found.holders == (
        GpuHolder(pid=4711, name="nv-hostengine"),
        GpuHolder(pid=7, name="python3", capabilities=True),
    )
    assert describe(found) == (
        "open in nv-hostengine (process 4711), python3 (process 7, with MIG instances); nv-hostengine: stop DCGM on "
        "this node, or have it release its GPUs"
    )


def test_a_removed_device_node_counts(tmp_path: Path) -> None:
    process(tmp_path, 7, "train", "/dev/nvidia3 (deleted)")
    assert [one.pid for one in scan(tmp_path, 3).holders] == [7]


@pytest.mark.parametrize("gone", ["fd", "comm", "all"])
def test_a_process_that_ends_during_the_scan_is_passed_over(tmp_path: Path, gone: str) -> None:
    process(tmp_path, 7, "ending", "/dev/nvidia0")
    process(tmp_path, 9, "staying", "/dev/nvidia0")
    ending = tmp_path / "7"
    if gone in ("comm", "all"):
        (ending / "comm").unlink()
    if gone in ("fd", "all"):
        for link in (ending / "fd").iterdir():
            link.unlink()
        (ending / "fd").rmdir()
    assert [one.name for one in scan(tmp_path, 0).holders] == ["staying"]


def test_names_are_made_harmless(tmp_path: Path) -> None:
    fds = process(tmp_path, 7, "x", "/dev/nvidia0")
    (fds.parent / "comm").write_bytes(b"\x1b[2J\xff\nline two and much more\n")
    assert scan(tmp_path, 0).holders[0].name == "?[2J??line two "


def test_the_scan_ends_in_time(tmp_path: Path) -> None:
    """A node with very many processes delays the error by about a second at most; the text says that it is partial."""
    for pid in range(10):
        process(tmp_path, pid, "busy", "/dev/nvidia0")
    ticks = count(0.0, 0.3)
    found = scan(tmp_path, 0, clock=lambda: next(ticks))
    assert not found.complete
    assert found.processes == 3
    assert "not all of them" in describe(found)


def test_the_number_of_processes_is_limited(tmp_path: Path) -> None:
    for pid in range(10):
        process(tmp_path, pid, "idle")
    found = scan(tmp_path, 0, clock=lambda: 0.0, most=4)
    assert (found.processes, found.complete) == (4, False)


def test_many_holders_fit_into_an_event(tmp_path: Path) -> None:
    """An event has 1024 characters for the whole sentence."""
    for pid in range(100, 130):
        process(tmp_path, pid, "a" * 40, "/dev/nvidia0", "/dev/nvidia-caps/nvidia-cap1")
    text = describe(scan(tmp_path, 0))
    assert "and 26 more" in text
    assert len(text) < 300


def test_the_first_proc_with_processes_is_read(tmp_path: Path) -> None:
    """A host root without a mounted proc file system has an empty folder there."""
    empty, missing, full = tmp_path / "empty", tmp_path / "missing", tmp_path / "full"
    empty.mkdir()
    process(full, 3, "Xorg", "/dev/nvidia1")
    asked = GpuHolders(lambda: (missing, empty, full), lambda _: 1)
    assert asked(UUID) == "open in Xorg (process 3); Xorg: keep the display server off this GPU"


def test_nothing_found_says_where_it_was_looked_for(tmp_path: Path) -> None:
    process(tmp_path, 3, "sh")
    answer = GpuHolders(lambda: (tmp_path,), lambda _: 1)(UUID)
    assert answer is not None
    assert f"1 processes were looked at in {tmp_path}" in answer


def test_the_answer_never_raises(tmp_path: Path) -> None:

    def failing() -> Iterator[Path]:
        raise RuntimeError("defect")

    assert GpuHolders(failing, lambda _: 0)(UUID) is None
    assert GpuHolders(lambda: (tmp_path / "none",), lambda _: 0)(UUID) is None
    assert GpuHolders(lambda: (tmp_path,), lambda _: None)(UUID) is None
