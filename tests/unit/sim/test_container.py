"""What a container sees, from the CDI documents on disk."""

import json
import time
from pathlib import Path
from typing import Any

import pytest

from dra_driver.core.errors import RetryableError
from dra_driver.node.exporter.sources import LogLinks, ProcReader, claims_of
from dra_driver.node.usage.sources import LogIndex
from dra_driver.sim.apiserver.jsonvalue import Obj
from dra_driver.sim.node.container import (
    ContainerView,
    MadeProcesses,
    cdi_names,
    container_id,
    extended_cdi_names,
    inject,
)
from dra_driver.sim.node.kubelet_state import DeviceResponse, KubeletState, NodeClaim
from dra_driver.sim.node.pod_resources import answer_of

KIND = "k8s.gpu.example.com/claim"


def node(path: str, **more: Any) -> dict[str, Any]:
    return {"path": path, "type": "c", "major": 195, "minor": 0, **more}


def write(
    folder: Path, name: str, devices: dict[str, Any], edits: dict[str, Any] | None = None, kind: str = KIND
) -> None:
    listed = [{"name": device, "containerEdits": each} for device, each in devices.items()]
    document = {"cdiVersion": "0.5.0", "kind": kind, "devices": listed, "containerEdits": edits or {}}
    folder.mkdir(exist_ok=True)
    (folder / name).write_text(json.dumps(document))


def smi(folder: Path, body: str) -> dict[str, Any]:
    script = folder / "host-smi"
    script.write_text(f"#!/bin/sh\n{body}\n")
    script.chmod(0o755)
    return {"hostPath": str(script), "containerPath": "/usr/bin/nvidia-smi", "options": ["ro"]}


def test_common_edits_of_a_document_apply_once_and_first(tmp_path: Path) -> None:
    devices = {"a": {"env": ["WHO=a"], "deviceNodes": [node("/dev/n0")]}, "b": {"deviceNodes": [node("/dev/n1")]}}
    write(tmp_path, "x.json", devices, {"env": ["WHO=all", "ALL=1"]})
    edits = inject([tmp_path], [f"{KIND}=a", f"{KIND}=b", f"{KIND}=a"])
    assert edits.env == {"WHO": "a", "ALL": "1"}
    assert list(edits.device_nodes) == ["/dev/n0", "/dev/n1"]


def test_unresolvable_devices_have_containerds_message(tmp_path: Path) -> None:
    write(tmp_path, "x.json", {"a": {}})
    said = f"CDI device injection failed: unresolvable CDI devices {KIND}=b, other/c=d$"
    with pytest.raises(RetryableError, match=said):
        inject([tmp_path], [f"{KIND}=a", f"{KIND}=b", "other/c=d"])


def test_a_conflict_makes_a_device_unresolvable_and_no_other(tmp_path: Path) -> None:
    write(tmp_path, "x.json", {"a": {}, "b": {"env": ["B=x"]}})
    write(tmp_path, "y.json", {"a": {}, "c": {}})
    (tmp_path / "broken.json").write_text("{")
    assert inject([tmp_path], [f"{KIND}=b", f"{KIND}=c"]).env == {"B": "x"}
    with pytest.raises(RetryableError, match="unresolvable"):
        inject([tmp_path], [f"{KIND}=a"])


def test_later_directories_win(tmp_path: Path) -> None:
    """A document in /var/run/cdi replaces one in /etc/cdi."""
    write(tmp_path / "etc", "x.json", {"a": {"env": ["FROM=etc"]}})
    write(tmp_path / "run", "x.json", {"a": {"env": ["FROM=run"]}})
    assert inject([tmp_path / "etc", tmp_path / "run"], [f"{KIND}=a"]).env == {"FROM": "run"}


def test_mounts_are_sorted_by_depth(tmp_path: Path) -> None:
    mounts = [{"hostPath": "/h", "containerPath": path} for path in ("/a/b/c", "/a", "/a/b")]
    write(tmp_path, "x.json", {"a": {"mounts": mounts}})
    edits = inject([tmp_path], [f"{KIND}=a"])
    assert [mount["containerPath"] for mount in edits.sorted_mounts] == ["/a", "/a/b", "/a/b/c"]


