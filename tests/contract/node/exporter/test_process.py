"""The whole exporter from outside, with simulated GPUs and a kubelet's socket, and the GPUs that it reads."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from dra_driver.config.exporter_settings import ExporterSettings
from dra_driver.config.options import load
from dra_driver.hardware.gpu.simulated.spec import parse_groups
from dra_driver.node.exporter.process import choose
from tests.contract.node.process.processes import ask
from tests.fakes.kubelet import FakePodResources
from tests.fakes.node_process import DriverProcess
from tests.fakes.nvml import library
from tests.fakes.nvml.state import ENVIRONMENT, State
from tests.fakes.nvml.sysfs import write_sysfs
from tests.fakes.simulated_gpus import SimulatedBackend
from tests.harness.servers import free_port
from tests.unit.node.exporter.fakes import FakeProc

SPEC = "1xh100-sxm5-80gb"
GIB = 2**30
POOL = "node-a/gpu.nvidia.com"
UIDS = {name: f"00000000-0000-0000-0000-00000000000{name}" for name in "ab"}
IDS = {name: name * 64 for name in "ab"}
SLICE = "/kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-pod{0}.slice/cri-containerd-{1}.scope"
"""containerd with systemd and cgroup v2, as its hosts have it."""


class Node:
    """The files that a node has for its exporter: one shared GPU, two claims with a pod each, and a foreign process."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.proc = folder, FakeProc(folder / "proc")
        self.process: DriverProcess | None = None
        self.plugin = folder / "plugins/gpu.nvidia.com"
        (self.plugin / "usage").mkdir(parents=True)
        gpus = SimulatedBackend.from_spec(SPEC, "node-a", state_file=self.plugin / "simulated-gpus.json")
        self.gpu = gpus.snapshot().gpus[0].uuid
        (folder / "containers").mkdir()
        self.kubelet = FakePodResources(folder / "kubelet.sock")
        for name, pid in (("a", 11), ("b", 12)):
            path = SLICE.format(UIDS[name].replace("-", "_"), IDS[name])
            self.proc.add(pid, f"0::{path}\n")
            link = folder / f"containers/pod-{name}_team_main-{IDS[name]}.log"
            link.symlink_to(f"/var/log/pods/team_pod-{name}_{UIDS[name]}/main/0.log")
            self.kubelet.add("team", f"pod-{name}", "main", f"claim-{name}", pool_name=POOL, device_name="gpu-0",
                             share_id=f"s{name}")  # fmt: skip
        self.proc.add(13, "0::/system.slice/sshd.service\n", command="miner")
        self.use({11: 4, 12: 30, 13: 1})
        self.assign()
        self.port = free_port()

    def use(self, gib: dict[int, int]) -> None:
        uses = [
            {"key": str(pid), "gpu": self.gpu, "gi": None, "since": 0, "pids": [pid], "claim": None,
             "steps": [{"memory": f"{size}Gi", "utilization": 20}]}
            for pid, size in gib.items()
        ]  # fmt: skip
        (self.plugin / "simulated-usage.json").write_text(json.dumps({"version": 1, "uses": uses}))

    def assign(self, **changes: Any) -> None:
        claims = [
            {"uid": f"uid-{name}", "namespace": "team", "name": f"claim-{name}", "prepared": "2026-07-01T12:00:00Z",
             "devices": [{"request": "gpu", "pool": POOL, "device": "gpu-0", "form": "share", "gpu": self.gpu,
                          "uuid": self.gpu, "shareId": f"s{name}", "memoryBytes": 20 * GIB, "percent": 50}]}
            for name in "ab"
        ]  # fmt: skip
        document = {"version": 1, "node": "node-a", "driver": "gpu.nvidia.com", "detached": None,
                    "processStarted": "2026-07-01T11:00:00Z", "claims": claims,
                    "gpus": [{"device": "gpu-0", "gpu": self.gpu, "model": "H100", "changing": False}]}  # fmt: skip
        new = self.plugin / "usage/new"
        new.write_text(json.dumps(document | changes))
        new.rename(self.plugin / "usage/assignments.json")

    def exporter(self) -> DriverProcess:
        flags: dict[str, str | None] = {
            "node_name": "node-a", "simulate": SPEC, "kubelet_plugins_dir": str(self.folder / "plugins"),
            "pod_resources_socket": str(self.folder / "kubelet.sock"), "proc_dir": str(self.proc.root),
            "log_dir": str(self.folder / "containers"), "http_addr": f"127.0.0.1:{self.port}", "interval": "1",
        }  # fmt: skip
        self.process = DriverProcess("exporter", self.folder, flags).start()
        return self.process

    def ask(self, path: str) -> str:
        status, text = ask(self.port, path)
        return text if status == 200 else ""

    def usage(self) -> Any:
        return json.loads(self.ask("/usage") or "{}")


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    node = Node(tmp_path)
    yield node
    node.kubelet.stop()
    if node.process is not None:
        node.process.kill()


