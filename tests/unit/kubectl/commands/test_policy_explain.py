"""``kubectl dra policy explain``: which policy gives which field of a GPU."""

from pathlib import Path
from typing import Any

import pytest

from dra_driver.config.schema import schemas
from dra_driver.config.status import node_status
from dra_driver.core.errors import ConfigurationError, NotFoundError
from dra_driver.core.model.gpu_node import (
    GpuNodeStatus,
    NodeGpu,
    NodePolicy,
    PolicyOrigin,
    PolicyState,
    PublishedForm,
)
from dra_driver.kubectl.commands import kubectl
from dra_driver.kubectl.commands.policy_explain import SPEC_FIELDS, explain_gpu, field_values

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


def test_every_field_of_a_spec_that_decides_terms_is_listed() -> None:
    """A new field that is not here would be given by a policy and told by no command."""
    spec = schemas()["GpuPolicy"]["fields"]["spec"]["fields"]
    below = {f"{name}.{inner}" for name in ("forms", "sharing", "health") for inner in spec[name]["fields"]}
    usage = spec["usage"]["fields"]
    below |= {f"usage.{name}.{inner}" for name in usage for inner in usage[name]["fields"]}
    direct = {name for name in spec if name not in {"forms", "sharing", "health", "usage", "select", "priority"}}
    assert {name for name, _ in SPEC_FIELDS} == below | direct


def test_fields_of_another_strategy_are_left_out() -> None:
    names = [each.field for each in field_values({"sharing": {"strategy": "MPS"}})]
    assert "sharing.maxShares" in names
    assert "sharing.interval" not in names


def test_a_field_says_where_it_comes_from(capsys: pytest.CaptureFixture[str]) -> None:
    assert explain_gpu(Api(POOL), "a", "gpu-0") == 0
    found = lines(capsys)
    assert ["policy", "pool", "(object)", "applies"] in found
    assert ["sharing.maxShares", "8", "policy", "pool"] in found
    assert ["forms.whole", "true", "default"] in found


def test_other_policies_are_listed_with_the_reason(capsys: pytest.CaptureFixture[str]) -> None:
    explain_gpu(Api(POOL, NIGHT), "a", "gpu-0")
    assert ["night", "File", "Outranked", "priority", "0"] in lines(capsys)


def test_a_newer_spec_than_the_node_has_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    explain_gpu(Api(POOL, generation=3), "a", "gpu-0")
    assert "generation 2 in force; the fields below are of 3" in capsys.readouterr().out


def test_without_a_policy_all_fields_have_their_defaults(capsys: pytest.CaptureFixture[str]) -> None:
    assert explain_gpu(Api(applied=""), "a", "GPU-0") == 0
    found = lines(capsys)
    assert ["availability", "Open", "default"] in found
    assert not any("policy" in line[-2:] for line in found[5:])


def test_a_policy_that_was_deleted_meanwhile_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    gone = NodePolicy(name="gone", origin=PolicyOrigin.OBJECT, state=PolicyState.IN_FORCE, gpus=("gpu-0",))
    assert explain_gpu(Api(gone, applied="gone"), "a", "gpu-0") == 1
    assert "its fields cannot be read" in capsys.readouterr().out


@pytest.mark.parametrize(("node", "gpu", "said"), [("b", "gpu-0", "no GpuNode b"), ("a", "gpu-9", "has no GPU gpu-9")])
def test_an_unknown_gpu_is_a_sentence(node: str, gpu: str, said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        explain_gpu(Api(POOL), node, gpu)


def test_a_folder_is_explained_without_a_cluster(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["policy", "explain", "gpu-a/gpu-1", "--policies", POLICIES, "--gpus", "2xh100-sxm5-80gb"]
    assert kubectl.main(arguments) == 0
    found = lines(capsys)
    assert ["policy", "mig-1g-only", "applies"] in found
    assert ["mps-pool", "File", "Outranked", "priority", "0"] in found


@pytest.mark.parametrize("arguments", [["gpu-0"], ["a/b/c"], ["a/gpu-0", "--gpus", "1xl4-24gb"]])
def test_wrong_usage_is_a_sentence(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert kubectl.main(["policy", "explain", *arguments]) == 2
    assert "expected NODE/GPU" in (said := capsys.readouterr().err) or "belong together" in said
