"""The kubelet's links to logs join a container's id with names."""

from dra_driver.core.model.usage_findings import UsingPod
from dra_driver.node.usage.containers import CgroupPlace, index
from dra_driver.node.usage.values import ContainerRef
from tests.fakes.stand_in import present

UID = "fd698699-eabf-4c23-92ef-cf0bbdb78261"
ID, SIDECAR = "ab" * 32, "cd" * 32
POD = UsingPod(namespace="team-a", name="llm-0", uid=UID)


def link(container: str = "train", container_id: str = ID, pod: str = "llm-0", uid: str = UID) -> tuple[str, str]:
    name = f"{pod}_team-a_{container}-{container_id}"[:251]
    return f"{name}.log", f"/var/log/pods/team-a_{pod}_{uid}/{container}/3.log"


def test_a_container_by_its_id() -> None:
    """With the names of pod, namespace and container; with or without the pod's UID in the cgroup."""
    found = index([link(), link("sidecar", SIDECAR)])
    train = ContainerRef(pod=POD, container="train")
    assert found.container(CgroupPlace(pod_uid=UID, container_id=ID)) == train
    assert found.container(CgroupPlace(container_id=ID)) == train
    assert found.container(CgroupPlace(container_id="ef" * 32)) is None


def test_a_pod_whose_container_is_not_known() -> None:
    """An unknown runtime, or a link that is not there yet: the only container of the pod, else the pod alone."""
    alone, two = index([link()]), index([link(), link("sidecar", SIDECAR)])
    assert alone.container(CgroupPlace(pod_uid=UID)) == ContainerRef(pod=POD, container="train")
    assert two.container(CgroupPlace(pod_uid=UID, container_id="ef" * 32)) == ContainerRef(pod=POD, container="")
    assert two.container(CgroupPlace(pod_uid=UID[::-1])) is None


def test_an_id_that_belongs_to_another_pod_is_not_believed() -> None:
    """The cgroup's pod counts."""
    other = "00000000-0000-0000-0000-000000000000"
    found = index([link(), link("c", SIDECAR, "b", other)])
    place = found.container(CgroupPlace(pod_uid=UID, container_id=SIDECAR))
    assert place == ContainerRef(pod=POD, container="train")


def test_a_long_name_has_lost_its_id() -> None:
    """The kubelet cuts it at 255 characters; the pod's UID finds it."""
    found = index([link(pod="p" * 200)])
    assert found.by_id == {}
    place = present(found.container(CgroupPlace(pod_uid=UID, container_id=ID)))
    assert (place.pod.name, place.container) == ("p" * 200, "train")


def test_other_files_of_the_folder_are_left_out() -> None:
    odd = [("x.log", "/var/log/x"), ("", ""), ("a_b_c-1.log", "a_b/c"), ("t.log", "../pods/team-a_x_notauid/c/0.log")]
    assert index(odd).by_uid == {}
