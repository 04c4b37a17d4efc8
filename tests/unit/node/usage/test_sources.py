"""Pod and container of a process, from cgroups and the log links of the kubelet; reading ``assignments.json``."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dra_driver.core.errors import ConfigurationError
from dra_driver.core.model.usage_findings import UsingPod
from dra_driver.core.model.usage_rules import DEFAULT_USAGE, IdleAction, OverGrantAction, UsageRules
from dra_driver.node.usage.assignments import MAX_BYTES, decode
from dra_driver.node.usage.sources import CgroupPlace, index, place_of
from dra_driver.node.usage.values import ContainerRef
from tests.fakes.stand_in import present

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
    """The same with the line of cgroup v2 as with those of v1.

    CRI-O's names are by its source alone (internal/config/cgmgr, 006205f3 and 09a0030e): systemd_linux.go:100, in
    ContainerCgroupAbsolutePath; cgroupfs_linux.go, ContainerCgroupPath, with containerCgroupPath of cgmgr_linux.go; the
    child that crun makes: crunContainerCgroupManager; its own process: MoveConmonToCgroup of both. cri-dockerd's is by
    Docker's (daemon/oci_linux.go, WithCgroups). The slices of pods are by Kubernetes 1.36 (pkg/kubelet/cm/
    cgroup_manager_linux.go:83). containerd's were recorded, see below.
    """
    assert place_of(f"0::{path}\n") == HERE
    assert place_of(V1.format(path)) == HERE


RECORDED_UID = "cc514678-8296-4f46-b16e-4fd86ace322a"
RECORDED_ID = "46d29d51c64235af10b057bd87cc5a9adf5477ec0f227267a076438254b5712b"
RECORDED = CgroupPlace(pod_uid=RECORDED_UID, container_id=RECORDED_ID)
RECORDED_SLICE = f"kubepods-burstable-pod{RECORDED_UID.replace('-', '_')}.slice"
SCOPE = f"cri-containerd-{RECORDED_ID}.scope"
UNUSED_V1 = "9:name=systemd:/\n8:pids:/\n4:memory:/\n1:cpu:/\n"


@pytest.mark.parametrize(
    "path",
    [
        # the kubelet's driver systemd: read by a process of the host, in a besteffort pod, in a burstable pod
        f"/kubepods.slice/kubepods-burstable.slice/{RECORDED_SLICE}/{SCOPE}",
        f"/../../../kubepods-burstable.slice/{RECORDED_SLICE}/{SCOPE}",
        f"/../../{RECORDED_SLICE}/{SCOPE}",
        # its driver cgroupfs, read by the same
        f"/kubepods/burstable/pod{RECORDED_UID}/{RECORDED_ID}",
        f"/../../../burstable/pod{RECORDED_UID}/{RECORDED_ID}",
        f"/../../pod{RECORDED_UID}/{RECORDED_ID}",
    ],
)
def test_as_kubernetes_and_containerd_made_them_with_cgroup_v2(path: str) -> None:
    """Recorded with Kubernetes 1.36.2, containerd 2.1.9, runc 1.5.0-rc.1 and systemd 252; here with the ids of one pod.
    With v2 containerd gives each container a cgroup namespace of its own."""
    assert place_of(f"{UNUSED_V1}0::{path}\n") == RECORDED


def test_in_a_cgroup_namespace_the_host_and_the_reader_itself_are_no_containers() -> None:
    """Recorded as above: a process of the host, and the reader; another container of its own pod has lost its pod."""
    assert place_of("0::/../../../../..\n") is None
    assert place_of("0::/\n") is None
    for name in (RECORDED_ID, SCOPE):
        assert place_of(f"0::/../{name}\n") == CgroupPlace(container_id=RECORDED_ID)


@pytest.mark.parametrize(
    "path",
    [
        "/", "", "/system.slice/sshd.service", "/user.slice/user-1000.slice/session-1.scope", f"/docker/{ID}",
        f"/machine.slice/libpod-{ID}.scope", f"/system.slice/docker-{ID}.scope", "/../../system.slice/kubelet.service",
        f"/system.slice/crio-conmon-{ID}.scope", "/kubepods.slice", "/podlike/thing",
    ],
)  # fmt: skip
def test_processes_of_the_host(path: str) -> None:
    assert place_of(f"0::{path}\n") is None


@pytest.mark.parametrize(
    "below", ["", "/sandbox-7", f"/crio-conmon-{ID}.scope", f"/conmon-{ID}.scope", f"/{ID[:40]}", "/x.scope"]
)
def test_the_pod_is_known_where_the_container_is_not(below: str) -> None:
    """Of an unknown runtime, and of CRI-O's process beside a container."""
    assert place_of(f"0::/kubepods.slice/kubepods-pod{SLICE}.slice{below}\n") == POD


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
    place_of(content)


SIDECAR = "cd" * 32
LLM = UsingPod(namespace="team-a", name="llm-0", uid=UID)


def link(container: str = "train", container_id: str = OTHER, pod: str = "llm-0", uid: str = UID) -> tuple[str, str]:
    name = f"{pod}_team-a_{container}-{container_id}"[:251]
    return f"{name}.log", f"/var/log/pods/team-a_{pod}_{uid}/{container}/3.log"