def test_the_view_holds_devices_mounts_and_environment(tmp_path: Path) -> None:
    """The check runs in the view with CDI's environment winning over the pod's; its output is the log."""
    script = smi(tmp_path, 'ls "$DRA_SIM_SYSROOT/dev"; echo "$1 $MODE $OWN"')
    edits = {"deviceNodes": [node("/dev/nvidia0")], "mounts": [script], "env": ["MODE=cdi"]}
    write(tmp_path / "cdi", "x.json", {"a": edits})
    view = ContainerView(tmp_path / "view")
    container = {"name": "m", "env": [{"name": "MODE", "value": "pod"}, {"name": "OWN", "value": "1"}]}
    view.create(container, [f"{KIND}=a"], [tmp_path / "cdi"])
    assert view.exists
    result = view.check()
    assert (result.exit_code, result.output) == (0, "nvidia0\n-L cdi 1\n")
    assert (view.rootfs / "dev/nvidia0").is_file()
    view.remove()
    assert not (tmp_path / "view").exists()
    assert Path(script["hostPath"]).exists()


def test_the_log_ends_with_cuda_variables(tmp_path: Path) -> None:
    """MPS limits and visible devices by name, from CDI and from the pod; no other variables of the pod."""
    env = ["CUDA_MPS_PIPE_DIRECTORY=/tmp/nvidia-mps", "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=30", "OTHER=1"]
    write(tmp_path / "cdi", "x.json", {"a": {"mounts": [smi(tmp_path, "echo GPU 0")], "env": env}})
    view = ContainerView(tmp_path / "view")
    own = [{"name": "CUDA_VISIBLE_DEVICES", "value": "0"}, {"name": "MY_CUDA_X", "value": "1"}]
    view.create({"name": "m", "env": own}, [f"{KIND}=a"], [tmp_path / "cdi"])
    assert view.check().output.splitlines() == [
        "GPU 0",
        "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=30",
        "CUDA_MPS_PIPE_DIRECTORY=/tmp/nvidia-mps",
        "CUDA_VISIBLE_DEVICES=0",
    ]


@pytest.mark.parametrize(
    ("edits", "said"),
    [
        ({"mounts": [{"hostPath": "/nope/x", "containerPath": "/x"}]}, 'error mounting "/nope/x" to rootfs at "/x"'),
        ({"deviceNodes": [{"path": "/dev/nope-x"}]}, 'failed to stat CDI host device "/dev/nope-x"'),
        ({"deviceNodes": [node("/dev/../../../out")]}, "is not absolute and plain"),
        ({"deviceNodes": [node("dev/x")]}, "is not absolute and plain"),
        # A real runtime would hide the device; the simulated one refuses the mount.
        (
            {"mounts": [{"hostPath": "HOST", "containerPath": "/dev/shm"}], "deviceNodes": [node("/dev/shm/x")]},
            "has a device or another mount in it already",
        ),
        # A mounted directory is the host's: a device below it would be written to the host.
        (
            {"mounts": [{"hostPath": "HOST", "containerPath": path} for path in ("/data", "/data/inner")]},
            'lies in the mounted folder "/data"',
        ),
    ],
    ids=["mount-source", "host-device", "leads-out", "relative", "over-files", "through-mount"],
)
def test_what_a_runtime_would_refuse_is_refused(tmp_path: Path, edits: dict[str, Any], said: str) -> None:
    host = tmp_path / "host"
    host.mkdir()
    mounts = [mount | {"hostPath": mount["hostPath"].replace("HOST", str(host))} for mount in edits.get("mounts", ())]
    write(tmp_path / "cdi", "x.json", {"a": edits | {"mounts": mounts}})
    with pytest.raises(RetryableError, match=said):
        ContainerView(tmp_path / "view").create({"name": "m"}, [f"{KIND}=a"], [tmp_path / "cdi"])
    assert not list(host.iterdir())


def _device(name: str, *requests: str) -> DeviceResponse:
    return DeviceResponse(driver="d", requests=requests, pool="p", device=name, cdi_ids=(f"id-{name}",))


@pytest.mark.parametrize(
    ("references", "expected"),
    [
        ([{"name": "c"}], ["id-x", "id-y", "id-any"]),
        ([{"name": "c", "request": "one"}], ["id-x", "id-any"]),
        ([{"name": "c", "request": "one"}, {"name": "c", "request": "two"}], ["id-x", "id-any", "id-y", "id-any"]),
        ([{"name": "c", "request": "none"}], ["id-any"]),
        ([{"name": "other"}], []),
        ([], []),
    ],
)
def test_containers_get_the_devices_of_the_requests_they_name(references: list[Any], expected: list[str]) -> None:
    devices = {"c": (_device("x", "one"), _device("y", "two"), _device("any"))}
    assert cdi_names({"name": "m", "resources": {"claims": references}}, devices) == expected


