"""``dra-driver policy check``: its output before policies are applied."""

from pathlib import Path
from typing import Any

import pytest

from dra_driver.config.schema import schemas
from dra_driver.config.status import node_status
from dra_driver.core.command_line.main import main
from dra_driver.core.errors import ConfigurationError, NotFoundError
from dra_driver.core.model.gpu_node import GpuNodeStatus, NodeGpu, NodePolicy, PolicyOrigin, PolicyState, PublishedForm
from dra_driver.kubectl.commands import kubectl
from dra_driver.kubectl.commands.policy_explain import SPEC_FIELDS, _print, explain_gpu
from tests.harness.raising import fails

ROOT = Path(__file__).parents[4]
EXAMPLES = ROOT / "examples" / "policies"


def check(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, list[str]]:
    status = main(["policy", "check", *arguments])
    return status, capsys.readouterr().out.splitlines()


def test_the_examples_are_valid_and_do_not_conflict(capsys: pytest.CaptureFixture[str]) -> None:
    status, lines = check(capsys, str(EXAMPLES), "--gpus", "2xh100-sxm5-80gb,1xl4-24gb", "--node", "notebook-1")
    assert status == 0
    assert lines[0] == "11 policies, no problems"
    assert [line.split()[0] for line in lines[3:]] == ["gpu-0", "gpu-1", "gpu-2"]


@pytest.mark.parametrize(
    ("example", "line"),
    [
        ("default", "gpu-1 NVIDIA H100 80GB HBM3 default exclusive all <none> <none>"),
        (
            "mps-pool",
            "gpu-1 NVIDIA H100 80GB HBM3 mps-pool shared by MPS, at most 8, 80944Mi in all"
            " none <none> example.com/pool=inference",
        ),
        ("time-sliced-pool", "gpu-2 NVIDIA L4 time-sliced-pool shared by TimeSlicing Long, at most 10, 22478Mi in all"
            " - <none> <none>"),
        ("hidden-gpu", "gpu-0 NVIDIA H100 80GB HBM3 hidden-gpu no - <none> <none>"),
        (
            "mig-1g-only",
            "gpu-0 NVIDIA H100 80GB HBM3 mig-1g-only partitions 1g.20gb, 1g.10gb, 1g.10gb+me <none> <none>",
        ),
    ],
)  # fmt: skip
def test_each_example_has_the_effect_in_its_comment(
    capsys: pytest.CaptureFixture[str], example: str, line: str
) -> None:
    arguments = ("--gpus", "2xh100-sxm5-80gb,1xl4-24gb", "--node", "notebook-1")
    status, lines = check(capsys, str(EXAMPLES / f"{example}.yaml"), *arguments)
    assert status == 0
    assert line in [" ".join(found.split()) for found in lines]


