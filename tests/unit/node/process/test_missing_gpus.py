"""GPUs that are published although they are not found any more."""

import json
from collections.abc import Collection
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from dra_driver.core.errors import StorageError
from dra_driver.core.model.fabric import Fabric, FabricState
from dra_driver.core.model.gpu import Gpu, LeftOutGpu, Snapshot
from dra_driver.core.model.ids import GpuUuid
from dra_driver.node.process.missing_gpus import (
    GRACE_S,
    KEEP_S,
    KnownGpu,
    MissingGpu,
    MissingGpuTracker,
    encode,
    plain,
    read,
)
from dra_driver.node.slices.build import build_devices
from dra_driver.node.slices.gates import ApiServerFeatures
from tests.fakes.simulated_gpus import SimulatedBackend
from tests.unit.node.slices.gpus import H100, instance, mig_gpu

EIGHT = SimulatedBackend.from_spec("8xh100-sxm5-80gb", "node-a").snapshot()
LOST = EIGHT.gpus[3]
SEVEN = replace(EIGHT, gpus=tuple(gpu for gpu in EIGHT.gpus if gpu is not LOST))
FEATURES = ApiServerFeatures(counters=True, taints=True, taints_1_35=True)


class Node:
    """Its file, its clock, and what its claims have."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "known.json"
        self.now = 1_000_000.0
        self.held: Collection[GpuUuid] = ()
        self.fails = False
        self.restart()

    def restart(self) -> None:
        self.known = MissingGpuTracker(self.path, self.holders, now=lambda: self.now, clock=lambda: self.now)

    def holders(self) -> Collection[GpuUuid]:
        if self.fails:
            raise StorageError("the journal is damaged")
        return self.held

    def names(self, snapshot: Snapshot) -> list[str]:
        return [gpu.device_name for gpu in self.known.complete(snapshot).gpus]


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


def test_a_missing_gpu_stays_for_fifteen_minutes(node: Node) -> None:
    assert node.known.complete(EIGHT) is EIGHT
    assert node.known.complete(SEVEN).gpus == EIGHT.gpus
    assert node.known.missing == {LOST.uuid: MissingGpu(since=1_000_000.0)}, "lost at once: it was seen"
    node.now += 5.0
    assert node.known.complete(EIGHT) is EIGHT, "it comes back as the same device"
    assert node.known.missing == {}
    node.names(SEVEN)
    assert node.known.missing == {LOST.uuid: MissingGpu(since=node.now)}, "the time begins again"
    node.now += KEEP_S - 1
    assert "gpu-3" in node.names(SEVEN)
    node.now += 1
    assert node.known.complete(SEVEN) is SEVEN
    assert node.known.missing == {}


@pytest.mark.parametrize("why", ["claim", "listed", "unknown"])
def test_it_stays_longer_for_a_reason(node: Node, why: str) -> None:
    node.known.complete(EIGHT)
    seven = replace(SEVEN, left_out=(LeftOutGpu(label=LOST.uuid, reason="hangs"),)) if why == "listed" else SEVEN
    node.held = {LOST.uuid} if why == "claim" else ()
    node.fails = why == "unknown"
    node.names(seven)
    node.now += 10 * KEEP_S
    assert "gpu-3" in node.names(seven)
    node.held, node.fails = (), False
    assert "gpu-3" not in node.names(SEVEN)


def test_it_is_still_missing_after_a_restart(node: Node) -> None:
    node.names(EIGHT)
    node.restart()
    assert "gpu-3" in node.names(SEVEN)
    node.now += KEEP_S - 1
    node.restart()
    assert "gpu-3" in node.names(SEVEN)
    assert node.known.missing == {LOST.uuid: MissingGpu(since=1_000_000.0)}, "not awaited: that it is lost was told"
    node.now += 1
    assert "gpu-3" not in node.names(SEVEN)


def test_a_gpu_that_was_not_seen_since_the_start_is_awaited_for_two_looks(node: Node) -> None:
    """GPUs do not all answer at once after the driver was loaded; a restart meanwhile changes nothing."""
    node.names(EIGHT)
    node.now += 3600.0
    node.restart()
    begun = node.now
    assert "gpu-3" in node.names(SEVEN)
    assert node.known.missing == {LOST.uuid: MissingGpu(since=begun, awaited=True)}
    node.now += GRACE_S - 1
    assert node.known.missing[LOST.uuid].awaited
    node.now += 1
    assert node.known.missing == {LOST.uuid: MissingGpu(since=begun)}
    node.now -= 1
    node.restart()
    assert node.known.missing[LOST.uuid].awaited, "no look has been made"
    node.names(SEVEN)
    assert node.known.missing[LOST.uuid].awaited
    node.names(EIGHT)
    node.names(SEVEN)
    assert not node.known.missing[LOST.uuid].awaited, "it has been seen"


def published(node: Node, snapshot: Snapshot) -> dict[str, str]:
    devices = build_devices(node.known.complete(snapshot), {}, FEATURES).devices
    return {device.name: str(device.attributes["uuid"].string) for device in devices if "-mig-" not in device.name}


def test_another_gpu_does_not_get_the_name_while_a_claim_has_it(node: Node) -> None:
    other: Gpu = replace(LOST, uuid=GpuUuid("GPU-00000000-0000-0000-0000-000000000000"))
    node.names(EIGHT)
    node.held = {LOST.uuid}
    eight = replace(SEVEN, gpus=tuple(sorted((*SEVEN.gpus, other), key=lambda gpu: gpu.minor)))
    assert published(node, eight)["gpu-3"] == LOST.uuid
    node.held = ()
    assert published(node, eight)["gpu-3"] == other.uuid


def test_what_passes_is_not_kept() -> None:
    """Else the file is written with each partition, and a missing GPU is published with what nothing has any more."""
    free = mig_gpu(H100, fabric=Fabric(state=FabricState.IN_PROGRESS))
    cut = replace(free, mig_enabled=True, mig_mode_owned=True, mig_instances=(instance(free, 19, 6, owned=True),))
    assert plain(cut) == plain(free) == replace(free, fabric=None)
    foreign = replace(free, fabric=None, mig_enabled=True, mig_instances=(instance(free, 9, 4),))
    assert plain(foreign) == foreign


def test_the_file_and_the_result_are_the_same_while_nothing_changes(node: Node) -> None:
    node.names(EIGHT)
    before = node.path.stat().st_ino
    cut = replace(EIGHT, gpus=(replace(EIGHT.gpus[0], fabric=Fabric(state=FabricState.COMPLETED)), *EIGHT.gpus[1:]))
    node.names(cut)
    node.names(EIGHT)
    assert node.path.stat().st_ino == before
    assert node.known.complete(SEVEN) is node.known.complete(SEVEN), "callers compare by identity"
    found = node.known.complete(SEVEN)
    node.held = {LOST.uuid}
    assert node.known.complete(SEVEN) == found
    assert node.path.stat().st_mode & 0o777 == 0o600


def test_the_file_has_everything(node: Node) -> None:
    free = mig_gpu(H100)
    gpu = replace(free, mig_enabled=True, mig_instances=(instance(free, 9, 4), instance(free, 19, 0, whole=False)))
    node.path.write_bytes(encode([KnownGpu(gpu=gpu, gone_since=5.0)]))
    assert read(node.path) == [KnownGpu(gpu=gpu, gone_since=5.0)]


def wrong(**changes: Any) -> Any:
    entry = json.loads(encode([KnownGpu(gpu=LOST)]))["gpus"][0]
    return {**entry, "gpu": {**entry["gpu"], **changes}}


def wrong_time(since: float) -> Any:
    return {**wrong(), "goneSince": since}


@pytest.mark.parametrize(
    "entry",
    [5, {}, {"gpu": 5}, wrong(minor="0"), wrong(minor=-1), wrong(minor=True), wrong(uuid="G" * 99), wrong(uuid=None),
     wrong(mig_profiles={}), wrong(mig_profiles=[{"name": "x"}]), wrong(cuda_compute_capability=[9]),
     wrong(fabric={"state": "odd"}), wrong_time(-1e20), wrong_time(1e300)],
)  # fmt: skip
def test_a_wrong_entry_does_not_stop_the_others(node: Node, entry: object) -> None:
    document = json.loads(encode([KnownGpu(gpu=LOST)]))
    node.path.write_text(json.dumps({**document, "gpus": [entry, *document["gpus"]]}))
    assert read(node.path) == [KnownGpu(gpu=LOST)]


@pytest.mark.parametrize("text", ["", "{", "[]", '{"version": 2, "gpus": []}', '{"version": 1}', "[" * 100_000, "\xff"])
def test_a_file_that_cannot_be_used_is_written_anew(node: Node, text: str) -> None:
    node.path.write_text(text)
    node.restart()
    assert node.names(SEVEN)[3] == "gpu-4"
    assert len(read(node.path)) == 7


def test_a_full_disk_is_not_fatal_and_tried_again(node: Node) -> None:
    node.path.mkdir()
    assert len(node.names(EIGHT)) == 8
    node.path.rmdir()
    node.names(EIGHT)
    assert len(read(node.path)) == 8
