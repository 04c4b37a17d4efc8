"""Daemons in mount namespaces of their own: the real system calls. Skipped where the kernel does not allow them."""

import errno
import os
import stat
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from msgspec.structs import replace

from dra_driver.hardware.sharing.memory import SystemMounts, TmpfsBounds
from dra_driver.hardware.sharing.mps_files import MpsDaemon
from dra_driver.hardware.sharing.safe_rmtree import remove_tree
from tests.contract.hardware.sharing.conftest import Node, copy_program, until

# A daemon that writes down what it sees, in the places that it is told of.
NOSY = """\
cd "$CUDA_MPS_PIPE_DIRECTORY"
if [ "$1" != -f ]; then read -r command; [ "$command" != quit ] || echo > over; [ -e up ]; exit; fi
echo "$CUDA_MPS_PIPE_DIRECTORY $CUDA_MPS_LOG_DIRECTORY" > seen
echo logged > "$CUDA_MPS_LOG_DIRECTORY/control.log"
echo "$CUDA_VISIBLE_DEVICES" > /dev/shm/devices
[ ! -e /etc/passwd ] || echo whole > system
echo > up
while [ ! -e over ]; do sleep 0.1; done"""


def devices(node: Node, number: int) -> MpsDaemon:
    return MpsDaemon(id=f"d{number}", devices=(node.gpus[number],), gpus=(node.gpus[number],))


def started(node: Node, *more: str, daemons: int = 1) -> "subprocess.Popen[bytes]":
    host = node.start_host("--namespaces", "own", *more)
    for number in range(daemons):
        node.client.ensure(devices(node, number), within_s=10.0)
    return host


def test_each_daemon_sees_its_own_folders_under_short_names(private_node: Node) -> None:
    private_node.control_script(NOSY)
    started(private_node, daemons=2)
    for number in (0, 1):
        folder = private_node.folders.of(f"d{number}")
        pipe, shm = (found := private_node.client.directories(f"d{number}")).pipe, found.shm
        assert (pipe / "seen").read_text() == "/tmp/nvidia-mps /tmp/nvidia-log\n"
        assert (folder.log / "control.log").read_text() == "logged\n"
        own = private_node.base / f"run/gpu.nvidia.com-mps/d{number}"
        assert (pipe, shm) == (own / "pipe", own / "shm")
        assert pipe.stat().st_mode & 0o7777 == 0o1777
        assert (shm / "devices").read_text() == f"{private_node.gpus[number]}\n"
        assert shm.stat().st_mode & 0o7777 == 0o1777
    assert not Path("/dev/shm/devices").exists()
    assert not Path("/tmp/nvidia-mps/seen").exists()


def test_a_link_that_a_container_laid_in_a_daemons_folders_leads_nowhere(private_node: Node) -> None:
    """Daemons are root and write into folders that containers have mounted: with the container's links, anywhere."""
    precious = private_node.base / "precious"
    precious.write_text("as it was")
    private_node.control_script(NOSY.replace("echo > up", "echo 1 > control.pid; echo 2 > /dev/shm/state; echo > up"))
    started(private_node)
    found = private_node.client.directories("d0")
    links = (found.pipe / "control.pid", found.shm / "state")
    for link in links:
        link.unlink()
        link.symlink_to(precious)
    for name in ("up", "seen"):
        (found.pipe / name).unlink()
    private_node.folders.of("d0").write_desired(replace(devices(private_node, 0), default_percentage=10))
    until((found.pipe / "seen").exists)
    assert all(link.is_symlink() for link in links)
    assert precious.read_text() == "as it was"


def test_shared_memory_goes_with_its_daemon(private_node: Node) -> None:
    started(private_node)
    shm = private_node.client.directories("d0").shm
    (shm / "left-by-a-client").write_text("")
    private_node.client.release("d0", (), within_s=10.0)
    until(lambda: not shm.exists())
    private_node.hosts[0].terminate()
    assert private_node.hosts[0].wait(timeout=10) == 0
    assert not shm.parent.exists()
    assert not [line for line in Path("/proc/mounts").read_text().splitlines() if str(private_node.base) in line]