def test_usage_eviction_fields_are_shown(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    head = "apiVersion: gpu.dra-driver.io/v1alpha1\nkind: GpuPolicy\nmetadata: {name: p}\nspec: {usage: "
    path = tmp_path / "p.yaml"
    path.write_text(f"{head}{{overGrant: {{action: Evict}}, idle: {{afterMinutes: 30, action: Reclaim}}}}}}\n")
    _, lines = check(capsys, str(path), "--gpus", "1xl4-24gb")
    assert lines[-1] == (
        "use of gpu-0: claims over their grant are evicted after 60 s; claims without use for 30 min are reclaimed"
    )
    path.write_text(f"{head}{{overGrant: {{graceSeconds: 30}}}}}}\n")
    assert not any("use of" in line for line in check(capsys, str(path), "--gpus", "1xl4-24gb")[1])


def test_rules_for_errors_are_shown_where_they_differ(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ("--gpus", "1xh100-sxm5-80gb", "--node", "training-1")
    _, lines = check(capsys, str(EXAMPLES / "training-pool.yaml"), *arguments)
    assert lines[-1] == "errors of gpu-0: ignores nvlink; evicts on ecc, lost, XID 79, XID 95; calm for 600 s"
    assert "evictionGraceSeconds=120" in lines[-3]
    _, lines = check(capsys, str(EXAMPLES / "default.yaml"), *arguments)
    assert not any("errors of" in line for line in lines)


def test_the_reserved_gpu_has_its_taint(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    spec = tmp_path / "gpus.yaml"
    spec.write_text(
        "gpus:\n- {model: l4-24gb, minor: 0, uuid: GPU-7277883e-ce1e-3b6e-6cc1-6d52e80cdb86, "
        "pciBusId: '0000:65:00.0'}\n"
    )
    status, lines = check(capsys, str(EXAMPLES / "reserved-gpu.yaml"), "--gpus", str(spec), "--node", "gpu-node-1")
    assert status == 0
    assert "gpu.dra-driver.io/reserved=reserved-gpu:NoSchedule" in lines[-1]


def test_every_problem_is_shown_with_file_line_and_field(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    text = (EXAMPLES / "mps-pool.yaml").read_text().replace("strategy: MPS", "strategy: mps")
    text = text.replace("spec:", "spec:\n  x: 1")
    (tmp_path / "p.yaml").write_text(text)
    status, lines = check(capsys, str(tmp_path))
    assert status == 1
    assert lines == [
        "p.yaml:8: spec.x: unknown field",
        "p.yaml:12: spec.sharing.strategy: expected 'Exclusive', 'TimeSlicing' or 'MPS', got 'mps'",
        "2 problems",
    ]


def test_the_output_in_the_document_is_real(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    text = (ROOT / "docs" / "policy.md").read_text()
    policy = text.partition("```yaml\n")[2].partition("```")[0]
    (tmp_path / "mps-pool.yaml").write_text(policy)
    shown = text.partition("--gpus 2xh100-sxm5-80gb\n")[2].partition("\nAn error")[0]
    status, lines = check(capsys, str(tmp_path / "mps-pool.yaml"), "--gpus", "2xh100-sxm5-80gb")
    assert status == 0
    assert lines == [line.removeprefix("    ") for line in shown.rstrip().splitlines()]


HEAD = "apiVersion: gpu.dra-driver.io/v1alpha1\nkind: GpuPolicy\nmetadata: {name: p}\n"
ROOT_OF_0 = "{pci: pci0000:00, rail: 1}"


def test_rails_without_a_gpu_are_listed(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "p.yaml"
    path.write_text(
        f"{HEAD}spec: {{rails: [{ROOT_OF_0}, {{pci: 0000:15:00.0, rail: 2}}, {{pci: pci0000:99, rail: 3}}]}}\n"
    )
    status, lines = check(capsys, str(path), "--gpus", "1xl4-24gb")
    assert status == 0
    assert lines[3].split()[-1] == "rail=1"
    assert lines[-1] == "rails of policy p without a GPU here: 0000:15:00.0, pci0000:99"


@pytest.mark.parametrize(
    ("spec", "problem"),
    [
        (
            "rails: [{pci: 0000:1B:00.0, rail: 0}]",
            "spec.rails[0].pci: expected a PCI address such as 0000:65:00.0 or a",
        ),
        ("rails: [{pci: gpu-0, rail: 0}]", "spec.rails[0].pci: expected a PCI address"),
        ("rails: [{pci: pci0000:00, rail: -1}]", "spec.rails[0].rail: expected a whole number from 0 to 255, got -1"),
        (
            "rails: [{pci: pci0000:00, rail: 999999999999999999999}]",
            "spec.rails[0].rail: expected a whole number from 0",
        ),
        ("rails: [{pci: pci0000:00}]", "spec.rails[0].rail: is required"),
        (f"rails: [{ROOT_OF_0}, {ROOT_OF_0}]", "spec.rails: two entries have pci 'pci0000:00'"),
        (f"rails: [{ROOT_OF_0}], attributes: [{{name: rail, int: 1}}]", "spec: rails and attributes both set"),
        (
            f"rails: [{ROOT_OF_0}], attributes: [{{name: gpu.nvidia.com/rail, int: 1}}]",
            "spec: rails and attributes both",
        ),
    ],
)
def test_wrong_rails_are_refused_with_their_field(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, spec: str, problem: str
) -> None:
    path = tmp_path / "p.yaml"
    path.write_text(f"{HEAD}spec: {{{spec}}}\n")
    status, lines = check(capsys, str(path))
    assert status == 1
    assert problem in lines[0]


def test_conflicting_policies_are_found_when_gpus_are_given(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    hidden = (EXAMPLES / "hidden-gpu.yaml").read_text()
    (tmp_path / "a.yaml").write_text(hidden)
    (tmp_path / "b.yaml").write_text(hidden.replace("hidden-gpu", "other").replace("Hidden", "Open"))
    assert check(capsys, str(tmp_path))[0] == 0
    status, lines = check(capsys, str(tmp_path), "--gpus", "1xl4-24gb")
    assert status == 1
    assert lines[-1].startswith("policies hidden-gpu and other both match gpu-0 (GPU-")


def test_a_path_that_does_not_exist_is_wrong_usage(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["policy", "check", "/nonexistent/x.yaml"]) == 2
    assert "No such file or directory" in capsys.readouterr().err


POLICIES = str(Path(__file__).parents[4] / "examples" / "policies")
POOL = NodePolicy(
    name="pool",
    origin=PolicyOrigin.OBJECT,
    state=PolicyState.IN_FORCE,
    generation=2,
    gpus=("gpu-0",),
    in_force=("gpu-0",),
)
NIGHT = NodePolicy(
    name="night", origin=PolicyOrigin.FILE, state=PolicyState.OUTRANKED, gpus=("gpu-0",), message="priority 0"
)


class Api:
    """A GpuNode with one GPU, and one GpuPolicy."""

    def __init__(self, *policies: NodePolicy, applied: str = "pool", generation: int = 2) -> None:
        gpu = NodeGpu(
            name="gpu-0", uuid="GPU-0", product_name="NVIDIA L4", policy=applied, offered_as=(PublishedForm.SHARED,)
        )
        status = GpuNodeStatus(driver_name="gpu.nvidia.com", gpus=(gpu,), policies=policies)
        self.node = {"metadata": {"name": "a"}, "status": node_status(status, "2026-11-22T12:00:00Z")}
        self.spec = {"sharing": {"strategy": "MPS", "maxShares": 8}, "taints": [{"key": "team"}]}
        self.generation = generation

    def get(self, path: str) -> dict[str, Any]:
        if path.endswith("/gpunodes/a"):
            return self.node
        if path.endswith("/gpupolicies/pool"):
            return {"metadata": {"name": "pool", "generation": self.generation}, "spec": self.spec}
        raise NotFoundError(path)


def lines(capsys: pytest.CaptureFixture[str]) -> list[list[str]]:
    return [line.split() for line in capsys.readouterr().out.splitlines()]


def explained(capsys: pytest.CaptureFixture[str], api: Api, gpu: str) -> list[list[str]]:
    found, status = explain_gpu(api, "a", gpu)
    assert status == 0
    _print(found, full=True)
    return lines(capsys)


def test_every_field_of_a_spec_that_decides_terms_is_listed() -> None:
    """A missing field would be absent from the output."""
    spec = schemas()["GpuPolicy"]["fields"]["spec"]["fields"]
    below = {f"{name}.{inner}" for name in ("forms", "mig", "sharing", "health") for inner in spec[name]["fields"]}
    usage = spec["usage"]["fields"]
    below |= {f"usage.{name}.{inner}" for name in usage for inner in usage[name]["fields"]}
    direct = {name for name in spec if name not in {"forms", "mig", "sharing", "health", "usage", "select", "priority"}}
    assert set(SPEC_FIELDS) == below | direct


def test_a_field_says_where_it_comes_from(capsys: pytest.CaptureFixture[str]) -> None:
    found = explained(capsys, Api(POOL, NIGHT, generation=3), "gpu-0")
    assert ["policy", "pool", "(object)", "applies"] in found
    assert ["sharing.maxShares", "8", "policy", "pool"] in found
    assert ["forms.whole", "true", "default"] in found
    assert ["night", "File", "Outranked", "priority", "0"] in found
    assert ["has", "generation", "2", "in", "force;"] in [line[2:7] for line in found]
    assert not any("sharing.interval" in line for line in found), "a field of another strategy"


def test_without_a_policy_all_fields_have_their_defaults(capsys: pytest.CaptureFixture[str]) -> None:
    found = explained(capsys, Api(applied=""), "GPU-0")
    assert ["availability", "Open", "default"] in found
    assert not any("policy" in line[-2:] for line in found[5:])


def test_policy_deleted_during_the_run_is_reported() -> None:
    gone = NodePolicy(name="gone", origin=PolicyOrigin.OBJECT, state=PolicyState.IN_FORCE, gpus=("gpu-0",))
    found, status = explain_gpu(Api(gone, applied="gone"), "a", "gpu-0")
    assert status == 1
    assert "cannot read its fields" in found.notes[0]


@pytest.mark.parametrize(("node", "gpu", "reason"), [("b", "gpu-0", "GpuNodeMissing"), ("a", "gpu-9", "GpuMissing")])
def test_unknown_gpu_is_rejected(node: str, gpu: str, reason: str) -> None:
    with fails(ConfigurationError, reason):
        explain_gpu(Api(POOL), node, gpu)


def test_a_folder_is_explained_without_a_cluster(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["policy", "explain", "gpu-a/gpu-1", "--policies", POLICIES, "--gpus", "2xh100-sxm5-80gb"]
    assert kubectl.main(arguments) == 0
    found = lines(capsys)
    assert ["policy", "mig-1g-only", "applies"] in found
    assert ["mps-pool", "File", "Outranked", "priority", "0"] in found
