"""The files between node process and MPS host, also beside unexpected ones, and their removal."""

import json
import os
import stat
import subprocess
import sys
import time
from itertools import count
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dra_driver.core.errors import StorageError
from dra_driver.core.files import lock_file
from dra_driver.core.model.ids import GpuUuid
from dra_driver.hardware.sharing import mps_files
from dra_driver.hardware.sharing.control import ControlProgram
from dra_driver.hardware.sharing.host import MpsHost
from dra_driver.hardware.sharing.memory import SharedMemory
from dra_driver.hardware.sharing.mps_files import MAX_DEVICES, DaemonStatus, MpsDaemon, MpsFolders, make_own
from dra_driver.hardware.sharing.safe_rmtree import remove_tree

G1 = "GPU-00000000-0000-0000-0000-000000000001"
DAEMON = MpsDaemon(id="one", devices=(G1,), memory_limits={G1: 5})


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_only_root_reads_the_wanted_daemon_and_all_users_use_the_pipes(tmp_path: Path) -> None:
    """Servers run as their clients' users; the pipe folder is mounted, so they need no access to its parents."""
    before = os.umask(0o077)
    try:
        folders = MpsFolders(tmp_path / "mps")
        folders.make()
        folder = folders.of("one")
        folder.make()
        folder.write_desired(DAEMON)
    finally:
        os.umask(before)
    assert (mode(folders.root), mode(folder.path), mode(folder.desired)) == (0o700, 0o700, 0o600)
    assert (mode(folder.pipe), mode(folder.log)) == (0o1777, 0o755)
    folder.pipe.chmod(0o777)  # as up to 0.1
    folder.make()
    assert mode(folder.pipe) == 0o1777


@pytest.mark.skipif(os.geteuid() != 0, reason="acting as another user takes root")
def test_another_user_cannot_replace_the_daemons_socket(tmp_path: Path) -> None:
    """Clients of any user write into the folder; one that put its own socket there would receive the others' calls."""
    folder = MpsFolders(tmp_path / "mps").of("one")
    folder.make()
    (folder.pipe / "control").write_text("of the daemon")
    for attempt in ("echo x >mine && mv -f mine control", "rm -f control"):
        done = subprocess.run(["/bin/sh", "-c", attempt], cwd=folder.pipe, user=12345, capture_output=True, check=False)
        assert (done.returncode != 0, b"not permitted" in done.stderr) == (True, True), done.stderr
    assert (folder.pipe / "control").read_text() == "of the daemon"
    assert (folder.pipe / "mine").exists()


def test_desired_released_and_back(tmp_path: Path) -> None:
    folder = MpsFolders(tmp_path).of("one")
    assert (folder.read_desired(), folder.read_any()) == (None, None)
    folder.make()
    folder.write_desired(DAEMON)
    assert folder.read_desired() == DAEMON
    folder.release()
    folder.release()
    assert (folder.read_desired(), folder.read_any()) == (None, DAEMON)
    folder.write_desired(DAEMON)
    assert sorted(path.name for path in folder.path.iterdir()) == ["desired.json", "log", "pipe"]


def test_a_file_of_another_daemons_name_is_not_believed(tmp_path: Path) -> None:
    one, two = MpsFolders(tmp_path).of("one"), MpsFolders(tmp_path).of("two")
    one.make()
    two.make()
    one.write_desired(DAEMON)
    one.desired.rename(two.desired)
    assert two.read_desired() is None


@pytest.mark.parametrize("content", ["", "{", "[]", "null", "[" * 100_000, '{"id": "one"}', "\xff", '{"a":' * 5000])
def test_files_with_other_content_count_as_missing(tmp_path: Path, content: str) -> None:
    folder = MpsFolders(tmp_path).of("one")
    folder.make()
    folder.desired.write_text(content, encoding="latin-1")
    folder.status.write_text(content, encoding="latin-1")
    assert (folder.read_desired(), folder.read_status()) == (None, None)


def test_links_and_fifos_are_not_read(tmp_path: Path) -> None:
    folder = MpsFolders(tmp_path).of("one")
    folder.make()
    os.mkfifo(folder.status)
    (tmp_path / "elsewhere").write_text("{}")
    folder.desired.symlink_to(tmp_path / "elsewhere")
    assert (folder.read_desired(), folder.read_status()) == (None, None)