def used(found: Any) -> dict[str, int | None]:
    return {claim["name"]: claim["devices"][0]["usedBytes"] for claim in found.get("claims", [])}


def test_each_claim_has_its_own_and_all_adds_up(node: Node) -> None:
    process = node.exporter()
    process.wait_for(lambda: used(node.usage()) == {"claim-a": 4 * GIB, "claim-b": 30 * GIB})
    found = node.usage()
    assert found["knows"]["processes"] is found["knows"]["containers"] is found["knows"]["claims"] is True
    assert [claim["pods"] for claim in found["claims"]] == [["pod-a"], ["pod-b"]]
    (gpu,) = found["gpus"]
    assert (gpu["memoryClaimsBytes"], gpu["memoryUnattributedBytes"]) == (34 * GIB, GIB)
    assert gpu["unattributedProcesses"] == 1
    assert gpu["memoryUsedBytes"] == 35 * GIB + gpu["memoryReservedBytes"]
    process.wait_for(lambda: 'pod="pod-a"' in node.ask("/metrics"))
    found = {frozenset(labels.items()): value for labels, value in samples(node, "dra_claim_memory_used_bytes")}
    labels = {"namespace": "team", "claim": "claim-b", "pod": "pod-b", "container": "main", "request": "gpu"}
    assert found[frozenset({**labels, "device": "gpu-0", "share": "sb"}.items())] == 30 * GIB
    assert "dra_exporter_knows_processes 1.0" in node.ask("/metrics")
    assert "ok" in node.ask("/readyz")
    status, seconds = process.end()
    assert (status, seconds < 5.0) == (0, True), process.text


def samples(node: Node, name: str) -> list[tuple[dict[str, str], float]]:
    families = text_string_to_metric_families(node.ask("/metrics"))
    return [(each.labels, each.value) for family in families for each in family.samples if each.name == name]


def test_what_it_does_while_things_are_missing(node: Node) -> None:
    node.assign(detached="an upgrade")
    process = node.exporter()
    process.wait_for(lambda: "an upgrade" in str(node.usage().get("knows")))
    assert used(node.usage()) == {"claim-a": None, "claim-b": None}
    node.assign()
    process.wait_for(lambda: used(node.usage()) == {"claim-a": 4 * GIB, "claim-b": 30 * GIB})
    node.kubelet.stop()
    process.wait_for(lambda: node.usage()["knows"]["claims"] is not True)
    found = node.usage()
    assert used(found) == {"claim-a": None, "claim-b": None}
    assert found["gpus"][0]["memoryUnattributedBytes"] is None
    assert process.end()[0] == 0, process.text


@pytest.mark.slow
def test_a_claim_over_its_grant_is_written_for_the_node_process(node: Node) -> None:
    process = node.exporter()
    file = node.plugin / "usage/findings/findings.json"
    process.wait_for(lambda: file.exists() and json.loads(file.read_text()).get("overGrant"), timeout_s=60)
    (over,) = json.loads(file.read_text())["overGrant"]
    assert (over["claim"], over["usedBytes"], over["grantBytes"]) == ("claim-b", 30 * GIB, 20 * GIB)
    assert over["pods"] == [{"namespace": "team", "name": "pod-b", "uid": UIDS["b"]}]
    node.proc.end(12)
    node.use({11: 4})
    node.assign(claims=[])
    process.wait_for(lambda: not json.loads(file.read_text()).get("overGrant"))
    process.wait_for(lambda: node.usage()["claims"] == [])
    assert process.end()[0] == 0, process.text


def test_real_gpus_are_read_through_nvml(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if reason := library.reason_why_not():
        pytest.skip(reason)
    folder = tmp_path / "root/usr/lib/x86_64-linux-gnu"
    folder.mkdir(parents=True)
    library.build(folder)
    monkeypatch.setenv(ENVIRONMENT, str(tmp_path / "state"))
    node = parse_groups("2xh100-sxm5-80gb", "node-a")
    write_sysfs(tmp_path / "sys", node)
    state = State.create(tmp_path / "state", node)
    settings = load(ExporterSettings, {"node_name": "node-a", "driver_root": str(tmp_path / "root")}, {})
    backend = choose(settings, tmp_path)
    try:
        assert {each.gpu_uuid for each in backend.usage()} == {item.gpu.uuid for item in node.gpus}
        backend.close()
        assert not state.opened()
        assert len(backend.usage()) == 2
    finally:
        backend.close()
        state.close()
