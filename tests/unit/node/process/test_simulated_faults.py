"""Makes simulated GPUs ill as an annotation of the Node asks."""

import pytest
from msgspec.structs import replace

from dra_driver.core.errors import DriverUnavailableError
from dra_driver.core.model.mig import partition_name
from dra_driver.hardware.gpu.simulated.backend import SimulatedBackend
from dra_driver.hardware.gpu.simulated.faults import ANNOTATION
from dra_driver.hardware.gpu.simulated.spec import parse_groups
from dra_driver.kube.own_node import OwnNode
from dra_driver.node.process.simulated import SOURCE, SimulatedFaults


class Stage:
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
        self.node = OwnNode(name="node-a", annotations={} if text is None else {ANNOTATION: text})
        self.told.clear()
        self.faults.step()
        return list(self.told)

    def injected(self) -> list[tuple[str, str, int | None]]:
        return [(one.gpu, str(one.fault), one.gi_id) for one in self.gpus.injected(SOURCE)]


@pytest.fixture
def stage() -> Stage:
    return Stage()


def test_gpus_and_existing_partitions_fall_ill_as_asked_and_recover_when_it_is_removed(stage: Stage) -> None:
    """Each change is told on the Node, in the words of the annotation."""
    text = f"gpu-1 xid=79, {stage.partition} xid=94"
    assert stage.annotate(text) == [("SimulatedFault", f"simulated faults: {text}")]
    assert stage.injected() == [(stage.second, "xid=79", None), (stage.first, "xid=94", stage.gi_id)]
    assert stage.annotate(text) == []
    assert stage.annotate(None) == [("SimulatedFault", "simulated faults: none")]
    assert stage.injected() == []


def test_a_gpu_that_is_lost_can_have_another_fault_and_recover(stage: Stage) -> None:
    """The inventory does not list it then."""
    stage.annotate("gpu-0 lost")
    assert stage.annotate("gpu-0 lost, gpu-0 row-remap") != []
    assert [fault for _, fault, _ in stage.injected()] == ["lost", "row-remap=pending"]


def test_an_annotation_that_cannot_be_read_changes_nothing_and_is_told_once(stage: Stage) -> None:
    """What it asked for before still holds."""
    stage.annotate("gpu-0 ecc")
    ((reason, text),) = stage.annotate("gpu-0 fire")
    assert reason == "SimulatedFaultRefused"
    assert "a fault such as xid=79" in text
    assert stage.annotate("gpu-0 fire") == []
    assert stage.injected() == [(stage.first, "ecc", None)]


def test_one_bad_order_does_not_stop_the_others(stage: Stage) -> None:
    """And each says what there is instead."""
    told = dict(stage.annotate("gpu-7 ecc, gpu-1 ecc"))
    assert "no such device, only gpu-0, gpu-1" in told["SimulatedFaultRefused"]
    told = dict(stage.annotate("gpu-0-mig-7g80gb-0-0 ecc, gpu-1 ecc"))
    assert f"does not exist now, so nothing can be wrong with it; existing ones: {stage.partition}" in told.popitem()[1]
    assert stage.injected() == [(stage.second, "ecc", None)]


def test_a_restart_tells_nothing_again_and_sees_what_was_removed_meanwhile(stage: Stage) -> None:
    """The faults are kept with the GPUs."""
    stage.annotate("gpu-1 xid=79")
    stage.faults = stage.restarted()
    assert stage.annotate("gpu-1 xid=79") == []
    stage.faults = stage.restarted()
    stage.annotate(None)
    assert stage.injected() == []


def test_faults_of_the_state_file_are_left_alone(stage: Stage) -> None:
    """A person edits it, or a test."""
    stage.gpus.inject(stage.first, "ecc")
    stage.annotate("gpu-1 ecc")
    stage.annotate(None)
    assert [str(one.fault) for one in stage.gpus.injected("")] == ["ecc"]


def test_before_the_node_object_is_known_nothing_changes(stage: Stage) -> None:
    """An API server that is away does not make GPUs well."""
    stage.annotate("gpu-1 ecc")
    stage.node = None
    stage.faults = stage.restarted()
    stage.faults.step()
    assert len(stage.injected()) == 1


def test_while_the_simulated_driver_is_unavailable_it_is_tried_again(stage: Stage) -> None:
    """The error goes to the thread, which repeats the step."""
    described = parse_groups("1xl4-24gb", "node-a")
    stage.gpus.replace_node(replace(described, unavailable="no driver"))
    with pytest.raises(DriverUnavailableError):
        stage.annotate("gpu-0 ecc")
    stage.gpus.replace_node(described)
    assert stage.annotate("gpu-0 ecc") != []
