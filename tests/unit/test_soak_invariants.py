"""Each invariant of `make soak` is broken once in plain facts, and named."""

from dataclasses import replace

import pytest

from tests.soak.invariants import EARLY_CLAIMS, PER, Facts, Grant, Memory, breaches, grown, slower, verdict

POOL = "n/d"
CUT = "gpu-1-mig-1g10gb-19-0"
GOOD = Facts(
    answered={"a": ["gpu-0"], "b": [CUT]},
    journal={"a": "prepared", "b": "prepared"},
    journal_devices={"a": ["gpu-0"], "b": [CUT]},
    cdi={"a": ["gpu-0"], "b": [CUT]},
    api={"a": [Grant(pool=POOL, device="gpu-0")], "b": [Grant(pool=POOL, device=CUT, size=1)]},
    instances=[(1, 19, 0, 1)],
    memory={f"{POOL} gpu-0": 100},
)


def test_a_partition_that_the_journal_notes_for_destruction_is_no_leak() -> None:
    """A GPU that fell ill may refuse it for a while."""
    left = replace(GOOD, instances=[*GOOD.instances, (1, 19, 3, 1)], orphans=[(1, 19, 3)])
    assert breaches(left) == []


def share(uid: str, memory: int, percent: int) -> Grant:
    return Grant(pool=POOL, device="gpu-0", share=uid, memory=memory, percent=percent)


@pytest.mark.parametrize(
    ("grants", "sentence"),
    [
        ([Grant(pool=POOL, device="gpu-0")] * 2, "granted twice: gpu-0 and gpu-0"),
        (
            [Grant(pool=POOL, device="gpu-1"), Grant(pool=POOL, device=CUT, size=1)],
            "granted twice: gpu-1 and gpu-1-mig",
        ),
        (
            [Grant(pool=POOL, device="gpu-1-mig-3g40gb-9-0", size=4), Grant(pool=POOL, device=CUT, size=1)],
            "granted twice: gpu-1-mig-3g40gb-9-0 and gpu-1-mig",
        ),
        ([share("x", 1, 1), Grant(pool=POOL, device="gpu-0")], "granted twice: gpu-0 and gpu-0"),
        ([share("x", 1, 1), share("x", 1, 1)], "granted twice: gpu-0 and gpu-0"),
        ([share("x", 60, 10), share("y", 60, 10)], "GiB of"),
        ([share("x", 10, 60), share("y", 10, 60)], "120 % of its compute"),
    ],
    ids=["whole", "whole and part", "overlap", "share and whole", "one share", "memory", "compute"],
)
def test_a_device_granted_twice_is_named(grants: list[Grant], sentence: str) -> None:
    answered = {str(number): [grant.device] for number, grant in enumerate(grants)}
    api = {str(number): [grant] for number, grant in enumerate(grants)}
    found = breaches(replace(GOOD, answered=answered, api=api))
    assert any(sentence in breach for breach in found), found


def test_neighbours_and_admins_are_no_double_grant() -> None:
    grants = [
        Grant(pool=POOL, device="gpu-1-mig-3g40gb-9-4", size=4),
        Grant(pool=POOL, device=CUT, size=1),
        share("x", 50, 50),
        share("y", 50, 50),
        Grant(pool=POOL, device="gpu-1", admin=True),
        Grant(pool="other/d", device="gpu-1"),
    ]
    api = {str(number): [grant] for number, grant in enumerate(grants)}
    answered = {uid: [found[0].device] for uid, found in api.items()}
    found = breaches(replace(GOOD, answered=answered, api=api))
    assert [breach for breach in found if "twice" in breach] == []


def test_memory_that_grows_is_named_and_flat_memory_is_not() -> None:
    at = range(0, 20 * EARLY_CLAIMS, EARLY_CLAIMS // 2)
    leaking = [Memory(claims=claims, pid=1, mib=50 + claims / 1000) for claims in at]
    assert grown(leaking).is_worse is True
    assert grown([Memory(claims=claims, pid=1, mib=50 + (claims > 100)) for claims in at]).is_worse is False
    assert grown([*leaking, Memory(claims=0, pid=2, mib=50)]).is_worse is None


def test_calls_that_become_slower_are_named() -> None:
    assert slower("prepare", [5.0] * PER + [20.0] * PER).is_worse is True
    assert slower("prepare", [5.0] * PER + [6.0] * PER).is_worse is False


def test_a_short_run_is_not_called_flat() -> None:
    said = list(verdict([grown([]), slower("prepare", [5.0, 99.0]), slower("x", [5.0] * PER)]))
    assert ["not judged" in line for line in said] == [True, True, False]
    assert "flat" in said[2]
