"""Pages show what commands print: policies, this project's objects, lint. Tests of other commands hold theirs."""

import json
import re
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from dra_driver.config.status import node_status
from dra_driver.controller.policy_status import totals
from dra_driver.core.command_line.main import main
from dra_driver.core.model.gpu_node import (
    GpuNodeStatus,
    HealthWord,
    NodeGpu,
    NodePolicy,
    NodeProblem,
    PolicyOrigin,
    PolicyState,
    PublishedForm,
    ReportedOverGrant,
    ReportedPod,
)
from dra_driver.core.model.usage_rules import OverGrantAction
from dra_driver.core.wire import to_wire
from dra_driver.kubectl.commands import kubectl, ui
from dra_driver.sim.apiserver.kinds import GPU_NODES, GPU_POLICIES
from dra_driver.sim.demo.chapter import table
from tests.harness.shown import ROOT, holds, pages, shown
from tests.unit.controller.fleets import node_object, nodes, policy, said
from tests.unit.kubectl.lint.helpers import template

NOW = datetime(2026, 1, 4, tzinfo=UTC)
CREATED = {"creationTimestamp": (NOW - timedelta(days=3)).strftime("%Y-%m-%dT%H:%M:%SZ")}
POLICY = re.findall(r"^```yaml\n(apiVersion.*?)^```", (ROOT / "docs/policy.md").read_text(), re.MULTILINE | re.DOTALL)[
    0
]
Printed = pytest.CaptureFixture[str]


CLAIM = """\
- name: gpu
  exactly:
    deviceClassName: mig.nvidia.com
    selectors:
    - cel:
        expression: |-
          device.attributes["gpu.nvidia.com"].profile == "1g.5gb"
          && device.capacity["gpu.nvidia.com"].memory.compareTo(quantity("5Gi")) >= 0
"""


@pytest.mark.parametrize(
    ("page", "command"),
    [
        ("docs/policy.md", "dra-driver policy check mps-pool.yaml --gpus 2xh100-sxm5-80gb"),
        (
            "docs/policy.md",
            "kubectl dra policy explain gpu-a/gpu-0 --policies examples/policies --gpus 2xh100-sxm5-80gb",
        ),
        ("docs/lint.md", "kubectl dra lint claim.yaml"),
    ],
)
def test_commands_that_read_files(
    page: str, command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Printed
) -> None:
    (tmp_path / "mps-pool.yaml").write_text(POLICY)
    (tmp_path / "claim.yaml").write_text(template(CLAIM, name="small"))
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    monkeypatch.chdir(tmp_path)
    program, arguments = (main, command[11:]) if command.startswith("dra-driver ") else (kubectl.main, command[12:])
    assert program(arguments.split()) == (1 if "lint" in command else 0)
    holds(page, command, capsys.readouterr().out)


def gpus(count: int, **first: Any) -> tuple[NodeGpu, ...]:
    healthy: dict[str, Any] = {"product_name": "NVIDIA A100-SXM4-40GB", "health": HealthWord.HEALTHY}
    return tuple(
        NodeGpu(name=f"gpu-{number}", uuid=f"GPU-{number}", **{**healthy, **(first if number == 3 else {})})
        for number in range(count)
    )


def in_state(name: str, state: PolicyState) -> NodePolicy:
    return NodePolicy(name=name, origin=PolicyOrigin.OBJECT, state=state)


def gpu_node(name: str, policy: NodePolicy, gpus: tuple[NodeGpu, ...], *problems: NodeProblem) -> dict[str, Any]:
    status = GpuNodeStatus(
        driver_name="gpu.nvidia.com", driver_version="580.65.06", gpus=gpus, policies=(policy,), problems=problems
    )
    return {"metadata": {"name": name, **CREATED}, **node_status(status, "2026-01-01T00:00:00Z")}


def test_tables_of_gpu_nodes() -> None:
    found = [
        gpu_node("gpu-a", in_state("mps-pool", PolicyState.IN_FORCE), gpus(4, used_as=PublishedForm.WHOLE)),
        gpu_node(
            "gpu-b",
            in_state("old", PolicyState.WAITING),
            gpus(8, health=HealthWord.UNHEALTHY, causes=("xid",)),
            NodeProblem(reason="GpuUnhealthy", message="gpu-3 is unhealthy"),
        ),
    ]
    found = [{**each, "status": each.get("status", each)} for each in found]
    holds("docs/operations.md", "kubectl get gpunodes", table(GPU_NODES, found, NOW))


def test_status_of_a_policy() -> None:
    eight = tuple(f"gpu-{number}" for number in range(8))
    whole = said(gpus=eight, in_force=eight)
    waits = said(
        gpus=eight, state=PolicyState.WAITING, in_force=eight[2:], waiting=eight[:2], waiting_for=("team/train",)
    )
    status = to_wire(totals([policy()], nodes(node_object("gpu-a", whole), node_object("gpu-b", waits)))["pool"])
    pool = {"metadata": {"name": "mps-pool", **CREATED}, "spec": {"priority": 10}, "status": status}
    holds("docs/policy.md", "kubectl get gpupolicies", table(GPU_POLICIES, [pool], NOW))
    places: Any = status["waiting"]
    command = "kubectl get gpupolicy mps-pool -o jsonpath='{.status.waiting.places}'"
    holds("docs/policy.md", command, json.dumps(places["places"], separators=(",", ":"), sort_keys=True))


def test_a_claim_over_its_grant() -> None:
    told = ReportedOverGrant(
        namespace="team", claim="llm", claim_uid="6e0f8a3c-52d5-4f1b-9b0e-3f1f3a0c7d21", gpu="gpu-0",
        pods=(ReportedPod(name="llm-0", uid="1c2d9e54-7a61-4c3f-8f0a-5b7c2e9d4a10"),), used="20Gi", granted="12Gi",
        processes=2, since="2026-07-01T12:00:00Z", action=OverGrantAction.EVICT, grace_s=60,
    )  # fmt: skip
    command = "kubectl get gpunode gpu-a -o jsonpath='{.status.usage.overGrant[0]}'"
    holds("docs/usage-limits.md", command, json.dumps(to_wire(told), separators=(",", ":"), sort_keys=True))


def test_address_of_the_web_ui(capsys: Printed) -> None:
    ui._say("http://127.0.0.1:41873/Zk3x/open?code=x")
    out, err = capsys.readouterr()
    holds("docs/ui.md", "kubectl dra ui", out + err, masked=r"/Zk3[^/]+/|code=\S+")


WHOLE_PAGES = {"docs/explain.md"}
"""tests/scenario/test_explain.py compares each block."""
UNHELD = {"docs/doctor.md"}
"""Of real clusters; tests/doctor_faults holds the sentences."""
HOLDERS = [path for path in (ROOT / "tests").rglob("test_*.py") if "holds(" in path.read_text()]


def test_each_output_is_held_by_a_test() -> None:
    texts = [path.read_text() for path in HOLDERS]
    missing = [
        f"{page}: {command}"
        for page in pages()
        for command, output in shown(page).items()
        if output and page not in WHOLE_PAGES | UNHELD
        if not any(page in text and command in text for text in texts)
    ]
    assert missing == []
