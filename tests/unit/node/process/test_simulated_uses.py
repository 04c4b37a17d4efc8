"""What claims use of simulated GPUs, from their annotation to the file that the usage exporter reads."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from dra_driver.core.errors import ApiUnreachableError, NotFoundError
from dra_driver.core.model.ids import ClaimUid, GpuUuid
from dra_driver.hardware.cdi import CdiNames, CdiWriter
from dra_driver.hardware.cdi.edits import SIMULATED_CLAIM, simulated_claim_edits
from dra_driver.hardware.cdi.provider import CdiProvider
from dra_driver.hardware.driver_root.root import DriverRoot
from dra_driver.hardware.gpu.simulated.usage import (
    ANNOTATION,
    CLAIM_VARIABLE,
    NAME,
    SimulatedUse,
    change_uses,
    parse_steps,
    read_uses,
)
from dra_driver.kube import paths
from dra_driver.node.claims.entry import Entry, State
from dra_driver.node.process.simulated import SimulatedUses
from tests.fakes.entries import GPU, device, entry, partition
from tests.fakes.stand_in import stand_in

STEPS = '[{"memory": "12Gi", "utilization": 60}]'


class Stage:
    """A journal, an API server with one claim, and the file."""

    def __init__(self, folder: Path, annotation: str | None = STEPS) -> None:
        self.file = folder / NAME
        self.entries: list[Entry] = [entry()]
        self.gets: list[str] = []
        annotations = {} if annotation is None else {ANNOTATION: annotation}
        self.claim: dict[str, Any] = {"metadata": {"uid": "u1", "annotations": annotations}}
        self.error: Exception | None = None
        self.uses = SimulatedUses(stand_in(self), lambda: self.entries, self.file)

    def get(
        self, path: str, query: Mapping[str, str] | None = None, *, within_s: float | None = None
    ) -> dict[str, Any]:
        assert (path, query) == (paths.resource_claim("team", "llm"), None)
        assert within_s is not None
        self.gets.append(path)
        if self.error is not None:
            raise self.error
        return self.claim

    def step(self) -> tuple[SimulatedUse, ...]:
        self.uses.step()
        return read_uses(self.file)[0]


@pytest.fixture
def stage(tmp_path: Path) -> Stage:
    return Stage(tmp_path)


def test_a_prepared_claim_uses_its_devices_as_its_annotation_says_until_it_ends(stage: Stage) -> None:
    """The claim is read once; its processes are found by their environment."""
    (use,) = stage.step()
    assert (use.gpu_uuid, use.gi_id, use.claim_uid, use.pids) == (GPU, None, "u1", ())
    assert use.since == stage.entries[0].changed_at
    assert use.steps == parse_steps(STEPS)
    assert stage.step() == (use,)
    assert len(stage.gets) == 1
    stage.entries = [entry(state=State.UNPREPARING)]
    assert stage.step() == ()


def test_a_partition_is_used_as_an_instance_and_admin_access_uses_nothing(stage: Stage) -> None:
    """A partition that was not created yet is used by nothing either."""
    made, missing = device(partition=partition(gi_id=7)), device(partition=partition())
    stage.entries = [entry("u1", made, missing, device(request="look", admin_access=True))]
    assert [use.gi_id for use in stage.step()] == [7]


@pytest.mark.parametrize("annotation", [None, "nonsense", '[{"memory": "-5"}]', "[" * 4000])
def test_without_a_right_annotation_nothing_is_used(tmp_path: Path, annotation: str | None) -> None:
    """It comes from a claim's author; the other claims go on."""
    stage = Stage(tmp_path, annotation)
    assert stage.step() == ()
    assert stage.step() == ()
    assert len(stage.gets) == 1


def test_a_claim_that_was_replaced_or_is_gone_uses_nothing(stage: Stage) -> None:
    """Another claim of that name has an annotation of its own."""
    stage.claim["metadata"]["uid"] = "other"
    assert stage.step() == ()
    stage.entries = [entry("u2")]
    stage.error = NotFoundError("gone")
    assert stage.step() == ()


def test_an_api_server_that_is_away_is_asked_again(stage: Stage) -> None:
    """And changes nothing meanwhile."""
    stage.error = ApiUnreachableError("away")
    with pytest.raises(ApiUnreachableError):
        stage.step()
    stage.error = None
    assert len(stage.step()) == 1


def test_uses_by_process_id_stay(stage: Stage) -> None:
    """They were written by people or tests."""
    mine = SimulatedUse(key="mine", gpu_uuid=GpuUuid("GPU-b"), since=1.0, steps=parse_steps(STEPS), pids=(7,))
    change_uses(stage.file, lambda _: (mine,))
    assert stage.step()[0] == mine
    stage.entries = []
    assert stage.step() == (mine,)


def test_containers_of_claims_on_simulated_gpus_name_each_claim(tmp_path: Path) -> None:
    """By variables of different names, of which CDI keeps both; real GPUs add nothing."""
    claim = ClaimUid("6b1c0e1e-0000-4000-8000-00000000000a")
    names = CdiNames("gpu.nvidia.com")
    for simulated in (False, True):
        root = DriverRoot(root=str(tmp_path), dev_root=str(tmp_path))
        provider = CdiProvider(root, names, CdiWriter(str(tmp_path), names), simulated=simulated)
        found = provider.edits_of_claim(claim)
        assert found.env == (simulated_claim_edits(claim).env if simulated else ())
    ((variable),) = simulated_claim_edits(claim).env
    assert variable == f"{SIMULATED_CLAIM}_6b1c0e1e_0000_4000_8000_00000000000a={claim}"
    assert SIMULATED_CLAIM.encode() == CLAIM_VARIABLE
