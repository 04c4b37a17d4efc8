"""Locks of GPUs, between threads and between processes (two `GpuLocks` in one folder act like two processes)."""

import stat
import threading
from pathlib import Path

import pytest

from dra_driver.core.errors import StorageError
from dra_driver.core.model.ids import GpuUuid
from dra_driver.node.claims.waiting import GpuLocks
from tests.fakes.claims import gpu

ONE, TWO = gpu(1).uuid, gpu(2).uuid


@pytest.mark.parametrize("same_process", [True, False])
def test_a_lock_has_one_holder(tmp_path: Path, same_process: bool) -> None:
    first = GpuLocks(tmp_path)
    second = first if same_process else GpuLocks(tmp_path)
    with first.acquire((ONE,), 1.0) as acquired:
        assert acquired
        with second.acquire((ONE,), 0.0) as also:
            assert not also
        with second.acquire((TWO,), 0.0) as other:
            assert other
    with second.acquire((ONE,), 0.0) as now:
        assert now


def test_several_locks_are_acquired_all_or_none(tmp_path: Path) -> None:
    """A claim of several GPUs keeps none of them while it cannot have one."""
    here, there = GpuLocks(tmp_path), GpuLocks(tmp_path)
    with there.acquire((TWO,), 0.0), here.acquire((TWO, ONE, TWO), 0.0) as acquired:
        assert not acquired
        with there.acquire((ONE,), 0.0) as free:
            assert free


def test_locks_are_taken_in_one_order(tmp_path: Path) -> None:
    """Two claims that name the same GPUs in different orders never wait for each other."""
    with GpuLocks(tmp_path).acquire((ONE,), 0.0), GpuLocks(tmp_path).acquire((TWO, ONE), 0.0) as acquired:
        assert not acquired
    assert [path.name for path in tmp_path.iterdir()] == [f"{ONE}.lock"], "the second GPU was locked before the first"


def test_a_wait_ends_when_the_lock_is_released(tmp_path: Path) -> None:
    locks, inside, done = GpuLocks(tmp_path), threading.Event(), threading.Event()

    def other() -> None:
        with locks.acquire((ONE,), 1.0):
            inside.set()
            done.wait(5.0)

    thread = threading.Thread(target=other, name="other")
    thread.start()
    assert inside.wait(5.0)
    timer = threading.Timer(0.02, done.set)
    timer.start()
    with locks.acquire((ONE, TWO), 5.0) as acquired:
        assert acquired
    thread.join()
    timer.join()


def test_an_exception_releases_the_locks(tmp_path: Path) -> None:
    locks = GpuLocks(tmp_path)
    with pytest.raises(KeyError), locks.acquire((ONE,), 0.0):
        raise KeyError
    with GpuLocks(tmp_path).acquire((ONE,), 0.0) as acquired:
        assert acquired


def test_files_are_private_and_stay_in_their_folder(tmp_path: Path) -> None:
    """A UUID comes from a journal that may be damaged."""
    folder = tmp_path / "made" / "locks"
    with GpuLocks(folder).acquire((GpuUuid("../../escape"), ONE), 0.0) as acquired:
        assert acquired
    assert sorted(path.name for path in folder.iterdir()) == [f"{ONE}.lock", "______escape.lock"]
    assert {stat.S_IMODE(path.stat().st_mode) for path in folder.iterdir()} == {0o600}
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700


def test_a_folder_that_cannot_be_created_is_a_storage_error(tmp_path: Path) -> None:
    (tmp_path / "locks").write_text("")
    locks = GpuLocks(tmp_path / "locks")
    for _ in range(2):
        with pytest.raises(StorageError, match=f"cannot lock GPU {ONE}"), locks.acquire((ONE,), 0.0):
            pass