def test_a_container_by_its_id() -> None:
    found = index([link(), link("sidecar", SIDECAR)])
    train = ContainerRef(pod=LLM, container="train")
    assert found.container(CgroupPlace(pod_uid=UID, container_id=OTHER)) == train
    assert found.container(CgroupPlace(container_id=OTHER)) == train
    assert found.container(CgroupPlace(container_id="ef" * 32)) is None


def test_a_pod_whose_container_is_not_known() -> None:
    """An unknown runtime, or a link that is not there yet: the only container of the pod, else the pod alone."""
    alone, two = index([link()]), index([link(), link("sidecar", SIDECAR)])
    assert alone.container(CgroupPlace(pod_uid=UID)) == ContainerRef(pod=LLM, container="train")
    assert two.container(CgroupPlace(pod_uid=UID, container_id="ef" * 32)) == ContainerRef(pod=LLM, container="")
    assert two.container(CgroupPlace(pod_uid=UID[::-1])) is None


def test_an_id_that_belongs_to_another_pod_is_not_believed() -> None:
    other = "00000000-0000-0000-0000-000000000000"
    found = index([link(), link("c", SIDECAR, "b", other)])
    place = found.container(CgroupPlace(pod_uid=UID, container_id=SIDECAR))
    assert place == ContainerRef(pod=LLM, container="train")


def test_a_long_name_has_lost_its_id() -> None:
    """The kubelet cuts it at 255 characters; the pod's UID finds it."""
    found = index([link(pod="p" * 200)])
    assert found.by_id == {}
    place = present(found.container(CgroupPlace(pod_uid=UID, container_id=OTHER)))
    assert (place.pod.name, place.container) == ("p" * 200, "train")


def test_other_files_of_the_folder_are_left_out() -> None:
    odd = [("x.log", "/var/log/x"), ("", ""), ("a_b_c-1.log", "a_b/c"), ("t.log", "../pods/team-a_x_notauid/c/0.log")]
    assert index(odd).by_uid == {}


DEVICE: dict[str, Any] = {
    "request": "gpu", "pool": "n/gpu.nvidia.com", "device": "gpu-0", "form": "share", "gpu": "GPU-a", "giId": None,
    "uuid": "GPU-a", "profile": None, "shareId": "s1", "memoryBytes": 2**30, "percent": 20, "adminAccess": False,
}  # fmt: skip
CLAIM: dict[str, Any] = {
    "uid": "u1", "namespace": "team", "name": "llm", "prepared": "2026-07-01T12:00:00Z", "labels": {"team": "a"},
    "devices": [DEVICE],
}  # fmt: skip
DOCUMENT: dict[str, Any] = {
    "version": 1, "node": "n", "driver": "gpu.nvidia.com", "processStarted": "2026-07-01T11:00:00Z", "detached": None,
    "gpus": [{"device": "gpu-0", "gpu": "GPU-a", "changing": False}], "claims": [CLAIM],
}  # fmt: skip


def read(**changes: Any) -> Any:
    return decode(json.dumps(DOCUMENT | changes).encode())


def test_rules_of_a_gpu() -> None:
    usage = {"onOverGrant": "Evict", "graceSeconds": 5, "overheadBytesPerProcess": 7, "idleAfterMinutes": 3}
    (gpu,) = read(gpus=[DOCUMENT["gpus"][0] | {"changing": True, "usage": usage | {"onIdle": "Reclaim"}}]).gpus
    assert gpu.changing
    assert gpu.rules == UsageRules(
        over_grant=OverGrantAction.EVICT, grace_s=5, overhead_bytes=7, idle_after_min=3, idle=IdleAction.RECLAIM
    )
    (gpu,) = read(gpus=[DOCUMENT["gpus"][0] | {"usage": {"graceSeconds": -1, "onOverGrant": 5}}]).gpus
    assert gpu.rules == DEFAULT_USAGE


def test_a_detached_driver_is_left_alone_whatever_the_reason() -> None:
    assert read(detached="upgrade").detached == "upgrade"
    assert read(detached=7).detached


@pytest.mark.parametrize(
    "content",
    [b"", b"[]", b"{", b'{"version": 2}', b"[" * 100_000, b" " * (MAX_BYTES + 1), b'{"version": 1, "node": "n"}'],
)
def test_a_damaged_file_is_an_error(content: bytes) -> None:
    with pytest.raises(ConfigurationError):
        decode(content)


@pytest.mark.parametrize("wrong", [{"uid": 5}, {"namespace": ""}, {"name": "a\nb"}, {"name": "x" * 300}, {"uid": None}])
def test_a_claim_without_a_name_is_left_out(wrong: dict[str, Any]) -> None:
    assert [claim.ref.uid for claim in read(claims=[CLAIM | wrong, CLAIM, "x", None]).claims] == ["u1"]


def test_values_that_make_no_sense_are_not_known() -> None:
    wrong = {"giId": -1, "memoryBytes": 2**70, "percent": 101, "adminAccess": "yes"}
    (claim,) = read(claims=[CLAIM | {"devices": [DEVICE | wrong, DEVICE | {"form": "slice"}], "prepared": 5}]).claims
    (device,) = claim.devices
    assert (device.gi_id, device.memory_bytes, device.percent, device.admin_access) == (None, None, None, False)
