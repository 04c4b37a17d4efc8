"""A node that reboots, and a node whose journal is lost or damaged."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.fakes.live_claims import Obj, Scheduler, gpu, parameters, partition, share
from tests.fakes.live_node import MPS_ON_GPU_3, LiveNode, until

SPEC = "4xh100-sxm5-80gb"
SOON_S = 10.0


@pytest.fixture
def node() -> Iterator[LiveNode]:
    with LiveNode(SPEC, policy=MPS_ON_GPU_3, mps=True) as made:
        yield made


@pytest.fixture
def claims(node: LiveNode) -> dict[str, Obj]:
    scheduler = Scheduler(node)
    slicing = parameters("GpuConfig", strategy="TimeSlicing", timeSlicingConfig={"interval": "Long"})
    found = {
        "partition": scheduler.allocate_soon(partition("1g.10gb", of=[node.gpus[0]])),
        "larger": scheduler.allocate_soon(partition("3g.40gb", of=[node.gpus[0]])),
        "whole": scheduler.allocate_soon(gpu(of=[node.gpus[1]])),
        "sliced": scheduler.allocate_soon(gpu(of=[node.gpus[2]]), config=[slicing]),
        "share": scheduler.allocate_soon(share("10Gi", 20)),
    }
    assert {name: node.prepare(each).error for name, each in found.items()} == dict.fromkeys(found, "")
    return found


def test_after_a_reboot_pods_that_restart_are_prepared_anew(node: LiveNode, claims: dict[str, Obj]) -> None:
    before = len(node.instances()), node.gpus_in_mig_mode(), sorted(key for _, key in node.notes())
    assert before[0] == 2
    node.power_off()
    assert len(node.states()) == len(claims)
    assert node.power_on() < SOON_S
    until(lambda: node.leftovers() == [], f"a clean node: {node.leftovers()}", SOON_S)

    again = {name: node.prepare(claims[name]) for name in ("partition", "whole", "share")}
    assert {name: answer.error for name, answer in again.items()} == dict.fromkeys(again, "")
    assert len(node.instances()) == 1
    assert set(node.cdi_files()) == {claims[name]["uid"] for name in again}
    assert {boot for (boot,) in node.rows("SELECT boot_id FROM claim")} == {"second-boot"}
    assert sorted(key for _, key in node.notes()) == ["compute-mode", "mig-mode"]
    for claim in claims.values():
        assert node.unprepare(claim) == ""
    assert node.leftovers() == []


def test_the_kubelet_may_call_before_anything_else_after_a_reboot(node: LiveNode, claims: dict[str, Obj]) -> None:
    node.power_off()
    node.power_on()
    for name in ("larger", "sliced"):
        assert node.unprepare(claims[name]) == ""
    scheduler = Scheduler(node)
    for claim in claims.values():
        scheduler.release(claim)
    other = scheduler.allocate_soon(gpu(of=[node.gpus[0]]))
    assert node.prepare(other).error == ""
    assert node.instances() == []
    assert node.gpus_in_mig_mode() == []


def test_one_damaged_entry_stops_no_other_after_a_reboot(node: LiveNode, claims: dict[str, Obj]) -> None:
    """The journal is set aside; nothing of the first boot exists, so nothing has to be known of it."""
    node.power_off()
    node.change_journal(f"UPDATE claim SET changed_at = 'never' WHERE uid = '{claims['whole']['uid']}'")  # noqa: S608
    assert node.power_on() < SOON_S
    assert [path.name for path in Path(node.plugin).glob("state.db.damaged-*Z")] != []
    for name in ("partition", "whole", "sliced"):
        assert node.prepare(claims[name]).error == "", name
    for claim in claims.values():
        assert node.unprepare(claim) == ""
    until(lambda: node.leftovers() == [], f"a clean node: {node.leftovers()}", SOON_S)


def lose(node: LiveNode) -> None:
    for path in node.plugin.glob("state.db*"):
        path.unlink()


def damage(node: LiveNode) -> None:
    for path in node.plugin.glob("state.db-*"):
        path.unlink()
    (node.plugin / "state.db").write_bytes(b"\x00damaged" * 2048)


def damage_one_entry(node: LiveNode) -> None:
    """Change one value of one claim to what the driver never writes, as a flipped bit does."""
    node.change_journal("UPDATE claim SET changed_at = 'never' WHERE uid = (SELECT max(uid) FROM claim)")


@pytest.mark.parametrize("break_journal", [lose, pytest.param(damage, marks=pytest.mark.slow), damage_one_entry])
def test_nothing_is_left_on_gpus_whose_journal_was_lost(break_journal: Callable[[LiveNode], None]) -> None:
    with LiveNode(SPEC, policy=MPS_ON_GPU_3, mps=True) as node:
        scheduler = Scheduler(node)
        slicing = parameters("GpuConfig", strategy="TimeSlicing", timeSlicingConfig={"interval": "Long"})
        under_mps = parameters("MigDeviceConfig", strategy="MPS", mpsConfig={"defaultActiveThreadPercentage": 40})
        zero, one, two, _ = node.gpus
        claims = [
            scheduler.allocate_soon(partition("1g.10gb", of=[zero])),
            scheduler.allocate_soon(partition("2g.20gb", of=[zero]), config=[under_mps]),
            scheduler.allocate_soon(partition("3g.40gb", of=[one])),
            scheduler.allocate_soon(gpu(of=[two]), config=[slicing]),
            scheduler.allocate_soon(share("10Gi", 20)),
            scheduler.allocate_soon(share("20Gi", 30)),
        ]
        prepared = list(claims)
        answers = [node.prepare(each) for each in prepared]
        assert [answer.error for answer in answers] == [""] * len(claims)
        there = node.instances(), node.gpus_in_mig_mode(), sorted(node.mps_processes()), node.notes()
        assert [len(each) for each in there] == [3, 2, 2, 4]
        gone = prepared.pop(2)
        node.kill()
        scheduler.release(gone)
        break_journal(node)
        node.start()
        until(lambda: len(node.states()) == len(prepared), "the journal to be rebuilt")
        assert sorted(node.mps_processes()) == there[2], "under the feet of containers"
        assert node.gpus_in_mig_mode() == [zero], "the partition of the claim that is over has gone"
        answers.pop(2)
        assert [node.prepare(each) for each in prepared] == answers
        for each in prepared:
            assert node.unprepare(each) == ""
        assert node.leftovers() == []