def test_ids_are_folders_with_possible_names(tmp_path: Path) -> None:
    folders = MpsFolders(tmp_path / "mps")
    assert folders.ids() == ()
    for name in ("two", "one"):
        folders.of(name).make()
    (folders.daemons / ".hidden").mkdir()
    (folders.daemons / "file").write_text("")
    (folders.daemons / "link").symlink_to(tmp_path)
    assert folders.ids() == ("one", "two")
    assert folders.stamps() == {}
    folders.of("one").write_desired(DAEMON)
    first = folders.stamps()
    assert set(first) == {"one"}
    folders.of("one").write_desired(DAEMON)
    assert folders.stamps() != first


def test_removing_follows_no_link_out_of_the_folder(tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.mkdir()
    (precious / "file").write_text("still here")
    folder = MpsFolders(tmp_path / "mps").of("one")
    folder.make()
    (folder.pipe / "to-folder").symlink_to(precious)
    (folder.pipe / "to-file").symlink_to(precious / "file")
    (folder.pipe / "nowhere").symlink_to("/nonexistent")
    (folder.pipe / "deep/er").mkdir(parents=True)
    (folder.pipe / "deep/er/file").write_text("")
    os.mkfifo(folder.pipe / "fifo")
    folder.remove()
    folder.remove()
    assert not folder.path.exists()
    assert (precious / "file").read_text() == "still here"


def test_a_link_in_place_of_the_folder_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "precious").mkdir()
    (tmp_path / "precious/file").write_text("")
    (tmp_path / "link").symlink_to(tmp_path / "precious")
    with pytest.raises(OSError, match=r"."):
        remove_tree(tmp_path / "link")
    assert (tmp_path / "precious/file").exists()


def test_what_cannot_be_written_is_a_sentence_with_the_path(tmp_path: Path) -> None:
    (tmp_path / "daemons").write_text("a file in the way")
    folder = MpsFolders(tmp_path).of("one")
    status = DaemonStatus(generation="", state="ready")
    for call in (folder.make, lambda: folder.write_desired(DAEMON), lambda: folder.write_status(status)):
        with pytest.raises(StorageError, match=f"cannot (create|write) .*{folder.path}.*: Not a directory"):
            call()


@pytest.mark.skipif(os.geteuid() != 0, reason="giving a folder to another user takes root")
def test_a_folder_of_another_user_is_not_used(tmp_path: Path) -> None:
    """Its owner could put a link into the place of any daemon's shared memory, for containers to mount."""
    folder = tmp_path / "shm"
    folder.mkdir()
    os.chown(folder, 12345, 12345)
    with pytest.raises(OSError, match=r"belongs to user 12345, .* remove it"):
        make_own(folder, 0o711)
    os.chown(folder, 0, 0)
    make_own(folder, 0o711)
    assert mode(folder) == 0o711


UUIDS = st.uuids().map(lambda uuid: f"GPU-{uuid}") | st.uuids().map(lambda uuid: f"MIG-{uuid}")
GPU_1, GPU_2 = "GPU-00000000-0000-0000-0000-000000000001", "GPU-00000000-0000-0000-0000-000000000002"
WIRE = {"id": "one", "devices": [GPU_1], "gpus": [GPU_1], "defaultPercentage": 50, "memoryLimitsMiB": {GPU_1: 7}}


@st.composite
def daemons(draw: st.DrawFn) -> MpsDaemon:
    devices = tuple(sorted(draw(st.sets(UUIDS, min_size=1, max_size=8))))
    limited = draw(st.sets(st.sampled_from(devices)))
    return MpsDaemon(
        id=draw(st.from_regex(r"[0-9A-Za-z][0-9A-Za-z._-]{0,127}", fullmatch=True)),
        devices=devices,
        gpus=tuple(GpuUuid(device) for device in devices if device.startswith("GPU-")),
        default_percentage=draw(st.none() | st.integers(0, 100)),
        memory_limits={device: draw(st.integers(1, 2**24)) for device in sorted(limited)},
    )


@given(daemons(), daemons())
def test_json_returns_the_same_daemon_and_only_that_has_its_generation(one: MpsDaemon, other: MpsDaemon) -> None:
    again = msgspec.convert(json.loads(json.dumps(msgspec.to_builtins(one))), MpsDaemon)
    assert again == one
    assert again.generation == one.generation
    assert (one == other) == (one.generation == other.generation)


def test_generation_is_that_of_earlier_versions() -> None:
    """During an update, the host of one version compares it with the file of the other."""
    assert msgspec.convert(WIRE | {"of a newer version": 1}, MpsDaemon).generation == "48e7afc6d9"


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "../a", "a\n", "a b", "-a", ".a", "é", "a" * 129, "a\0b"])
def test_an_id_can_always_be_the_name_of_a_folder(name: str) -> None:
    with pytest.raises(ValueError, match="cannot name an MPS daemon"):
        MpsDaemon(id=name, devices=(GPU_1,))


