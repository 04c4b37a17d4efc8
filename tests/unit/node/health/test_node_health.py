"""The face of the package, with a file, clocks that the tests move, and more than one process."""

import random
import shutil
from pathlib import Path
from typing import Any

import pytest

from dra_driver.core.model.health import HealthCause, HealthEvent, RecoveryAction
from dra_driver.core.model.health_rules import HealthRules
from dra_driver.core.model.ids import GpuUuid
from dra_driver.node.health import DeviceHealth, HealthState, NodeHealth
from dra_driver.node.health.fault import CALM_S
from dra_driver.node.health.node_health import UNLISTED_S
from tests.unit.node.health.world import FINE, GPU, OTHER, WALL, Node, reading, told, xid

CALM = int(CALM_S[HealthCause.XID])


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


@pytest.fixture
def health(node: Node) -> NodeHealth:
    return node.open()


def healthy(**fields: Any) -> Any:
    return lambda: reading(**{**FINE, **fields})


def test_an_xid_taints_at_once_and_goes_by_itself_after_a_reset(node: Node, health: NodeHealth) -> None:
    assert not health.observe([xid(31)])
    assert health.observe([xid(79)])
    assert told(health) == [("xid", "79", "no-new-claims")]
    assert health.look([reading(unreachable="GPU is lost")], {})
    node.run(health, 600, lambda: reading(unreachable="GPU is lost"))
    assert told(health) == [("lost", "", "no-new-claims"), ("xid", "79", "no-new-claims")]
    node.run(health, CALM_S[HealthCause.LOST] + 10, healthy())
    assert told(health) == []


def test_nothing_changes_nothing_and_writes_nothing(node: Node, health: NodeHealth) -> None:
    assert not health.look([reading(**FINE)], {})
    assert not health.tick()
    assert not health.observe([])
    health.close()
    assert list(node.folder.iterdir()) == []


def test_a_condition_survives_a_restart_with_its_time(node: Node) -> None:
    node.open().observe([xid(119)])
    node.now += 3600
    health = node.open()
    assert told(health) == [("xid", "119", "no-new-claims")]
    assert health.conditions()[0].since == WALL + 1000
    health.look([reading(recovery_action=RecoveryAction.GPU_RESET)], {})
    node.now += 10  # the process is killed, and the GPU is reset while no process looks
    health = node.open()
    node.run(health, CALM - 1, healthy())
    assert told(health)
    node.run(health, 10, healthy())
    assert told(health) == []


def test_a_calm_time_goes_on_over_a_restart(node: Node) -> None:
    health = node.open()
    health.observe([xid(119)])
    node.now += 1
    health.repaired(GPU)
    node.now += CALM - 10
    health = node.open()
    node.run(health, 9)
    assert told(health)
    node.run(health, 2)
    assert told(health) == []


def test_a_reboot_lets_errors_go_after_their_calm_time(node: Node) -> None:
    health = node.open()
    health.observe([xid(79)])
    health.look([reading(unreachable="GPU is lost")], {})
    health.close()
    node.reboot()
    health = node.open()
    assert told(health) == [("lost", "", "no-new-claims"), ("xid", "79", "no-new-claims")]
    node.run(health, CALM + 5)
    assert told(health) == [("lost", "", "no-new-claims")]
    node.run(health, CALM_S[HealthCause.LOST] + 5, healthy())
    assert told(health) == []


def test_a_reboot_does_not_heal_a_failed_remap(node: Node) -> None:
    """Not even a later process of the new boot forgets it, until a reading says otherwise."""
    node.open().look([reading(rows_failed=True, rows_pending=False)], {})
    node.reboot()
    health = node.open()
    node.run(health, 600, lambda: reading(rows_failed=None, rows_pending=None))
    health.close()
    assert told(node.open()) == [("row-remap", "failed", "no-new-claims")]


