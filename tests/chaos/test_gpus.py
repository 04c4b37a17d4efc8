"""A GPU is lost, hangs, is reset, reports wrong values, or loses a partition: the other GPUs go on."""

import json
import time
from pathlib import Path
from typing import Any

import pytest
import yaml

from dra_driver.hardware.gpu.simulated.faults import FailureMode
from tests.chaos.stage import CUT, SPARE, FaultRecord, Stage
from tests.fakes.live_claims import gpu
from tests.fakes.live_node import until

LAST = 5  # the minor of a GPU that no claim has
CALM_S = 120.0  # longer than a GPU has to be calm until its taint goes


class Described:
    def __init__(self, folder: Path) -> None:
        self.path = folder / "gpus.yaml"
        self.gpus: list[dict[str, Any]] = [{"model": "h100-sxm5-80gb"} for _ in range(LAST + 1)]
        self.write()

    def write(self) -> None:
        fresh = self.path.with_suffix(".new")
        fresh.write_text(yaml.safe_dump({"gpus": self.gpus}))
        fresh.replace(self.path)

    def change(self, minor: int, **fields: object) -> None:
        self.gpus[minor] |= fields
        self.write()


@pytest.fixture
def described(tmp_path: Path) -> Described:
    return Described(tmp_path)


def offered(stage: Stage, minor: int) -> bool:
    """Whether new claims may get the whole GPU: it is published, and nothing repels them."""
    devices = [device for item in stage.node.slices() for device in item["spec"].get("devices") or ()]
    found = [device for device in devices if device["name"] == f"gpu-{minor}"]
    return bool(found) and not any(taint["effect"] != "None" for taint in found[0].get("taints") or ())


@pytest.mark.fault("gpu-lost")
def test_a_lost_gpu_is_withdrawn_and_comes_back(described: Described, fault: FaultRecord) -> None:
    with Stage(spec=str(described.path)) as stage:
        described.change(LAST, lost="fell off the bus")
        until(lambda: not offered(stage, LAST), "the lost GPU to be withdrawn", 30.0)
        seen = stage.wait_logged("fell off the bus")
        stage.assert_intact()
        claim = stage.scheduler.allocate_soon(gpu(of=[stage.node.gpus[SPARE]]))
        assert stage.prepare(claim) == ""
        stage.drop(claim)
        described.change(LAST, lost=None)
        since = time.monotonic()
        until(lambda: offered(stage, LAST), "the GPU to be offered again", CALM_S)
        stage.finish(fault, since, seen=seen)


@pytest.mark.fault("gpu-lost-held")
def test_a_lost_gpu_whose_claim_ends_leaves_nothing(described: Described, fault: FaultRecord) -> None:
    with Stage(spec=str(described.path)) as stage:
        described.change(CUT, lost="fell off the bus")
        claim = stage.end("partition")
        stage.wait_logged("fell off the bus")
        seen = stage.node.unprepare(claim, 20.0)
        assert "does not answer: fell off the bus" in seen
        stage.assert_intact()
        described.change(CUT, lost=None)
        since = time.monotonic()
        until(lambda: stage.node.unprepare(claim) == "", "the unprepare", 60.0)
        stage.scheduler.release(claim)
        until(lambda: stage.node.instances() == [], f"the partition to go: {stage.node.instances()}", 60.0)
        stage.finish(fault, since, seen=seen)


@pytest.mark.fault("gpu-hung")
def test_a_gpu_that_hangs_holds_nothing_up(stage: Stage, fault: FaultRecord) -> None:
    hung = stage.node.gpus[LAST]
    stage.node.hardware.set_troubles(hung, FailureMode.HANGS)
    until(lambda: not offered(stage, LAST), "the hung GPU to be withdrawn", 60.0)
    seen = stage.wait_logged("does not answer")
    stage.assert_intact()
    claim = stage.scheduler.allocate_soon(gpu(of=[stage.node.gpus[SPARE]]))
    began = time.monotonic()
    assert stage.prepare(claim, 45.0) == ""
    assert time.monotonic() - began < 5.0
    stage.drop(claim)
    stage.node.hardware.set_troubles(hung)
    since = time.monotonic()
    until(lambda: offered(stage, LAST), "the GPU to be offered again", CALM_S)
    stage.finish(fault, since, seen=seen)


@pytest.mark.fault("gpu-reset")
def test_a_reset_gpu_loses_its_partitions_and_no_claim_of_others(stage: Stage, fault: FaultRecord) -> None:
    path = stage.node.plugin / "simulated-gpus.json"
    state = json.loads(path.read_text())
    state["gpus"][stage.node.gpus[CUT]]["instances"] = []
    state["changes"] += 1
    fresh = path.with_suffix(".reset")
    fresh.write_text(json.dumps(state))
    fresh.replace(path)
    claim = stage.lose("partition")
    since = time.monotonic()
    seen = stage.prepare(claim, 20.0)
    assert "which no longer exists" in seen
    stage.assert_intact()
    stage.drop(claim)
    stage.finish(fault, since, seen=seen)


@pytest.mark.fault("gpu-instance-vanishes")
def test_a_partition_destroyed_from_outside_is_noticed(stage: Stage, fault: FaultRecord) -> None:
    cut = stage.node.gpus[CUT]
    instances = stage.node.hardware_state()["gpus"][cut]["instances"]
    stage.node.hardware.foreign_destroy(cut, instances[0]["gi"])
    claim = stage.lose("partition")
    since = time.monotonic()
    seen = stage.prepare(claim, 20.0)
    assert "which no longer exists" in seen
    stage.drop(claim)
    stage.finish(fault, since, seen=seen)


@pytest.mark.parametrize(
    ("wrong", "where", "published"),
    [
        ({"memoryMiB": 1}, ("capacity", "memory"), {"value": "1Mi"}),
        ({"productName": "~$%&" * 20}, ("attributes", "productName"), {"string": "~$%&" * 16}),
        ({"pciBusId": "ffff:ff:1f.0"}, ("attributes", "resource.kubernetes.io/pciBusID"), {"string": "ffff:ff:1f.0"}),
        ({"numaNode": 1023}, ("attributes", "resource.kubernetes.io/numaNode"), {"int": 1023}),
    ],
    ids=["1 MiB", "a name of garbage", "an odd address", "an odd NUMA node"],
)
@pytest.mark.fault("gpu-wrong-values")
def test_wrong_values_of_one_gpu_concern_that_gpu(
    wrong: dict[str, object],
    where: tuple[str, str],
    published: dict[str, object],
    described: Described,
    fault: FaultRecord,
) -> None:
    with Stage(spec=str(described.path)) as stage:

        def shown() -> object:
            devices = [device for item in stage.node.slices() for device in item["spec"].get("devices") or ()]
            (found,) = (device for device in devices if device["name"] == f"gpu-{LAST}")
            return found[where[0]].get(where[1])

        right = shown()
        described.change(LAST, **wrong)
        until(lambda: shown() == published, f"{where[1]} to be {published}, not {shown()}", 30.0)
        stage.assert_intact()
        assert offered(stage, SPARE)
        claim = stage.scheduler.allocate_soon(gpu(of=[stage.node.gpus[SPARE]]))
        assert stage.prepare(claim) == ""
        stage.drop(claim)
        for field in wrong:
            del described.gpus[LAST][field]
        described.write()
        since = time.monotonic()
        until(lambda: shown() == right and offered(stage, LAST), "the GPU to be offered as before", CALM_S)
        stage.finish(
            fault, since, seen=f"{where[1].rpartition('/')[2]} is published as {next(iter(published.values()))}"
        )
