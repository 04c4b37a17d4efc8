"""What a simulated node shows of its containers: the exporter's own readers read it."""

import time
from pathlib import Path
from typing import Any

from dra_driver.node.exporter.sources import LogLinks, ProcReader, claims_of
from dra_driver.node.usage.sources import LogIndex
from dra_driver.sim.apiserver.jsonvalue import Obj
from dra_driver.sim.node.kubelet_state import DeviceResponse, KubeletState, NodeClaim
from dra_driver.sim.node.made_processes import MadeProcesses, container_id
from dra_driver.sim.node.pod_resources import answer_of

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
    """Of the request that a container names, or of all; a pod that does not run has none."""
    state = KubeletState(tmp_path / "state")
    state.add_user(NodeClaim(namespace="team", name="c", uid="u", drivers=(DRIVER,)), UID)
    fields: dict[str, Any] = {"driver": DRIVER, "pool": "n/p", "cdi_ids": ()}
    devices = (
        DeviceResponse(request_names=("a",), device="gpu-0", share_id="s0", **fields),
        DeviceResponse(request_names=("b",), device="gpu-1", **fields),
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
