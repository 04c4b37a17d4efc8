"""Faults and uses of simulated GPUs, as annotations of the Node and of claims ask for them."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from dra_driver.core.errors import ApiUnreachableError, DriverUnavailableError, NotFoundError
from dra_driver.core.model.ids import ClaimUid, GpuUuid
from dra_driver.core.model.mig import partition_name
from dra_driver.hardware.cdi import CdiNames, CdiWriter
from dra_driver.hardware.cdi.edits import SIMULATED_CLAIM, simulated_claim_edits
from dra_driver.hardware.cdi.provider import CdiProvider
from dra_driver.hardware.driver_root.root import DriverRoot
from dra_driver.hardware.gpu.simulated import faults
from dra_driver.hardware.gpu.simulated.spec import parse_groups
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
from dra_driver.kube.own_node import OwnNode
from dra_driver.node.claims.entry import Entry, State
from dra_driver.node.process.simulated import SOURCE, SimulatedFaults, SimulatedUses
from tests.fakes.claims import GPU, device, entry, partition
from tests.fakes.simulated_gpus import SimulatedBackend
from tests.fakes.stand_in import stand_in


class FaultStage:
    """Two simulated GPUs, the first divided, and the Node object."""

    def __init__(self) -> None:
        self.gpus = SimulatedBackend(parse_groups("2xh100-sxm5-80gb", "node-a"))
        self.first, self.second = (gpu.uuid for gpu in self.gpus.snapshot().gpus)
        self.gpus.set_mig_mode(self.first, True)
        instance = self.gpus.foreign_create(self.first, 19, 2)
        self.gi_id = instance.gi_id
        self.partition = partition_name(0, instance.profile_name, instance.profile_id, instance.start)
        self.node: OwnNode | None = None
        self.told: list[tuple[str, str]] = []
        self.faults = self.restarted()

    def restarted(self) -> SimulatedFaults:
        return SimulatedFaults(self.gpus, lambda: self.node, lambda _, reason, text: self.told.append((reason, text)))

    def annotate(self, text: str | None) -> list[tuple[str, str]]:
        self.node = OwnNode(name="node-a", annotations={} if text is None else {faults.ANNOTATION: text})
        self.told.clear()
        self.faults.step()
        return list(self.told)

    def injected(self) -> list[tuple[str, str, int | None]]:
        return [(one.gpu, str(one.fault), one.gi_id) for one in self.gpus.injected(SOURCE)]


@pytest.fixture
def ill() -> FaultStage:
    return FaultStage()


def test_gpus_and_existing_partitions_fall_ill_as_asked_and_recover_when_it_is_removed(ill: FaultStage) -> None:
    text = f"gpu-1 xid=79, {ill.partition} xid=94"
    assert ill.annotate(text) == [("SimulatedFault", f"simulated faults: {text}")]
    assert ill.injected() == [(ill.second, "xid=79", None), (ill.first, "xid=94", ill.gi_id)]
    assert ill.annotate(text) == []
    assert ill.annotate(None) == [("SimulatedFault", "simulated faults: none")]
    assert ill.injected() == []
    ill.annotate("gpu-0 lost")  # the inventory does not list it then
    assert ill.annotate("gpu-0 lost, gpu-0 row-remap") != []
    assert [fault for _, fault, _ in ill.injected()] == ["lost", "row-remap=pending"]


def test_an_annotation_that_cannot_be_read_changes_nothing_and_is_told_once(ill: FaultStage) -> None:
    ill.annotate("gpu-0 ecc")
    ((reason, text),) = ill.annotate("gpu-0 fire")
    assert reason == "SimulatedFaultRefused"
    assert "a fault such as xid=79" in text
    assert ill.annotate("gpu-0 fire") == []
    assert ill.injected() == [(ill.first, "ecc", None)]


def test_one_bad_order_does_not_stop_the_others(ill: FaultStage) -> None:
    told = dict(ill.annotate("gpu-7 ecc, gpu-1 ecc"))
    assert "no such device, only gpu-0, gpu-1" in told["SimulatedFaultRefused"]
    told = dict(ill.annotate("gpu-0-mig-7g80gb-0-0 ecc, gpu-1 ecc"))
    assert f"does not exist, so it cannot fail; existing partitions: {ill.partition}" in told.popitem()[1]
    assert ill.injected() == [(ill.second, "ecc", None)]


def test_a_restart_tells_nothing_again_and_sees_what_was_removed_meanwhile(ill: FaultStage) -> None:
    ill.annotate("gpu-1 xid=79")
    ill.faults = ill.restarted()
    assert ill.annotate("gpu-1 xid=79") == []
    ill.faults, ill.node = ill.restarted(), None
    ill.faults.step()
    assert len(ill.injected()) == 1, "an API server that is away changes nothing"
    ill.annotate(None)
    assert ill.injected() == []


def test_faults_of_the_state_file_are_left_alone(ill: FaultStage) -> None:
    ill.gpus.inject(ill.first, "ecc")
    ill.annotate("gpu-1 ecc")
    ill.annotate(None)
    assert [str(one.fault) for one in ill.gpus.injected("")] == ["ecc"]


def test_while_the_simulated_driver_is_unavailable_it_is_tried_again(ill: FaultStage) -> None:
    described = parse_groups("1xl4-24gb", "node-a")
    ill.gpus.replace_node(replace(described, unavailable="no driver"))
    with pytest.raises(DriverUnavailableError):
        ill.annotate("gpu-0 ecc")
    ill.gpus.replace_node(described)
    assert ill.annotate("gpu-0 ecc") != []


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
    (use,) = stage.step()
    assert (use.gpu_uuid, use.gi_id, use.claim_uid, use.pids) == (GPU, None, "u1", ())
    assert use.since == stage.entries[0].changed_at
    assert use.steps == parse_steps(STEPS)
    assert stage.step() == (use,)
    assert len(stage.gets) == 1
    stage.entries = [entry(state=State.UNPREPARING)]
    assert stage.step() == ()


def test_a_partition_is_used_as_an_instance_and_admin_access_uses_nothing(stage: Stage) -> None:
    made, missing = device(partition=partition(gi_id=7)), device(partition=partition())
    stage.entries = [entry("u1", made, missing, device(request="look", admin_access=True))]
    assert [use.gi_id for use in stage.step()] == [7]


@pytest.mark.parametrize("annotation", [None, "nonsense", '[{"memory": "-5"}]', "[" * 4000])
def test_without_a_right_annotation_nothing_is_used(tmp_path: Path, annotation: str | None) -> None:
    stage = Stage(tmp_path, annotation)
    assert stage.step() == ()
    assert stage.step() == ()
    assert len(stage.gets) == 1


def test_a_claim_that_was_replaced_or_is_gone_uses_nothing(stage: Stage) -> None:
    stage.claim["metadata"]["uid"] = "other"
    assert stage.step() == ()
    stage.entries = [entry("u2")]
    stage.error = NotFoundError("gone")
    assert stage.step() == ()
    stage.entries, stage.error = [entry("other")], ApiUnreachableError("away")
    with pytest.raises(ApiUnreachableError):
        stage.step()
    stage.error = None
    assert len(stage.step()) == 1, "an API server that is away is asked again"


def test_uses_by_process_id_stay(stage: Stage) -> None:
    mine = SimulatedUse(key="mine", gpu_uuid=GpuUuid("GPU-b"), since=1.0, steps=parse_steps(STEPS), pids=(7,))
    change_uses(stage.file, lambda _: (mine,))
    assert stage.step()[0] == mine
    stage.entries = []
    assert stage.step() == (mine,)


def test_containers_of_claims_on_simulated_gpus_name_each_claim(tmp_path: Path) -> None:
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
