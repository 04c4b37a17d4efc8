"""Where daemons have pipes and shared memory, without privilege: mounts are only recorded."""

import errno
import os
from pathlib import Path

import pytest

from dra_driver.core.errors import StorageError
from dra_driver.hardware.sharing.control import ControlProgram
from dra_driver.hardware.sharing.host import MpsHost
from dra_driver.hardware.sharing.memory import (
    LABEL,
    SOURCE,
    Mounted,
    OwnMemory,
    SharedMemory,
    SystemMounts,
    TmpfsBounds,
    container_label,
)
from dra_driver.hardware.sharing.mps_files import DaemonFolder, MpsDaemon, MpsFolders
from tests.harness.raising import fails

LIMITS = TmpfsBounds(size_bytes=2**30, files=1000)
OWN = Mounted(kind="tmpfs", source=SOURCE)


class FakeMounts(SystemMounts):
    """Mounts as values; folders stay plain."""

    def __init__(self) -> None:
        self.mounted: dict[Path, Mounted] = {}
        self.calls: list[str] = []
        self.refusal: int | None = None

    def at(self, path: Path) -> Mounted | None:
        return self.mounted.get(path)

    def is_shared(self, path: Path) -> bool:
        return True

    def mount(self, path: Path, limits: TmpfsBounds) -> None:
        if self.refusal is not None:
            raise OSError(self.refusal, "no")
        self.calls.append(f"mount {path.name} {limits.size_bytes} {limits.files}")
        self.mounted[path] = OWN

    def unmount(self, path: Path) -> None:
        self.calls.append(f"unmount {path.name}")
        del self.mounted[path]
        for name in ("pipe", "shm"):  # what is on the file system goes with it
            (path / name).rmdir()


class World:
    def __init__(self, base: Path) -> None:
        self.mounts = FakeMounts()
        self.run, self.former = base / "run", base / "former"
        self.folders = MpsFolders(base / "mps")
        self.memory = OwnMemory(self.run, self.former, self.mounts, LIMITS)
        self.memory.start()

    def folder(self, name: str) -> DaemonFolder:
        folder = self.folders.of(name)
        folder.make()
        return folder


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def mode(path: Path) -> int:
    return path.stat().st_mode & 0o7777


def test_each_daemon_has_a_file_system_of_its_own_with_bounds(world: World) -> None:
    for name in ("one", "two"):
        world.memory.make(world.folder(name))
        assert world.memory.shm(name) == world.run / name / "shm"
        assert [mode(world.run / name / each) for each in ("pipe", "shm", ".")] == [0o1777, 0o1777, 0o711]
    assert world.mounts.calls == ["mount one 1073741824 1000", "mount two 1073741824 1000"]
    assert mode(world.run) == 0o711


def test_the_daemons_folder_leads_to_its_pipes_also_after_a_repeat(world: World) -> None:
    folder = world.folder("one")
    (folder.pipe / "control").write_text("of an earlier boot, on the disk")
    for _ in range(2):
        world.memory.make(folder)
        folder.make()
    assert folder.pipe_on_host == world.run / "one/pipe"
    assert world.mounts.calls == ["mount one 1073741824 1000"]


def test_a_link_that_leads_nowhere_does_not_stop_the_node_process(world: World) -> None:
    folder = world.folder("one")
    folder.pipe.rmdir()
    folder.pipe.symlink_to("/nonexistent/pipe")
    folder.make()
    assert folder.pipe_on_host == Path("/nonexistent/pipe")


def test_a_released_daemons_file_system_goes(world: World) -> None:
    world.memory.make(world.folder("one"))
    world.memory.remove("one")
    assert world.mounts.calls[-1] == "unmount one"
    assert list(world.run.iterdir()) == []
    world.memory.remove("one")
    world.memory.stop()
    assert not world.run.exists()


def test_a_name_of_another_program_does_not_keep_what_a_former_host_left(world: World) -> None:
    names = [f"daemon-{number}" for number in range(8)]
    for name in names:
        world.memory.make(world.folder(name))
        (world.run / f".{name}").mkdir()  # folders are listed in any order
    world.memory.remove_unused(lambda name: name == names[2])
    assert {path.name for path in world.run.iterdir()} == {names[2], *(f".{name}" for name in names)}
    world.memory.stop()
    assert (world.run / names[2] / "shm").exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="giving a folder to another user takes root")
