"""Daemons in mount namespaces of their own: the real system calls. Skipped where the kernel does not allow them."""

from pathlib import Path

from dra_driver.sharing.mps import MpsDaemon
from tests.contract.sharing.conftest import Node, copy_program, until

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


def test_each_daemon_sees_its_own_folders_under_short_names(private_node: Node) -> None:
    private_node.control_script(NOSY)
    private_node.start_host("--namespaces", "own")
    for number in (0, 1):
        private_node.client.ensure(devices(private_node, number), within_s=10.0)
    for number in (0, 1):
        folder = private_node.folders.of(f"d{number}")
        shm = private_node.client.directories(f"d{number}").shm
        assert (folder.pipe / "seen").read_text() == "/tmp/nvidia-mps /tmp/nvidia-log\n"
        assert (folder.log / "control.log").read_text() == "logged\n"
        assert shm == private_node.base / f"shm/gpu.nvidia.com-mps/d{number}"
        assert (shm / "devices").read_text() == f"{private_node.gpus[number]}\n"
        assert shm.stat().st_mode & 0o7777 == 0o1777
    assert not Path("/dev/shm/devices").exists()
    assert not Path("/tmp/nvidia-mps/seen").exists()


def test_a_link_that_a_container_laid_in_a_daemons_folders_leads_nowhere(private_node: Node) -> None:
    """Daemons are root and write into folders that containers have mounted: with the container's links, anywhere."""
    precious = private_node.base / "precious"
    precious.write_text("as it was")
    private_node.control_script(NOSY.replace("echo > up", "echo 1 > control.pid; echo 2 > /dev/shm/state; echo > up"))
    private_node.start_host("--namespaces", "own")
    folder, shm = private_node.folders.of("d0"), private_node.base / "shm/gpu.nvidia.com-mps/d0"
    folder.make()
    shm.mkdir(parents=True)
    for link in (folder.pipe / "control.pid", shm / "state"):
        link.symlink_to(precious)
    private_node.client.ensure(devices(private_node, 0), within_s=10.0)
    assert (folder.pipe / "seen").exists()
    assert precious.read_text() == "as it was"


def test_shared_memory_goes_with_its_daemon(private_node: Node) -> None:
    private_node.start_host("--namespaces", "own")
    private_node.client.ensure(devices(private_node, 0), within_s=10.0)
    shm = private_node.client.directories("d0").shm
    (shm / "left-by-a-client").write_text("")
    private_node.client.release("d0", (), within_s=10.0)
    until(lambda: not shm.exists())
    private_node.hosts[0].terminate()
    assert private_node.hosts[0].wait(timeout=10) == 0
    assert not shm.parent.exists()
    assert not [line for line in Path("/proc/mounts").read_text().splitlines() if str(private_node.base) in line]


def test_shared_memory_of_a_former_host_is_removed(private_node: Node) -> None:
    host = private_node.start_host("--namespaces", "own")
    private_node.client.ensure(devices(private_node, 0), within_s=10.0)
    shm = private_node.client.directories("d0").shm
    host.kill()
    host.wait(timeout=5)
    private_node.client.release("d0", (), within_s=10.0)
    assert shm.exists()
    private_node.start_host("--namespaces", "own")
    until(lambda: not shm.exists())


def test_shared_memory_of_running_containers_outlives_the_host(private_node: Node) -> None:
    """They have the folder mounted: another one of the same name would be another one to them."""
    host = private_node.start_host("--namespaces", "own")
    private_node.client.ensure(devices(private_node, 0), within_s=10.0)
    shm = private_node.client.directories("d0").shm
    (shm / "of-a-container").write_text("")
    before = shm.stat().st_ino
    host.terminate()
    assert host.wait(timeout=10) == 0
    private_node.start_host("--namespaces", "own")
    private_node.client.ensure(devices(private_node, 0), within_s=10.0)
    other = MpsDaemon(id="d0", devices=(private_node.gpus[0],), gpus=(private_node.gpus[0],), default_percentage=10)
    private_node.client.ensure(other, within_s=10.0)
    assert (shm / "of-a-container").exists()
    assert shm.stat().st_ino == before


def test_a_root_that_is_a_system_becomes_the_daemons_root(private_node: Node) -> None:
    """The driver's programs then run with the libraries that they were installed with."""
    for name in ("sh", "sleep"):
        copy_program(name, private_node.root)
    if not (private_node.root / "bin").exists():
        (private_node.root / "bin").symlink_to("usr/bin")
    if not (private_node.root / "bin/sh").exists():
        (private_node.root / "bin/sh").symlink_to("/usr/bin/sh")
    for folder in ("tmp", "dev/shm"):
        (private_node.root / folder).mkdir(parents=True)
    private_node.control_script(NOSY)
    private_node.start_host("--namespaces", "own")
    private_node.client.ensure(devices(private_node, 0), within_s=10.0)
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
    private_node.start_host("--namespaces", "own")
    folder = private_node.folders.of("d0")
    folder.make()
    folder.write_desired(devices(private_node, 0))
    until(lambda: (status := folder.read_status()) and status.state == "failed")
    status = folder.read_status()
    assert status is not None
    assert "cannot set up the mount namespace for MPS" in status.reason
    assert "No such file or directory" in status.reason