@pytest.mark.parametrize(
    "change",
    [
        {"devices": []},
        {"devices": [GPU_1, GPU_1]},
        {"devices": [f"GPU-{number}" for number in range(MAX_DEVICES + 1)]},
        {"devices": ["GPU-1\nquit"]},
        {"devices": ["0"]},
        {"devices": ["GPU-1,GPU-2"]},
        {"devices": "GPU-1"},
        {"devices": [1]},
        {"id": 1},
        {"gpus": [GPU_2]},
        {"gpus": [[]]},
        {"devices": ["MIG-1"], "gpus": ["MIG-1"]},
        {"defaultPercentage": 101},
        {"defaultPercentage": -1},
        {"defaultPercentage": True},
        {"defaultPercentage": "1"},
        {"memoryLimitsMiB": {GPU_2: 1}},
        {"memoryLimitsMiB": {GPU_1: 0}},
        {"memoryLimitsMiB": {GPU_1: 2**24 + 1}},
        {"memoryLimitsMiB": {GPU_1: None}},
    ],
)
def test_words_of_commands_and_folders_are_bounded(change: dict[str, Any]) -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert(WIRE | change, MpsDaemon)


def test_a_host_that_goes_on_is_ready(tmp_path: Path) -> None:
    folders = MpsFolders(tmp_path / "mps")
    assert "no MPS host has run" in (mps_files.host_problem(folders) or "")
    folders.make()
    lock = lock_file(folders.lock)
    try:
        mps_files.beat(lock)
        assert mps_files.host_problem(folders) is None
        later = time.time() + mps_files.LATE_S + 1
        assert "has not gone on for 61 s" in (mps_files.host_problem(folders, now=lambda: later) or "")
        os.utime(folders.lock, (1.0, 1.0))
        mps_files.beat(lock)
        assert mps_files.host_problem(folders) is None
    finally:
        os.close(lock)
    assert "is not locked" in (mps_files.host_problem(folders) or "")


def test_a_host_says_every_ten_seconds_that_it_goes_on(tmp_path: Path) -> None:
    now = [100.0]
    host = MpsHost(tmp_path / "mps", ControlProgram(), SharedMemory(tmp_path / "shm"), clock=lambda: now[0])
    lock = tmp_path / "mps/host.lock"

    def beats() -> bool:
        os.utime(lock, (1.0, 1.0))
        host.step()
        return lock.stat().st_mtime > 1.0

    host.start()
    found = []
    for second in (0.0, 0.25, 9.75, 10.0, 10.25):
        now[0] = 100.0 + second
        found.append(beats())
    assert found == [True, False, False, True, False]
    host.stop()


def nest(folder: Path, levels: int) -> None:
    inside = os.open(folder, os.O_RDONLY)
    for _ in range(levels):
        os.mkdir("a", dir_fd=inside)
        deeper = os.open("a", os.O_RDONLY, dir_fd=inside)
        os.close(inside)
        inside = deeper
    os.close(inside)


def test_folders_nested_deeper_than_any_recursion_go(tmp_path: Path) -> None:
    """A container that nests folders must not end the process that runs every other pod's daemon."""
    tree = tmp_path / "pipe"
    tree.mkdir()
    nest(tree, sys.getrecursionlimit() + 100)
    remove_tree(tree)
    assert not tree.exists()


def test_no_more_than_a_few_files_are_open_at_a_time(tmp_path: Path) -> None:
    """One for each level would end a node process that also has sockets to serve."""
    tree = tmp_path / "pipe"
    tree.mkdir()
    nest(tree, 30)
    (tree / "file").write_text("")
    most = 0

    def clock() -> float:
        nonlocal most
        most = max(most, sum(1 for _ in Path("/proc/self/fd").iterdir()))
        return 0.0

    before = sum(1 for _ in Path("/proc/self/fd").iterdir())
    remove_tree(tree, clock=clock)
    assert not tree.exists()
    assert most - before <= 4  # two folders, and the two that read them


def test_what_takes_too_long_is_left_to_the_next_call(tmp_path: Path) -> None:
    tree = tmp_path / "pipe"
    tree.mkdir()
    for number in range(20):
        (tree / str(number)).write_text("")
    ticks = count()
    with pytest.raises(TimeoutError, match="the rest is removed later"):
        remove_tree(tree, within_s=10.0, clock=lambda: float(next(ticks)))
    assert 0 < len(list(tree.iterdir())) < 20
    remove_tree(tree)
    remove_tree(tree)
    assert not tree.exists()