def test_shared_memory_of_a_former_host_is_removed(private_node: Node) -> None:
    host = started(private_node)
    shm = private_node.client.directories("d0").shm
    host.kill()
    host.wait(timeout=5)
    private_node.client.release("d0", (), within_s=10.0)
    assert shm.exists()
    private_node.start_host("--namespaces", "own")
    until(lambda: not shm.exists())


def test_shared_memory_of_running_containers_outlives_the_host(private_node: Node) -> None:
    host = started(private_node)
    shm = private_node.client.directories("d0").shm
    (shm / "of-a-container").write_text("")
    before = shm.stat().st_ino
    host.terminate()
    assert host.wait(timeout=10) == 0
    started(private_node)
    private_node.client.ensure(replace(devices(private_node, 0), default_percentage=10), within_s=10.0)
    assert (shm / "of-a-container").exists()
    assert shm.stat().st_ino == before


def test_a_root_that_is_a_system_becomes_the_daemons_root(private_node: Node) -> None:
    for name in ("sh", "sleep"):
        copy_program(name, private_node.root)
    if not (private_node.root / "bin").exists():
        (private_node.root / "bin").symlink_to("usr/bin")
    if not (private_node.root / "bin/sh").exists():
        (private_node.root / "bin/sh").symlink_to("/usr/bin/sh")
    for folder in ("tmp", "dev/shm"):
        (private_node.root / folder).mkdir(parents=True)
    private_node.control_script(NOSY)
    started(private_node)
    pipe = private_node.folders.of("d0").pipe
    assert (pipe / "seen").exists()
    assert not (pipe / "system").exists(), "it sees our /etc"
    assert (private_node.client.directories("d0").shm / "devices").exists()
    assert list((private_node.root / "tmp").iterdir()) == []
    private_node.client.release("d0", (), within_s=10.0)


def test_a_root_without_the_folders_to_mount_on_is_a_sentence(private_node: Node) -> None:
    for name in ("sh", "sleep"):
        copy_program(name, private_node.root)
    if not (private_node.root / "bin/sh").exists():
        (private_node.root / "bin").mkdir(exist_ok=True)
        (private_node.root / "bin/sh").symlink_to("/usr/bin/sh")
    reason = failure(private_node)
    assert "cannot set up the mount namespace for MPS" in reason
    assert "No such file or directory" in reason


def failure(node: Node) -> str:
    node.start_host("--namespaces", "own")
    folder = node.folders.of("d0")
    folder.make()
    folder.write_desired(devices(node, 0))
    until(lambda: (status := folder.read_status()) and status.state == "failed")
    status = folder.read_status()
    assert status is not None
    return status.reason


def fill(folder: Path, files: int) -> None:
    for number in range(files):
        (folder / str(number)).touch()


LIMITS = TmpfsBounds(size_bytes=2**20, files=64)


@contextmanager
def mounted(folder: Path, mounts: SystemMounts) -> Iterator[None]:
    folder.mkdir(parents=True)
    mounts.mount(folder, LIMITS)
    try:
        yield
    finally:
        mounts.unmount(folder)


def test_pipes_and_shared_memory_are_on_a_bounded_file_system_without_programs_and_devices(private_node: Node) -> None:
    started(private_node, "--tmpfs-size", "16Mi", "--tmpfs-files", "512")
    ((path, options),) = private_node.mounts().items()
    assert path == f"{private_node.base}/run/gpu.nvidia.com-mps/d0"
    assert {"nosuid", "nodev", "noexec", "size=16384k", "nr_inodes=512", "mode=711"} <= set(options.split(","))


def test_a_client_that_fills_its_folders_harms_no_other_daemons_clients(private_node: Node) -> None:
    """Neither with bytes nor with files; without bounds it would fill the node's memory or the kubelet's disk."""
    started(private_node, "--tmpfs-size", "16Mi", "--tmpfs-files", "256", daemons=2)
    greedy, modest = (private_node.client.directories(f"d{number}").shm for number in (0, 1))
    with pytest.raises(OSError, match=os.strerror(errno.ENOSPC)):
        (greedy / "large").write_bytes(bytes(20 * 2**20))
    (greedy / "folder").mkdir()
    with pytest.raises(OSError, match=os.strerror(errno.ENOSPC)):
        fill(greedy / "folder", 300)
    (modest / "small").write_bytes(bytes(2**20))