STATUS = {
    "resourceClaimName": "p-extended-resources-x",
    "requestMappings": [
        {"containerName": "m", "resourceName": "nvidia.com/gpu", "requestName": "container-0-request-0"},
        {"containerName": "n", "resourceName": "nvidia.com/gpu", "requestName": "container-1-request-0"},
        {"containerName": "n", "resourceName": "nvidia.com/mig-1g.10gb", "requestName": "container-1-request-1"},
    ],
}


@pytest.mark.parametrize(
    ("name", "asked", "expected"),
    [
        ("m", ["nvidia.com/gpu"], ["id-x"]),
        ("n", ["nvidia.com/gpu", "nvidia.com/mig-1g.10gb"], ["id-y", "id-z"]),
        ("n", ["nvidia.com/mig-1g.10gb"], ["id-z"]),
        ("o", ["nvidia.com/gpu"], []),
        ("m", [], []),
    ],
)
def test_extended_resources_follow_the_pods_mappings(name: str, asked: list[str], expected: list[str]) -> None:
    devices = (
        _device("x", "container-0-request-0"),
        _device("y", "container-1-request-0"),
        _device("z", "container-1-request-1"),
    )
    container = {"name": name, "resources": {"requests": dict.fromkeys(asked, "1")}}
    assert extended_cdi_names(container, STATUS, devices) == expected


UID = "6b1c0e1e-0000-4000-8000-00000000000a"
DRIVER = "gpu.nvidia.com"


def pod(phase: str = "Running", *containers: Obj) -> Obj:
    return {
        "metadata": {"name": "train", "namespace": "team", "uid": UID},
        "spec": {"containers": list(containers), "resourceClaims": [{"name": "gpu", "resourceClaimName": "c"}]},
        "status": {"phase": phase},
    }


def test_a_process_leads_to_its_container_until_it_ends(tmp_path: Path) -> None:
    """By its cgroup and the link to its log, as on a real node; its environment names the claims."""
    made = MadeProcesses(tmp_path / "proc", tmp_path / "logs")
    pid, other = (made.begin(pod(), name, {"A": "1", "B": "x=y"}) for name in ("main", "side"))
    again = MadeProcesses(tmp_path / "proc", tmp_path / "logs")
    assert made.begin(pod(), "main", {}) > other > pid
    now_s = time.clock_gettime(time.CLOCK_BOOTTIME) + 1
    found = ProcReader(str(tmp_path / "proc")).read([pid, other], now_s)
    assert isinstance(found, dict)
    assert list(found) == [other]
    assert found[other].command == "side"
    assert found[other].place.container_id == container_id(UID, "side")
    assert (tmp_path / "proc" / str(other) / "environ").read_bytes() == b"A=1\0B=x=y\0"
    assert isinstance(LogLinks(str(tmp_path / "logs")).read(), LogIndex)
    assert len(list((tmp_path / "logs").iterdir())) == 2
    for name in ("main", "side", "side"):
        again.end(UID, name)
    assert [each.name for each in (tmp_path / "proc").iterdir()] == ["1"]
    assert not list((tmp_path / "logs").iterdir())


def test_the_kubelet_tells_the_devices_of_running_containers(tmp_path: Path) -> None:
    state = KubeletState(tmp_path / "state")
    state.add_user(NodeClaim(namespace="team", name="c", uid="u", drivers=(DRIVER,)), UID)
    fields: dict[str, Any] = {"driver": DRIVER, "pool": "n/p", "cdi_ids": ()}
    devices = (
        DeviceResponse(requests=("a",), device="gpu-0", share_id="s0", **fields),
        DeviceResponse(requests=("b",), device="gpu-1", **fields),
    )
    state.set_prepared("u", DRIVER, devices)
    containers: list[Obj] = [
        {"name": "all", "resources": {"claims": [{"name": "gpu"}]}},
        {"name": "one", "resources": {"claims": [{"name": "gpu", "request": "b"}]}},
        {"name": "none"},
    ]
    found = claims_of(answer_of([pod("Running", *containers)], state), DRIVER)["team", "train"]
    told = {name: [(each.claim, each.device, each.share_id) for each in devices] for name, devices in found.items()}
    assert told == {"all": [("c", "gpu-0", "s0"), ("c", "gpu-1", None)], "one": [("c", "gpu-1", None)], "none": []}
    assert claims_of(answer_of([pod("Pending", *containers)], state), DRIVER) == {}
