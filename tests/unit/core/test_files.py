"""Atomic and durable writes, and locks between processes."""

import errno
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from dra_driver.core.files import UNFINISHED, holder_of, lock_file, name_holder, remove_unfinished, replace_file


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What is synced and renamed, in order; each call also goes through to the kernel."""
    seen: list[str] = []
    fsync, replace = os.fsync, os.replace

    def recorded_fsync(descriptor: int) -> None:
        path, status = Path(f"/proc/self/fd/{descriptor}").readlink(), os.fstat(descriptor)
        is_folder = stat.S_ISDIR(status.st_mode)
        seen.append(f"sync folder {path}" if is_folder else f"sync file *{path.suffix} of {status.st_size} bytes")
        fsync(descriptor)

    def recorded_replace(source: "os.PathLike[str]", target: "os.PathLike[str]") -> None:
        seen.append(f"rename to {Path(target).name}")
        replace(source, target)

    monkeypatch.setattr(os, "fsync", recorded_fsync)
    monkeypatch.setattr(os, "replace", recorded_replace)
    return seen


def test_a_durable_write_syncs_the_whole_file_then_renames_it_then_syncs_the_folder(
    tmp_path: Path, calls: list[str]
) -> None:
    """Any other order lets a power cut leave an empty file, or the old name without the new content."""
    replace_file(tmp_path / "x", b"content", durable=True)
    assert calls == ["sync file *.tmp of 7 bytes", "rename to x", f"sync folder {tmp_path}"]
    calls.clear()  # other writes sync nothing
    replace_file(tmp_path / "x", b"content")
    assert calls == ["rename to x"]


@pytest.mark.parametrize("mode", [0o600, 0o444, 0o755])
def test_content_and_mode_are_exactly_those_given(tmp_path: Path, mode: int) -> None:
    path = tmp_path / "x"
    path.write_text("old")
    status = replace_file(path, b"new", mode=mode)
    assert (path.read_bytes(), path.stat().st_mode & 0o777) == (b"new", mode)
    assert (status.st_ino, status.st_mtime_ns) == (path.stat().st_ino, path.stat().st_mtime_ns)
    assert list(tmp_path.iterdir()) == [path]


def test_a_link_in_place_of_the_file_is_replaced_and_not_followed(tmp_path: Path) -> None:
    """Otherwise a link could make the driver overwrite any file of the node."""
    target = tmp_path / "target"
    target.write_text("precious")
    (tmp_path / "x").symlink_to(target)
    replace_file(tmp_path / "x", b"new")
    assert (target.read_text(), (tmp_path / "x").is_symlink()) == ("precious", False)


def test_a_link_laid_at_the_temporary_name_is_not_followed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "urandom", lambda size: b"\0" * size)
    target = tmp_path / "target"
    (tmp_path / f".x.00000000{UNFINISHED}").symlink_to(target)
    with pytest.raises(FileExistsError):
        replace_file(tmp_path / "x", b"new")
    assert not target.exists()


@pytest.mark.parametrize("step", ["fsync", "replace"])
def test_a_failed_write_leaves_the_old_content_and_no_temporary_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    path = tmp_path / "x"
    path.write_text("old")

    def fail(*_: object) -> None:
        raise OSError(errno.ENOSPC, "no space left on device")

    monkeypatch.setattr(os, step, fail)
    with pytest.raises(OSError, match="no space"):
        replace_file(path, b"new", durable=True)
    assert (path.read_text(), list(tmp_path.iterdir())) == ("old", [path])


def test_a_lock_excludes_others_until_its_descriptor_is_closed(tmp_path: Path) -> None:
    """In one process too, where locks of fcntl would not."""
    path = tmp_path / "lock"
    first = lock_file(path)
    with pytest.raises(BlockingIOError):
        lock_file(path)
    with pytest.raises(BlockingIOError):
        lock_file(path, shared=True)
    os.close(first)
    second = lock_file(path, shared=True)
    third = lock_file(path, shared=True)
    os.close(second)
    os.close(third)


def test_waiting_for_a_lock_ends_at_the_timeout_or_as_soon_as_it_is_free(tmp_path: Path) -> None:
    path, now = tmp_path / "lock", [0.0]
    holder = lock_file(path)

    def sleep(seconds: float) -> None:
        now[0] += seconds
        if now[0] > 3.0:
            os.close(holder)

    with pytest.raises(BlockingIOError):
        lock_file(path, timeout_s=2.0, sleep=sleep, clock=lambda: now[0])
    assert now[0] == pytest.approx(2.0, abs=0.02)
    os.close(lock_file(path, timeout_s=2.0, sleep=sleep, clock=lambda: now[0]))
    assert now[0] == pytest.approx(3.0, abs=0.02)


def test_a_lock_ends_with_its_process(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    code = (
        "import sys, pathlib; from dra_driver.core.files import *; name_holder(lock_file(pathlib.Path(sys.argv[1])));"
    )
    code += "print('locked', flush=True); sys.stdin.read()"
    command = [sys.executable, "-c", code, str(path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == b"locked\n"
        with pytest.raises(BlockingIOError):
            lock_file(path)
        assert holder_of(path) == f"process {other.pid}"
        other.kill()
    os.close(lock_file(path))


def test_temporary_files_of_a_dead_process_are_removed_when_they_are_old(tmp_path: Path) -> None:
    """Their names are random, so no later write replaces them. A young one may still be written."""
    path = tmp_path / "state.json"
    replace_file(path, b"x")
    old, young, other = (tmp_path / name for name in (".state.json.0a.tmp", ".state.json.0b.tmp", ".other.json.0a.tmp"))
    for each in (old, young, other):
        each.touch()
    for each in (old, other):
        os.utime(each, (0, 0))
    remove_unfinished(path)
    assert sorted(each.name for each in tmp_path.iterdir()) == [other.name, young.name, "state.json"]


def test_a_lock_that_exists_is_taken_on_a_read_only_file_system(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel makes a file system read-only after a disk error; prepared claims are answered nevertheless."""
    path, really = tmp_path / "lock", os.open
    path.touch()

    def read_only(name: object, flags: int, *mode: int) -> int:
        if flags & os.O_RDWR:
            raise OSError(errno.EROFS, os.strerror(errno.EROFS))
        return really(path, flags)

    monkeypatch.setattr(os, "open", read_only)
    descriptor = lock_file(path)
    with pytest.raises(BlockingIOError):
        lock_file(path)
    os.close(descriptor)


def test_a_missing_lock_file_is_made_only_where_that_is_wanted(tmp_path: Path) -> None:
    """Asking whether a process lives must not leave a file behind."""
    with pytest.raises(FileNotFoundError):
        lock_file(tmp_path / "lock", create_mode=None)
    assert list(tmp_path.iterdir()) == []
    os.close(lock_file(tmp_path / "lock", create_mode=0o640))
    assert (tmp_path / "lock").stat().st_mode & 0o777 == 0o640


def test_a_lock_file_that_is_a_link_is_refused(tmp_path: Path) -> None:
    """Two names for one file would let two users of different locks exclude each other."""
    (tmp_path / "lock").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OSError, match="symbolic links"):
        lock_file(tmp_path / "lock")
    assert not (tmp_path / "elsewhere").exists()


def test_the_holder_of_a_lock_is_named_and_replaces_the_name_of_the_one_before(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    assert holder_of(path) == "unknown"
    path.write_text("process 4194304 of a longer name\n")
    descriptor = lock_file(path)
    name_holder(descriptor)
    os.close(descriptor)
    assert holder_of(path) == f"process {os.getpid()}"