def test_a_host_that_starts_again_mounts_nothing_twice(private_node: Node) -> None:
    for _ in range(2):
        host = started(private_node)
        host.kill()
        host.wait(timeout=5)
    lines = Path("/proc/self/mounts").read_text().splitlines()
    assert len([line for line in lines if f" {private_node.base}/" in line]) == 1


def test_a_foreign_mount_in_place_of_a_daemons_folders_is_refused(private_node: Node) -> None:
    """It may hold anything, and removing the daemon would unmount it."""
    own = private_node.base / "run/gpu.nvidia.com-mps/d0"
    own.mkdir(parents=True)
    own.chmod(0o700)
    subprocess.run(["/usr/bin/mount", "-t", "tmpfs", "-o", "mode=700", "other", str(own)], check=True)
    reason = failure(private_node)
    assert f"{own} is a mount of other (tmpfs), which this driver did not make" in reason
    private_node.client.release("d0", (), within_s=10.0)
    assert (stat.S_IMODE(own.stat().st_mode), list(own.iterdir())) == (0o700, [])


def test_a_tree_is_not_removed_through_a_mount(private_node: Node) -> None:
    tree = private_node.base / "tree"
    with mounted(tree / "inner/mount", SystemMounts()):
        precious = tree / "inner/mount/precious"
        precious.touch()
        with pytest.raises(OSError, match=os.strerror(errno.EBUSY)):
            remove_tree(tree, within_s=1.0)
        assert precious.exists() or any(path.name == "precious" for path in tree.rglob("*"))


def test_a_label_that_the_kernel_does_not_know_is_left_out(
    private_node: Node, caplog: pytest.LogCaptureFixture
) -> None:
    """Without SELinux, or with a policy that has no such type, the folders work as before."""
    folder = private_node.base / "labelled"
    mounts = SystemMounts(label=lambda: "system_u:object_r:no_such_type_t:s0")
    with mounted(folder, mounts):
        assert mounts.at(folder) is not None
        assert stat.S_IMODE(folder.stat().st_mode) == 0o711
    assert "SELinux policy does not know" in caplog.text


@pytest.fixture
def shared_mount(private_node: Node) -> Iterator[None]:
    """The node's files on a shared mount, as systemd makes the host's /run."""
    base = str(private_node.base)
    subprocess.run(["/usr/bin/mount", "--bind", base, base], check=True)
    subprocess.run(["/usr/bin/mount", "--make-shared", base], check=True)
    yield
    private_node.close()
    for path in (*private_node.mounts(), base):
        subprocess.run(["/usr/bin/umount", path], check=True)


@pytest.mark.usefixtures("shared_mount")
def test_the_hosts_namespace_has_the_mounts_of_an_mps_host_in_a_container(private_node: Node) -> None:
    private_node.wrapper = ("/usr/bin/unshare", "--mount", "--propagation", "unchanged")
    path = f"{private_node.base}/run/gpu.nvidia.com-mps/d0"
    host = started(private_node)
    assert list(private_node.mounts()) == [path]
    marker = private_node.client.directories("d0").shm / "of-a-container"
    marker.touch()
    host.kill()
    host.wait(timeout=5)
    assert list(private_node.mounts()) == [path]
    started(private_node)
    assert marker.exists()
    assert "do not start" not in private_node.host_log()
    private_node.client.release("d0", (), within_s=10.0)
    until(lambda: not private_node.mounts())


@pytest.mark.usefixtures("shared_mount")
def test_a_volume_without_propagation_is_reported(private_node: Node) -> None:
    private_node.wrapper = ("/usr/bin/unshare", "--mount", "--propagation", "private")
    private_node.start_host("--namespaces", "own")
    until(lambda: "MPS host started" in private_node.host_log())
    assert "containers of MPS clients do not start" in private_node.host_log()
    assert "expected it in a volume of the MPS host with mountPropagation Bidirectional" in private_node.host_log()
