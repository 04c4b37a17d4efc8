"""The annotation that makes simulated GPUs ill, against node processes with simulated and with real GPUs."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from dra_driver.core.command_line.main import main
from dra_driver.hardware.gpu.simulated.faults import ANNOTATION
from dra_driver.kube.rest import RestClient
from tests.contract.node.process.processes import EVENTS, NODE, Node, devices, events, taints
from tests.contract.node.process.test_detach import Driver, driver, process

DRAIN = "gpu.dra-driver.io/drain"

__all__ = ["driver", "process"]


@pytest.fixture(autouse=True)
def _clean(rest: RestClient) -> Iterator[None]:
    yield
    annotations = {ANNOTATION: None, DRAIN: None}
    rest.merge_patch(f"/api/v1/nodes/{NODE}", {"metadata": {"annotations": annotations}})
    for item in rest.list(EVENTS)["items"]:
        rest.delete(f"{EVENTS}/{item['metadata']['name']}")


def annotate(rest: RestClient, text: str | None) -> None:
    rest.merge_patch(f"/api/v1/nodes/{NODE}", {"metadata": {"annotations": {ANNOTATION: text}}})


def injected(process: Node) -> list[str]:
    state: Path = process.folder / "plugins" / "gpu.nvidia.com" / "simulated-gpus.json"
    return [one["fault"] for one in json.loads(state.read_text())["injected"]] if state.exists() else []


def test_real_gpus_are_never_touched_by_it(rest: RestClient, driver: Driver, process: Node) -> None:
    process.start()
    process.wait_for(lambda: devices(rest) == ["gpu-0", "gpu-1"])
    annotate(rest, "gpu-0 xid=79")
    rest.merge_patch(f"/api/v1/nodes/{NODE}", {"metadata": {"annotations": {DRAIN: "all"}}})

    process.wait_for(lambda: taints(rest))  # the drain is newer than the fault, and was followed
    assert {taint["key"] for found in taints(rest).values() for taint in found} == {"gpu.dra-driver.io/drained"}
    assert events(rest, "SimulatedFault") == events(rest, "SimulatedFaultRefused") == []
    assert driver.old.calls("nvmlInitWithFlags") == 1


def test_the_commands_inject_a_fault_and_recover_from_it(
    rest: RestClient, node: Callable[..., Node], capsys: pytest.CaptureFixture[str]
) -> None:
    simulated = node().start()
    simulated.wait_for(lambda: devices(rest))
    flags = ["--kubeconfig", str(simulated.flags["kubeconfig"]), "--wait", "60"]
    assert main(["sim", "inject", NODE, "gpu-0", "xid=13", *flags]) == 0
    assert injected(simulated) == ["xid=13"]
    assert main(["sim", "inject", NODE, "gpu-0-mig-1g10gb-19-0", "ecc", *flags]) == 1
    assert "this partition does not exist" in capsys.readouterr().err
    assert injected(simulated) == ["xid=13"]
    assert main(["sim", "inject", NODE, "gpu-5", "ecc", *flags]) == 2
    assert "did you mean gpu-" in capsys.readouterr().err
    assert main(["sim", "recover", NODE, *flags]) == 0
    assert injected(simulated) == []