@pytest.mark.parametrize("boot_id", ["", "boot-1"])
def test_a_boot_id_that_cannot_be_read_heals_nothing(node: Node, boot_id: str) -> None:
    node.open().observe([xid(119)])
    node.boot_id = boot_id
    node.now = 2.0  # and the clock of the boot is another one: no time may be later than now
    health = node.open()
    node.run(health, 10**4 // 10)
    assert told(health) == [("xid", "119", "no-new-claims")]


def test_a_wall_clock_that_jumps_changes_no_calm_time_and_no_time_of_a_taint(node: Node, health: NodeHealth) -> None:
    """Stabilization periods are of the monotonic clock; a published time stays what it was."""
    health.observe([xid(119)])
    health.repaired(GPU)
    for shift in (-(10**7), 10**7):
        node.wall_shift = WALL + shift
        node.run(health, 2)
        assert [one.since for one in health.conditions()] == [WALL + 1000]
    node.run(health, CALM)
    assert told(health) == []


def test_a_policy_works_at_the_next_tick(node: Node, health: NodeHealth) -> None:
    health.observe([xid(79)])
    node.rules[GPU] = HealthRules(evicting_xids=frozenset({79}))
    node.run(health, 1)
    assert told(health) == [("xid", "79", "evict")]
    node.rules[GPU] = HealthRules(ignored_xids=frozenset({79}))
    assert health.tick()
    assert told(health) == []


def test_unmonitored_gpus_are_told_while_they_are(node: Node, health: NodeHealth) -> None:
    assert health.look([], {GPU: "not supported"})
    node.now += 5
    assert not health.look([], {GPU: "not supported"})
    assert told(health) == [("unmonitored", "", "counted")]
    assert health.conditions()[0].since == WALL + 1000
    assert health.look([], {})
    assert told(health) == []
    health.look([], {GPU: "not supported"})
    node.rules[GPU] = HealthRules(ignored_causes=frozenset({HealthCause.UNMONITORED}))
    assert health.tick()
    assert told(health) == []


def test_an_instances_condition_ends_with_it_and_only_where_instances_were_read(health: NodeHealth) -> None:
    health.instances({GPU: {1, 2}})
    health.observe([xid(95, gi_id=1), xid(95, gi_id=2)])
    assert not health.instances({OTHER: ()})
    assert health.instances({GPU: {2}})
    assert [(one.gi_id, one.value) for one in health.conditions()] == [(2, "95")]
    assert health.status().recoveries == {(GPU, HealthCause.XID): 1}


def test_an_error_of_an_instance_that_is_not_listed_yet_is_kept(node: Node, health: NodeHealth) -> None:
    health.instances({GPU: {1}})
    health.observe([xid(95, gi_id=2), xid(95, gi_id=3)])
    health.instances({GPU: {1}})
    health.instances({GPU: {1, 2}})
    node.now += UNLISTED_S
    health.instances({GPU: {1, 2}})
    assert [(one.gi_id, one.value) for one in health.conditions()] == [(2, "95")]
    assert health.instances({GPU: {1}})
    assert told(health) == []


def test_a_clock_that_was_ahead_before_a_reboot_does_not_date_a_taint_in_the_future(node: Node) -> None:
    """Kubernetes would count the seconds of a toleration from then, and never evict."""
    node.wall_shift = WALL + 10**9
    node.open().look([reading(unreachable="GPU is lost")], {})
    node.reboot()
    node.wall_shift = WALL
    (lost,) = node.open().conditions()
    assert lost.since == WALL + node.now


def test_an_event_of_an_instance_of_a_gpu_without_instances_is_about_the_gpu(health: NodeHealth) -> None:
    """Some drivers name instance 0; to drop it would leave a broken GPU in use."""
    health.observe([xid(95, gi_id=0)])
    health.instances({OTHER: ()})
    health.observe([xid(48, gi_id=0, gpu=OTHER)])
    assert [(one.gpu_uuid, one.gi_id) for one in health.conditions()] == [(OTHER, None), (GPU, 0)]


def test_a_forgotten_gpu_does_not_come_back_from_the_file(node: Node) -> None:
    health, other = node.open(), node.open()
    health.observe([xid(79)])
    node.now += 2
    other.tick()
    assert told(other)
    assert health.forget(GPU)
    node.now += 2
    health.tick()
    other.tick()
    node.now += 2
    health.tick()
    assert (told(health), told(other), told(node.open())) == ([], [], [])
    assert health.status().xids == {}
    health.observe([xid(48)])
    node.now += 2
    other.tick()
    assert told(health) == told(other) == [("xid", "48", "no-new-claims")]


def test_a_flood_of_xids_from_one_gpu_leaves_memory_and_disk_and_other_gpus_alone(
    node: Node, health: NodeHealth
) -> None:
    dice, writes, before = random.Random(7), 0, None  # noqa: S311 - samples, not secrets
    for second in range(10):
        for _ in range(4):
            flood = [
                HealthEvent(kind=xid(1).kind, gpu_uuid=GPU, xid=dice.randrange(10**6), count=9) for _ in range(250)
            ]
            health.observe([*flood, xid(31, gpu=OTHER)])
            node.now += 0.25
            health.tick()
            mark = node.path.stat().st_ino if node.path.exists() else None
            writes, before = writes + (mark != before), mark
        assert len(health._gpus[GPU]) <= 64, second
    assert writes <= 12
    assert node.path.stat().st_size < 32 * 1024
    assert {label for _, label in health.status().xids} <= {"other", *map(str, range(200))}
    assert health.status().xids[OTHER, "31"] == 40
    assert {one.gpu_uuid for one in health.conditions()} == {GPU}


def test_events_of_more_gpus_than_a_node_has_are_counted_out(health: NodeHealth) -> None:
    for number in range(100):
        health.observe([xid(79, gpu=GpuUuid(f"GPU-{number}"))])
    assert len(health.conditions()) == 64


def test_a_disk_that_is_full_stops_nothing_and_is_tried_again(node: Node, health: NodeHealth) -> None:
    shutil.rmtree(node.folder)
    health.observe([xid(79)])
    assert told(health) == [("xid", "79", "no-new-claims")]
    node.folder.mkdir()
    node.run(health, 2)
    assert told(node.open()) == [("xid", "79", "no-new-claims")]


def test_a_file_that_is_removed_or_overwritten_with_garbage_is_written_again(node: Node, health: NodeHealth) -> None:
    health.observe([xid(79)])
    for spoil in (node.path.unlink, lambda: node.path.write_bytes(b"garbage")):
        spoil()
        node.run(health, 2)
        assert told(node.open()) == [("xid", "79", "no-new-claims")]


def test_two_processes_of_a_rolling_update_know_the_same(node: Node) -> None:
    old = node.open()
    old.observe([xid(119)])
    new = node.open()
    node.now += 0.5
    old.observe([xid(48)])  # before the new process listens
    node.run(old, 2)
    new.tick()
    assert told(new) == told(old) == [("xid", "119", "no-new-claims")]
    assert "and XID 48" in new.conditions()[0].message
    new.repaired(GPU)
    node.now += 2
    new.tick()
    old.tick()
    assert "Recovery detected" in old.conditions()[0].message
    node.now += 2
    old.observe([xid(119)])  # the new one does not hear it
    node.now += 2
    old.tick()
    old.close()
    node.run(new, CALM + 10)
    assert told(new) == [("xid", "119", "no-new-claims")]
    assert "Recovery detected" not in new.conditions()[0].message


def test_a_process_that_ends_with_unsaved_news_saves_them(node: Node) -> None:
    """Writes are limited to five in five seconds; close does not wait."""
    health, numbers = node.open(), (79, 48, 62, 64, 74, 95, 119)
    for number in numbers:
        health.observe([xid(number)])
    assert len(node.open()._gpus[GPU]) == 5
    health.close()
    assert {key.xid for key in node.open()._gpus[GPU]} == set(numbers)


def test_metrics_show_states_their_time_and_recoveries(node: Node, health: NodeHealth) -> None:
    health.look([reading(**FINE)], {})
    node.now += 7
    assert health.status().devices == (DeviceHealth(gpu_uuid=GPU, gi_id=None, state=HealthState.HEALTHY, seconds=7.0),)
    health.observe([xid(119), xid(95, gi_id=2)])
    health.repaired(GPU)
    node.now += 3
    states = {one.gi_id: (one.state, one.seconds) for one in health.status().devices}
    assert states == {None: (HealthState.RECOVERING, 3.0), 2: (HealthState.RECOVERING, 3.0)}
    node.run(health, CALM)
    assert [(one.gi_id, one.state) for one in health.status().devices] == [(None, HealthState.HEALTHY)]
    assert health.status().recoveries == {(GPU, HealthCause.XID): 2}
