"""A real node process loses its journal while GPUs have partitions, shares and settings; then the claims end."""

from collections.abc import Callable

import pytest

from tests.fakes.live_claims import Scheduler, gpu, parameters, partition, share
from tests.fakes.live_node import MPS_ON_GPU_3, LiveNode, until

SPEC = "4xh100-sxm5-80gb"


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


@pytest.mark.parametrize("break_journal", [lose, damage, damage_one_entry])
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
