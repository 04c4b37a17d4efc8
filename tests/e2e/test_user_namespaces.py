"""Pods with ``hostUsers: false``, for which the runtime mounts the host's device nodes instead of making its own.

The node process is started with ``--host-dev /dev``, so that it keeps nodes of the simulated GPUs on this host. What it
made there is removed after each test.
"""

import json
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dra_driver.sim.apiserver.jsonvalue import dig, entries
from dra_driver.sim.demo.requirements import Requirements
from tests.e2e.cluster import RealCluster, wait
from tests.e2e.forms import LIST, Forms, share, slice_of, whole
from tests.e2e.gates import PARTITIONS, SHARES
from tests.e2e.host import Folders, Host
from tests.e2e.test_container_view import MPS_POLICY, words

DEV = Path("/dev")
NODES = "stat -c 'node %n %Hr:%Lr' /dev/nvidia* /dev/nvidia-caps/* | grep -v ' 0:0'"
# There is no kernel module behind the node of a simulated GPU: to be let in means ENXIO.
OPEN = "for node in /dev/nvidia* /dev/nvidia-caps/*; do [ -c $node ] && (: <$node) 2>&1 | sed 's/.*: /opened /'; done"
MAPPED = "sed 's/^ */uids /;s/ \\+/ /g' /proc/self/uid_map"
COMMAND = f"{LIST}; {MAPPED}; {NODES}; {OPEN}; echo done"
LET_IN = "No such device or address"


TWO_H100 = (("gpu-a", "2xh100-sxm5-80gb"),)
REQUIREMENTS = Requirements(nodes=TWO_H100)
PIPES = "/tmp/nvidia-mps"
SHARED = (
    f"cat {PIPES}/nvidia-cuda-mps-control.pid | sed 's/^/pid /'; touch {PIPES}/mine /dev/shm/mine && echo writable; "
    f"rm -f {PIPES}/nvidia-cuda-mps-control.pid || echo not removed; echo done"
)

shared_gpu = pytest.mark.parametrize(
    "requirements", [Requirements(nodes=TWO_H100, policies=(MPS_POLICY,))], ids=["shared"], indirect=True
)


@pytest.fixture
def user_namespaces(cluster: RealCluster, node: str | None) -> None:
    """Skips on a node whose runtime cannot run such pods (runc before 1.2, containerd before 2.0)."""
    (found,) = (one for one in cluster.nodes() if one["metadata"]["name"] == node)
    handlers = entries(found, "status", "runtimeHandlers")
    if not any(dig(one, "features", "userNamespaces") for one in handlers if one["name"] == ""):
        pytest.skip("the container runtime of this node has no user namespaces")


def nvidia_files() -> set[Path]:
    nodes = {*DEV.glob("nvidia*"), *DEV.glob("nvidia-caps/*")}
    links = {path for path in DEV.glob("char/*") if "/nvidia" in str(path.readlink())}
    return nodes | links


@pytest.fixture
def host_dev(own_host: Host, namespace: str) -> Iterator[Path]:
    if nvidia_files():
        pytest.skip("this host has device nodes of NVIDIA GPUs, which the test would change")
    had_links = (DEV / "char").is_dir()
    flags = own_host.process.flags
    own_host.process.end()
    flags["host_dev"] = str(DEV)
    try:
        own_host.restart()
        yield DEV
    finally:
        if own_host.process.lives:
            own_host.process.end()
        del flags["host_dev"]
        for path in sorted(nvidia_files(), key=lambda path: -len(path.parts)):
            path.rmdir() if path.is_dir() and not path.is_symlink() else path.unlink()
        if not had_links and (DEV / "char").is_dir():
            (DEV / "char").rmdir()
        own_host.restart()


@pytest.fixture
def forms(cluster: RealCluster, host_dev: Path, namespace: str) -> Iterator[Forms]:
    with Forms(cluster, namespace).cleared() as found:
        yield found


def cdi_nodes(folders: Folders) -> dict[str, str]:
    """Path -> major:minor of all device nodes in this driver's CDI files: every GPU container's, and claims'."""
    found: dict[str, str] = {}
    for path in folders.cdi.glob("k8s.gpu.nvidia.com-*.json"):
        document: dict[str, Any] = json.loads(path.read_text())
        edits = [document.get("containerEdits", {}), *(one["containerEdits"] for one in document["devices"])]
        for node in (node for edit in edits for node in edit.get("deviceNodes", ())):
            found[node["path"]] = f"{node['major']}:{node['minor']}"
    return found


@pytest.mark.needs(PARTITIONS)
@pytest.mark.usefixtures("user_namespaces")
def test_a_pod_in_a_user_namespace_opens_its_gpu_and_no_other(forms: Forms, node_folders: Folders) -> None:
    forms.create("whole", whole(), COMMAND, host_users=False)
    forms.create("part", slice_of("1g.10gb"), COMMAND, host_users=False)
    forms.wait_ready("whole", "part")
    for name in ("whole", "part"):
        forms.wait_line(name, "done")
        log = forms.log(name)
        forms.sees(name)
        (mapped,) = words(log, "uids")
        assert mapped.split()[:2] != ["0", "0"]
        seen = dict(line.split() for line in words(log, "node"))
        assert seen.items() <= cdi_nodes(node_folders).items()
        assert len([path for path in seen if path.removeprefix("/dev/nvidia").isdigit()]) == 1
        assert words(log, "opened") == [LET_IN] * len(seen)
        capabilities = [path for path in seen if path.startswith("/dev/nvidia-caps/")]
        assert len(capabilities) == (2 if name == "part" else 0)


@pytest.mark.needs(SHARES)
@shared_gpu
@pytest.mark.usefixtures("user_namespaces")
def test_a_share_in_a_user_namespace_has_the_daemons_folders_and_cannot_remove_its_files(
    own_host: Host, forms: Forms
) -> None:
    forms.run("share", share("10Gi", 20), f"{LIST}; {SHARED}", host_users=False)
    forms.wait_line("share", "done")
    assert len(own_host.hardware.daemons()) == 1
    log = forms.log("share").splitlines()
    assert {"writable", "not removed"} < set(log)
    assert len(words(forms.log("share"), "pid")) == 1


@pytest.mark.needs(PARTITIONS)
def test_the_nodes_of_a_prepared_claim_are_on_the_host_with_links_in_dev_char(
    forms: Forms, host_dev: Path, node_folders: Folders
) -> None:
    """With the numbers of the CDI files: GPU, control and capability nodes. systemd before 240 needs the links."""
    forms.run("part", slice_of("1g.10gb"))
    nodes = cdi_nodes(node_folders)
    assert {"/dev/nvidiactl", "/dev/nvidia-uvm"} < nodes.keys()
    assert sum(path.startswith("/dev/nvidia-caps/") for path in nodes) == 2
    for path, numbers in nodes.items():
        found = Path(path).lstat()
        assert stat.S_ISCHR(found.st_mode), path
        assert f"{os.major(found.st_rdev)}:{os.minor(found.st_rdev)}" == numbers
        assert (host_dev / "char" / numbers).resolve() == Path(path)


def test_a_node_that_was_deleted_on_the_host_comes_back_with_the_next_claim(
    forms: Forms, host_dev: Path, node_folders: Folders
) -> None:
    wait(lambda: None if (host_dev / "nvidiactl").exists() else "there is no /dev/nvidiactl", 15.0)
    (host_dev / "nvidiactl").unlink()
    forms.run("whole", whole(), COMMAND)
    assert (host_dev / "nvidiactl").is_char_device()
