"""``dra-driver state`` and ``dra-driver cleanup`` on a node with a real node process, MPS host and simulated GPUs."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from dra_driver.core.command_line.main import main
from tests.fakes.live_claims import Obj, Scheduler, gpu, parameters, partition, share
from tests.fakes.live_node import DRIVER, MPS_ON_GPU_3, LiveNode, until

SPEC = "4xh100-sxm5-80gb"


@dataclass
class Inspected:
    node: LiveNode
    claims: list[Obj]
    output: pytest.CaptureFixture[str]

    def run(self, *words: str) -> tuple[int, str]:
        folders = self.node.folders
        places = {
            "kubelet-plugins-dir": folders.plugins,
            "kubelet-registrar-dir": folders.registry,
            "cdi-dir": folders.cdi,
            "kubeconfig": self.node.root / "kubeconfig",
            "run-dir": self.node.root / "run",
            "shm-dir": folders.shm,
            "simulate": SPEC,
            "node-name": self.node.name,
        }
        self.output.readouterr()
        status = main([*words, *(f"--{name}={value}" for name, value in places.items())])
        printed = self.output.readouterr()
        return status, printed.out + printed.err

    def findings(self, *words: str) -> list[str]:
        status, text = self.run("state", "--output=json", *words)
        found: dict[str, Any] = json.loads(text)
        problems = [f"{each['object']}: {each['seen']}" for each in found["findings"] if each["status"] == "warn"]
        assert status == (1 if problems else 0)
        return problems


@pytest.fixture
def inspected(capsys: pytest.CaptureFixture[str]) -> Iterator[Inspected]:
    with LiveNode(SPEC, policy=MPS_ON_GPU_3, mps=True) as node:
        scheduler = Scheduler(node)
        slicing = parameters("GpuConfig", strategy="TimeSlicing", timeSlicingConfig={"interval": "Long"})
        claims = [
            scheduler.allocate_soon(partition("1g.10gb", of=[node.gpus[0]])),
            scheduler.allocate_soon(gpu(of=[node.gpus[2]]), config=[slicing]),
            scheduler.allocate_soon(share("10Gi", 20)),
        ]
        assert [node.prepare(each).error for each in claims] == [""] * 3
        yield Inspected(node, claims, capsys)


def test_state_says_what_disagrees_and_repairs_it(inspected: Inspected) -> None:
    node = inspected.node
    before = node.instances(), node.notes(), node.states(), sorted(node.cdi_files())
    assert inspected.findings("--hardware") == []
    status, text = inspected.run("state")
    assert (status, "no contradictions" in text) == (0, True)
    for claim in inspected.claims:
        assert f"{claim['namespace']}/{claim['name']}" in text
    status, text = inspected.run("state", "--repair")
    assert (status, "a node process runs" in text) == (2, True)

    node.kill()
    assert inspected.findings("--hardware") == []
    for path in node.cdi_files().values():
        path.unlink()
    (node.folders.cdi / f"k8s.{DRIVER}-claim_12345678-1111-2222-3333-444444444444.json").write_text("{")
    found = inspected.findings()
    assert [each for each in found if "no entry in the journal" in each]
    assert [each for each in found if "is not JSON" in each]
    assert len([each for each in found if "has no CDI file" in each]) == 3
    assert inspected.findings("--repair", "--hardware") == []
    assert (node.instances(), node.notes(), node.states(), sorted(node.cdi_files())) == before

    for path in node.plugin.glob("state.db*"):
        path.unlink()
    (found_one,) = inspected.findings()
    assert "does not exist" in found_one
    (node.plugin / "state.db").write_bytes(b"damaged" * 1000)
    (found_one,) = inspected.findings()
    assert "it is damaged" in found_one
    assert inspected.findings("--repair", "--hardware") == []
    assert (node.instances(), node.notes(), node.states(), sorted(node.cdi_files())) == before
    assert "a damaged journal was kept" in inspected.run("state")[1]


def test_cleanup_refuses_while_something_runs_or_is_prepared(inspected: Inspected) -> None:
    node = inspected.node
    whole = node.leftovers()
    status, text = inspected.run("cleanup")
    assert status == 2
    for reason in ("a node process runs", "an MPS host runs", "claims are prepared"):
        assert reason in text
    node.kill()
    assert node.mps_host is not None
    node.mps_host.stop()
    for path in node.plugin.glob("state.db*"):
        path.unlink()
    status, text = inspected.run("cleanup")
    assert (status, "claims have CDI files" in text) == (2, True)
    node.start()
    until(lambda: len(node.states()) == 3, "the journal to be rebuilt")
    node.mps_host.start()
    until(lambda: node.leftovers() != [] and len(node.leftovers()) >= len(whole) - 1, "the daemon to run again")
    for claim in inspected.claims[1:]:
        assert node.unprepare(claim) == ""
    node.kill()
    node.mps_host.stop()
    status, text = inspected.run("cleanup")
    assert (status, f"claims are prepared: {inspected.claims[0]['namespace']}/" in text) == (2, True)
    assert node.states() == {inspected.claims[0]["uid"]: "prepared"}


def test_cleanup_removes_every_trace_and_nothing_else(inspected: Inspected) -> None:
    node = inspected.node
    for claim in inspected.claims[1:]:
        assert node.unprepare(claim) == ""
    node.kill()
    assert node.mps_host is not None
    node.mps_host.stop()
    for table in ("claim", "device"):
        node.change_journal(f"DELETE FROM {table}")  # noqa: S608
    for path in node.cdi_files().values():
        path.unlink()
    foreign = (
        node.plugin / "checkpoint.json",
        node.folders.cdi / "nvidia.yaml",
        node.folders.registry / "other-reg.sock",
    )
    for path in foreign:
        path.write_text("of another program")
    status, text = inspected.run("cleanup", "--dry-run")
    assert (status, "would be undone: GPU" in text, "would be removed: file" in text) == (0, True, True)
    assert len(node.instances()) == 1
    status, text = inspected.run("cleanup")
    assert (status, "stays, because it is not this driver's" in text) == (0, True), text
    assert (node.instances(), node.gpus_in_mig_mode()) == ([], [])
    assert sorted(path.name for path in node.plugin.iterdir()) == ["checkpoint.json"]
    assert [path.name for path in node.folders.cdi.iterdir()] == ["nvidia.yaml"]
    assert [path.name for path in node.folders.registry.iterdir()] == ["other-reg.sock"]
    foreign[0].unlink()
    assert inspected.run("cleanup")[0] == 0
    assert not node.plugin.exists()
    assert inspected.run("cleanup") == (0, "nothing of this driver is on this node\n")
    assert "no node process has run on this node" in inspected.run("state")[1]