def test_a_folder_that_a_container_gave_away_is_taken_back(world: World) -> None:
    """Root in a container may do so; the daemon has to start again for all other containers."""
    folder = world.folder("one")
    world.memory.make(folder)
    for name in ("pipe", "shm"):
        os.chown(world.run / "one" / name, 12345, 12345)
        (world.run / "one" / name).chmod(0)
    world.memory.make(folder)
    assert [(mode(path), path.stat().st_uid) for path in (world.run / "one").iterdir()] == [(0o1777, 0)] * 2


def test_folders_of_a_daemon_that_is_released_while_the_host_starts_go(world: World) -> None:
    folder = world.folder("one")
    world.memory.make(folder)
    folder.write_desired(MpsDaemon(id="one", devices=("GPU-1",)))
    host = MpsHost(world.folders.root, ControlProgram(), world.memory)
    host.start()
    assert (world.run / "one").exists()
    folder.release()
    host.step()
    assert not (world.run / "one").exists()
    host.stop()


def test_a_daemon_of_an_earlier_version_keeps_its_folders(world: World) -> None:
    (world.former / "one").mkdir(parents=True)
    folder = world.folder("one")
    world.memory.make(folder)
    assert world.memory.shm("one") == world.former / "one"
    assert folder.pipe_on_host == folder.pipe
    assert world.mounts.calls == []
    world.memory.remove("one")
    assert world.memory.shm("one") == world.run / "one/shm"
    assert not (world.former / "one").exists()


def test_a_link_is_not_taken_for_the_folder_of_an_earlier_version(world: World, tmp_path: Path) -> None:
    """Any user may create one in /dev/shm."""
    (tmp_path / "precious/one").mkdir(parents=True)
    world.former.symlink_to(tmp_path / "precious")
    world.memory.remove_unused(lambda _: False)
    world.memory.remove("one")
    world.memory.stop()
    assert world.memory.shm("one") == world.run / "one/shm"
    assert (tmp_path / "precious/one").exists()


def test_a_foreign_mount_is_refused_and_stays(world: World) -> None:
    folder, own = world.folder("one"), world.run / "one"
    own.mkdir(mode=0o700)
    world.mounts.mounted[own] = Mounted(kind="ext4", source="/dev/sda1")
    with fails(StorageError, "ForeignMount", match=r"one .* /dev/sda1 \(ext4\)"):
        world.memory.make(folder)
    world.memory.remove("one")
    assert (mode(own), world.mounts.calls) == (0o700, [])


def test_a_mount_that_is_not_permitted_is_a_sentence(world: World) -> None:
    world.mounts.refusal = errno.EPERM
    with fails(StorageError, "MountFailed", match="/run/one"):
        world.memory.make(world.folder("one"))


def test_without_namespaces_all_daemons_use_one_plain_folder(tmp_path: Path) -> None:
    memory = SharedMemory(tmp_path / "shm")
    memory.start()
    folder = MpsFolders(tmp_path / "mps").of("one")
    folder.make()
    memory.make(folder)
    assert (memory.shm("one"), mode(tmp_path / "shm")) == (tmp_path / "shm", 0o1777)
    assert folder.pipe_on_host == folder.pipe
    memory.remove("one")
    memory.stop()
    assert (tmp_path / "shm").is_dir()


def test_mounts_of_the_kernel_are_read(tmp_path: Path) -> None:
    mounts = SystemMounts()
    assert mounts.at(Path("/proc")) == Mounted(kind="proc", source="proc")
    assert mounts.at(Path("/proc/self")) is None
    assert mounts.at(tmp_path / "missing") is None


@pytest.mark.parametrize(
    ("own", "label"),
    [
        ("system_u:system_r:spc_t:s0\0", LABEL),
        ("system_u:system_r:container_t:s0:c1,c2\0", LABEL),
        ("cri-containerd.apparmor.d (enforce)\n", None),
        ("unconfined\n", None),
        ("kernel\0", None),
        ("", None),
        (None, None),
    ],
)
def test_the_label_of_container_files_is_used_where_a_policy_is_loaded(
    tmp_path: Path, own: str | None, label: str | None
) -> None:
    if own is not None:
        (tmp_path / "current").write_text(own)
    assert container_label(tmp_path, tmp_path / "current") == label
    assert container_label(tmp_path / "selinux", tmp_path / "current") is None, "the kernel has no SELinux"
