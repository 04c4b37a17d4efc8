"""Pods on the GPUs of NVIDIA's mock of NVML: the code for real GPUs below a real kubelet and container runtime.

``NVIDIA_MOCK_ROOTS`` is as in ``tests/contract/node/process/test_nvidia_mock.py``. The board's driver root is copied,
so that the test can install another driver in it.
"""

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from dra_driver.hardware.gpu.simulated.root import PROC_DEVICES
from tests.e2e.cluster import (
    ASKED,
    NOTICED_S,
    RealCluster,
    containers,
    events,
    holds,
    marked,
    tainted,
    versions,
    wait,
    wait_given_up,
    wait_taken,
)
from tests.e2e.forms import Forms, whole
from tests.e2e.gates import TAINTS
from tests.e2e.host import REGISTERED, START_S, Folders, Host
from tests.fakes.node_process import NodeProcess

ROOTS, BOARD = "NVIDIA_MOCK_ROOTS", "h100"
LIBRARIES = "usr/lib/x86_64-linux-gnu"
OLD, NEW = "550.163.01", "590.44.01"
NAMES = tuple(f"pod-{number}" for number in range(7))
# The mock brings no nvidia-smi. stat prints the numbers of device nodes in the container.
LOOK = "stat -c '%n %Hr:%Lr' /dev/nvidia[0-9]; env | grep DRA_GPU; find / -xdev -name 'libnvidia-ml.so.*.*'; echo done"

pytestmark = pytest.mark.skipif(
    ROOTS not in os.environ, reason=f"${ROOTS} is not set; it names driver roots with the mock NVML of NVIDIA"
)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A driver root that the test may change; its device nodes are copied as such, which needs root."""
    source, copy = Path(os.environ[ROOTS], BOARD), tmp_path / BOARD
    shutil.copytree(source, copy, symlinks=True, ignore=shutil.ignore_patterns("dev"))
    (copy / "dev").mkdir()
    for node in (source / "dev").iterdir():
        found = node.stat()
        os.mknod(copy / "dev" / node.name, found.st_mode, found.st_rdev)
    return copy


@pytest.fixture
def mock(own_host: Host, root: Path, namespace: str, tmp_path: Path) -> Iterator[NodeProcess]:
    folder = tmp_path / "mock"
    folder.mkdir()
    flags = {name: value for name, value in own_host.process.flags.items() if name not in ("simulate", "policy_dir")}
    environ = {**own_host.process.environ, "MOCK_NVML_CONFIG": str(root / "usr/config/config.yaml")}
    devices = tmp_path / "proc-devices"
    devices.write_text(PROC_DEVICES)
    process = NodeProcess(
        folder,
        environ=environ,
        simulate=None,
        driver_root=str(root),
        proc_devices=str(devices),
        host_dev=str(root / "dev"),
        **flags,
    )
    own_host.process.end()
    own_host.forget_gpus()
    process.start()
    try:
        process.wait_for(lambda: REGISTERED in process.text, START_S)
        yield process
    finally:
        process.kill()
        own_host.forget_gpus()
        own_host.restart()


@pytest.fixture
def forms(cluster: RealCluster, mock: NodeProcess, namespace: str) -> Iterator[Forms]:
    with Forms(cluster, namespace).cleared() as found:
        wait(lambda: None if versions(cluster) == {published(OLD)} else f"{versions(cluster)}", START_S)
        yield found


def published(version: str) -> str:
    """Without leading zeros, which are no valid version."""
    return ".".join(str(int(part)) for part in version.split("."))


def install(root: Path, version: str) -> None:
    folder, config = root / LIBRARIES, root / "usr/config/config.yaml"
    (before,) = folder.glob("libnvidia-ml.so.*.*")
    shutil.copy2(before, folder / f"libnvidia-ml.so.{version}")
    before.unlink()
    link = folder / "libnvidia-ml.so.1"
    link.unlink()
    link.symlink_to(f"libnvidia-ml.so.{version}")
    config.write_text(config.read_text().replace(OLD, version))


@pytest.mark.needs(TAINTS)
def test_pods_run_on_while_another_driver_is_installed(
    mock: NodeProcess, forms: Forms, node: str, root: Path, node_folders: Folders
) -> None:
    cluster = forms.cluster
    for name in NAMES:
        forms.create(name, whole(), LOOK)
    forms.wait_ready(*NAMES)
    for name in NAMES:
        forms.wait_line(name, "done")
    logs = {name: forms.log(name) for name in NAMES}
    gpus = {log.splitlines()[0] for log in logs.values()}
    assert len(gpus) == len(NAMES)
    assert all(f"libnvidia-ml.so.{OLD}" in log for log in logs.values())
    before = {name: containers(forms.get(name)) for name in NAMES}
    past, all_published = events(cluster, node, "DriverDetached"), set(tainted(cluster))

    with marked(cluster, node, "annotations", ASKED, "upgrade"):
        wait_given_up(cluster, node, past)
        install(root, NEW)
        forms.create("next", whole(), LOOK)
        wait(lambda: None if forms.waits("next") else "it does not wait", NOTICED_S)
        holds(lambda: forms.waits("next"))
        assert set(tainted(cluster)) == all_published

    wait_taken(cluster, published(NEW))
    forms.wait_ready("next")
    forms.wait_line("next", "done")
    assert f"libnvidia-ml.so.{NEW}" in forms.log("next")
    assert forms.log("next").splitlines()[0] not in gpus
    assert {name: containers(forms.get(name)) for name in NAMES} == before
    assert {name: forms.log(name) for name in NAMES} == logs
    assert mock.lives
    assert len(node_folders.claims_in_journal()) == len(NAMES) + 1
