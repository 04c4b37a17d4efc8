"""Pod and container of a process by the names that kubelets and runtimes give to cgroups."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dra_driver.usage.cgroups import CgroupPlace, place_of

UID = "fd698699-eabf-4c23-92ef-cf0bbdb78261"
SLICE = UID.replace("-", "_")
ID = "2cc65c162ca1388b6b8d5ccfb701d22fc96675ccf8b2f1590c490c2c4039547f"
OTHER = "ab" * 32
HERE = CgroupPlace(pod_uid=UID, container_id=ID)
POD = CgroupPlace(pod_uid=UID)
V1 = "12:pids:{0}\n11:memory:{0}\n10:cpu,cpuacct:{0}\n1:name=systemd:{0}\n0::/system.slice/containerd.service\n"


@pytest.mark.parametrize(
    "path",
    [
        f"/kubepods/burstable/pod{UID}/{ID}",  # containerd, cgroupfs
        f"/kubepods/pod{UID}/{ID}",  # of a pod with requests equal to limits
        f"/kubepods/besteffort/pod{UID}/crio-{ID}",  # CRI-O, cgroupfs
        f"/kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-pod{SLICE}.slice/cri-containerd-{ID}.scope",
        f"/kubepods.slice/kubepods-pod{SLICE}.slice/crio-{ID}.scope",
        f"/kubepods.slice/kubepods-pod{SLICE}.slice/crio-{ID}.scope/container",  # crun
        f"/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{SLICE}.slice/docker-{ID}.scope",
        # kind, and a kubelet with --cgroup-root
        f"/kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-pod{SLICE}.slice/cri-containerd-{ID}.scope",
        # a container that runs systemd
        f"/kubepods.slice/kubepods-pod{SLICE}.slice/cri-containerd-{ID}.scope/init.scope",
        # containerd without SystemdCgroup under a kubelet with the driver systemd
        f"/system.slice/containerd.service/kubepods-burstable-pod{SLICE}.slice:cri-containerd:{ID}",
        f"/../../kubepods-besteffort-pod{SLICE}.slice/cri-containerd-{ID}.scope",  # read in a cgroup namespace
        f"/../../../burstable/pod{UID}/{ID}",
    ],
)
def test_runtimes_and_cgroup_drivers(path: str) -> None:
    """The same with the line of cgroup v2 as with those of v1."""
    assert place_of(f"0::{path}\n") == HERE
    assert place_of(V1.format(path)) == HERE


@pytest.mark.parametrize(
    "path",
    [
        "/", "", "/system.slice/sshd.service", "/user.slice/user-1000.slice/session-1.scope", f"/docker/{ID}",
        f"/machine.slice/libpod-{ID}.scope", f"/system.slice/docker-{ID}.scope", "/../../system.slice/kubelet.service",
        f"/system.slice/crio-conmon-{ID}.scope", "/kubepods.slice", "/podlike/thing",
    ],
)  # fmt: skip
def test_processes_of_the_host(path: str) -> None:
    """Services, users, and containers that the kubelet did not start."""
    assert place_of(f"0::{path}\n") is None


@pytest.mark.parametrize(
    "below", ["", "/sandbox-7", f"/crio-conmon-{ID}.scope", f"/conmon-{ID}.scope", f"/{ID[:40]}", "/x.scope"]
)
def test_the_pod_is_known_where_the_container_is_not(below: str) -> None:
    """Of an unknown runtime, and of CRI-O's process beside a container."""
    assert place_of(f"0::/kubepods.slice/kubepods-pod{SLICE}.slice{below}\n") == POD


def test_a_container_without_its_pod() -> None:
    """A container beside the reader's own, seen from the reader's cgroup namespace."""
    assert place_of(f"0::/../cri-containerd-{ID}.scope\n") == CgroupPlace(container_id=ID)
    assert place_of(f"0::/../{ID}/deeper\n") == CgroupPlace(container_id=ID)


def test_a_container_cannot_name_itself_another() -> None:
    """What it makes below its own cgroup does not count; hierarchies that contradict each other are not believed."""
    hostile = f"/kubepods/pod{UID}/{ID}/kubepods/pod{UID[::-1]}/{OTHER}"
    assert place_of(f"0::{hostile}\n") == HERE
    assert place_of(f"2:pids:/kubepods/pod{UID}/{ID}\n1:cpu:/kubepods/pod{UID}/{OTHER}\n") is None
    static = "0123456789abcdef" * 2
    assert place_of(f"2:pids:/kubepods/pod{UID}/{ID}\n1:cpu:/kubepods/pod{static}/{ID}\n") is None


def test_a_static_pod() -> None:
    """Its UID is a hash without dashes."""
    static = "0123456789abcdef" * 2
    assert place_of(f"0::/kubepods/pod{static}/{ID}\n") == CgroupPlace(pod_uid=static, container_id=ID)


@given(st.text())
def test_any_text(content: str) -> None:
    """No content ends the look."""
    place_of(content)
