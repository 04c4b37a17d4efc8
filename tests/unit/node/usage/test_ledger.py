"""Peaks, energy, last use and suggestions; rows that end leave after a stated time, and are bounded."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from dra_driver.core.model.ids import GpuUuid
from dra_driver.core.model.terms import Form
from dra_driver.core.model.usage import EnoughMemory, GpuUsage, Profile, fit
from dra_driver.node.usage.answers import document
from dra_driver.node.usage.ledger import EnergyUser, Row, RowUse, UsageLedger, divided, fold, joules_since
from dra_driver.node.usage.values import Basis, ContainerRef, DeviceUse, GpuUse, JoinedUsage, Knows, SeenProcess
from tests.unit.node.usage.claims import GIB, NOW, claim, pod
from tests.unit.node.usage.test_join import GPU, share, use

MAIN, SIDE = (ContainerRef(pod=pod("llm-0"), container=name) for name in ("main", "side"))


def process(pid: int, gib: int | None, sm: int | None = 10, container: ContainerRef = MAIN) -> SeenProcess:
    return SeenProcess(pid=pid, memory_bytes=None if gib is None else gib * GIB, sm_percent=sm, container=container)


def device(*processes: SeenProcess, name: str = "llm", number: int = 1, containers: int = 1) -> DeviceUse:
    return DeviceUse(
        claim=claim(name),
        assigned=share(number),
        processes=processes,
        used_bytes=sum(each.memory_bytes or 0 for each in processes),
        sm_percent=sum(each.sm_percent or 0 for each in processes),
        containers=(MAIN, SIDE)[:containers],
    )


def look(*devices: DeviceUse, energy: int | None = None, elapsed_s: float = 10.0, **fields: object) -> JoinedUsage:
    reading = GpuUsage(gpu_uuid=GPU, memory_total=80 * GIB, energy_mj=energy)
    gpu = GpuUse(device="gpu-0", gpu_uuid=GPU, reading=replace(reading, **fields))
    return JoinedUsage(node="n", at=NOW, elapsed_s=elapsed_s, knows=Knows(), gpus=(gpu,), devices=devices)


def folded(*looks: JoinedUsage, every_s: float = 10.0, window_s: float = 600.0) -> UsageLedger:
    ledger = UsageLedger()
    for number, joined in enumerate(looks):
        ledger = fold(ledger, joined, number * every_s, window_s=window_s, keep_ended_s=300.0)
    return ledger


def only(ledger: UsageLedger) -> Row:
    (row,) = ledger.rows.values()
    return row


def test_the_peak_is_that_of_the_window() -> None:
    big, small = look(device(process(1, 12))), look(device(process(1, 4)))
    assert only(folded(big, small)).peak_bytes == 12 * GIB
    assert only(folded(big, small, every_s=601.0)).peak_bytes == 4 * GIB
    assert folded(big, small).covered_s(10.0, 600.0) == 10.0
    assert folded(big, small).covered_s(900.0, 600.0) == 600.0


def told_idle(*looks: JoinedUsage) -> int | None:
    """What ``/usage`` says after an hour in which nothing was seen, and these looks."""
    ledger = folded(look(), look(), *looks, every_s=3600.0)
    found: int | None = document(looks[-1], ledger, window_s=3600.0)["claims"][0]["devices"][0]["idleSeconds"]
    return found


def test_a_device_is_idle_since_it_was_first_seen_without_use() -> None:
    idle, used = look(device()), look(device(process(1, 4)))
    blind = look(replace(device(), processes=None, used_bytes=None, sm_percent=None))
    assert told_idle(idle) == 0
    assert told_idle(idle, idle, idle) == 20
    assert told_idle(idle, idle, used) == 0
    assert told_idle(used, idle) == 10
    assert told_idle(idle, idle, blind) is None
    assert told_idle(idle, blind, idle) == 0, "while it is not known, it may have been used"
    assert told_idle(idle, look(device(), elapsed_s=7200.0)) == 30, "nothing is known of a gap between two looks"


def test_containers_have_rows_of_their_own() -> None:
    ledger = folded(look(device(process(1, 4), process(2, 3), containers=2)))
    assert {key.container: row.use.used_bytes for key, row in ledger.rows.items()} == {"main": 7 * GIB, "side": 0}
    both = device(process(1, 4), process(2, 3, 0, SIDE), containers=2)
    ledger = folded(look(both))
    assert {key.container: row.use.is_used for key, row in ledger.rows.items()} == {"main": True, "side": False}
    assert {key.container: row.last_used for key, row in ledger.rows.items()} == {"main": NOW, "side": None}


def test_what_cannot_be_divided_is_in_a_row_of_its_own() -> None:
    """Memory of a device that two containers share and whose processes are not known."""
    whole = DeviceUse(
        claim=claim(), assigned=use(), basis=Basis.DEVICE, used_bytes=9 * GIB, sm_percent=30, containers=(MAIN, SIDE)
    )
    ledger = folded(look(whole))
    assert {key.container: row.use.used_bytes for key, row in ledger.rows.items()} == {
        "main": None, "side": None, "": 9 * GIB,
    }  # fmt: skip


def test_an_ended_claim_leaves_after_a_stated_time() -> None:
    ledger = folded(look(device(process(1, 4)), energy=0), look(device(process(1, 4)), energy=1000), look())
    row = only(ledger)
    assert (row.use.used_bytes, row.joules, row.ended_s) == (0, 1.0, 20.0)
    assert fold(ledger, look(), 319.0, window_s=600.0, keep_ended_s=300.0).rows
    assert not fold(ledger, look(), 320.0, window_s=600.0, keep_ended_s=300.0).rows


def test_a_container_whose_use_is_not_known_for_a_while_has_not_ended() -> None:
    """The kubelet restarts: its containers' use is unknown, not 0, and their last energy stays."""
    seen = look(device(process(1, 4)), energy=0)
    blind = look(replace(device(), processes=None, containers=None, used_bytes=None, sm_percent=None), energy=0)
    ledger = folded(seen, blind)
    rows = {key.pod: row for key, row in ledger.rows.items()}
    assert (rows["llm-0"].use, rows["llm-0"].ended_s) == (RowUse(), None)
    assert rows["llm-0"].peak_bytes == 4 * GIB
    (again,) = (row for key, row in folded(seen, blind, seen).rows.items() if key.pod)
    assert (again.use.used_bytes, again.ended_s) == (4 * GIB, None)
    gone = folded(seen, blind, look())
    assert {row.ended_s for row in gone.rows.values()} == {20.0}


def test_the_peak_of_a_whole_gpu_counts_once_when_its_processes_are_not_known_for_a_while() -> None:
    seen = replace(device(process(1, 30)), assigned=use())
    blind = replace(seen, processes=None, containers=None, basis=Basis.DEVICE)
    joined = look(blind)
    found = document(joined, folded(look(seen), joined, every_s=1.0), window_s=10.0)["claims"][0]["devices"]
    assert [(each["usedBytes"], each["peakBytes"]) for each in found] == [(30 * GIB, 30 * GIB)]


def test_rows_are_bounded() -> None:
    many = [device(process(1, 4), name=f"c{number}") for number in range(5)]
    ledger = fold(UsageLedger(), look(*many), 0.0, window_s=600.0, keep_ended_s=300.0, max_rows=2)
    assert (len(ledger.rows), ledger.left_out) == (2, 3)


def test_energy_of_shares_is_an_estimate_by_utilisation() -> None:
    """Three quarters to the one that computes three times as much; nothing for the first look."""
    one, two = device(process(1, 4, 60)), device(process(2, 4, 20), name="other", number=2)
    ledger = folded(look(one, two, energy=5000), look(one, two, energy=9000))
    assert {key.claim: (row.joules, row.estimated) for key, row in ledger.rows.items()} == {
        "llm": (3.0, True), "other": (1.0, True),
    }  # fmt: skip


def test_energy_of_a_whole_gpu_is_measured() -> None:
    whole = DeviceUse(claim=claim(), assigned=use(), processes=(), used_bytes=0, sm_percent=0, containers=(MAIN,))
    row = only(folded(look(whole, energy=5000), look(whole, energy=9000)))
    assert (row.joules, row.estimated, row.assigned.form) == (4.0, False, Form.WHOLE)


def test_energy_without_a_counter_is_from_power() -> None:
    """GPUs before Volta have no counter."""
    whole = DeviceUse(claim=claim(), assigned=use(), processes=(), used_bytes=0, containers=(MAIN,))
    row = only(folded(look(whole, power_mw=200_000, elapsed_s=0.0), look(whole, power_mw=200_000)))
    assert (row.joules, row.estimated) == (2000.0, True)


def test_counters_that_jump() -> None:
    """Back to 0 when the driver was loaded anew; further than a GPU can, it is not believed."""
    assert joules_since(9000, 1000, None, 10.0) == 1.0
    assert joules_since(0, 10**12, None, 10.0) == 0.0
    assert joules_since(None, 10**12, None, 10.0) == 0.0
    assert joules_since(5000, 6000, None, -1.0) == 0.0
    assert joules_since(None, None, None, 10.0) is None


USERS = st.builds(EnergyUser, weight=st.none() | st.floats(0, 100), part=st.floats(0, 1), is_alone=st.booleans())


@given(st.floats(0, 1e6), st.lists(USERS, min_size=1, max_size=8), st.floats(0, 100))
def test_no_energy_is_made(joules: float, users: list[EnergyUser], foreign: float) -> None:
    parts = divided(joules, users, foreign)
    assert len(parts) == len(users)
    assert sum(parts) <= joules * (1 + 1e-9)
    assert all(part >= 0 for part in parts)


def test_a_gpu_that_does_not_answer_keeps_its_counter() -> None:
    whole = DeviceUse(claim=claim(), assigned=use(), processes=(), used_bytes=0, containers=(MAIN,))
    silent = look(whole, energy=None)
    row = only(folded(look(whole, energy=1000), silent, look(whole, energy=4000)))
    assert row.joules == 3.0
    assert folded(look(whole, energy=1000), silent).energy_mj == {GpuUuid(GPU): 1000}


PROFILES = [Profile(name="1g.10gb", memory_bytes=10 * GIB), Profile(name="3g.40gb", memory_bytes=40 * GIB)]


@pytest.mark.parametrize(
    ("peak", "held", "expected"),
    [
        (5 * GIB, 80 * GIB, EnoughMemory(share_bytes=6 * GIB, profile="1g.10gb")),
        (9 * GIB, 80 * GIB, EnoughMemory(share_bytes=11 * GIB, profile="3g.40gb")),
        (1, 80 * GIB, EnoughMemory(share_bytes=GIB, profile="1g.10gb")),
        (60 * GIB, 80 * GIB, None),
        (5 * GIB, 10 * GIB, None),
        (3 * GIB, 10 * GIB, EnoughMemory(share_bytes=4 * GIB)),
        (0, 80 * GIB, None),
        (None, 80 * GIB, None),
        (5 * GIB, None, None),
    ],
)
def test_what_would_be_enough(peak: int | None, held: int | None, expected: EnoughMemory | None) -> None:
    """With a fifth more than the peak; never what the claim has already."""
    assert fit(peak, held, PROFILES) == expected
