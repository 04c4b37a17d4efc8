"""Peaks, energy, last use and suggestions; rows that end leave after a stated time, and are bounded. And what is told
of one look: metrics, labels, sums, and nothing for what is not known.
"""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from dra_driver.core.model.ids import GpuUuid
from dra_driver.core.model.terms import Form
from dra_driver.core.model.usage import EnoughMemory, GpuUsage, InstanceUsage, Profile, busiest, fit
from dra_driver.core.telemetry.exporter_metrics import Family
from dra_driver.kubectl.usage.device_use import decode
from dra_driver.node.usage.answers import CLAIM_LABELS, Judged, document, families
from dra_driver.node.usage.join import join
from dra_driver.node.usage.ledger import EnergyUser, Row, RowUse, UsageLedger, divided, fold, joules_since
from dra_driver.node.usage.sources import Unread
from dra_driver.node.usage.values import (
    Basis,
    ContainerRef,
    DeviceUse,
    GpuUse,
    JoinedUsage,
    Knows,
    SeenProcess,
)
from tests.unit.node.usage.claims import GIB, NOW, claim, pod
from tests.unit.node.usage.test_join import GPU, LOOK, SHARES, assigned, reading, share, use

MAIN, SIDE = (ContainerRef(pod=pod("llm-0"), container=name) for name in ("main", "side"))


def process(pid: int, gib: int | None, sm: int | None = 10, container: ContainerRef = MAIN) -> SeenProcess:
    memory = None if gib is None else gib * GIB
    return SeenProcess(pid=pid, memory_bytes=memory, sm_percent=sm, busy_percent=sm, container=container)


def device(*processes: SeenProcess, name: str = "llm", number: int = 1, containers: int = 1) -> DeviceUse:
    return DeviceUse(
        claim=claim(name),
        assigned=share(number),
        processes=processes,
        used_bytes=sum(each.memory_bytes or 0 for each in processes),
        sm_percent=sum(each.sm_percent or 0 for each in processes),
        busy_percent=busiest(each.busy_percent for each in processes),
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
    blind = look(replace(device(), processes=None, used_bytes=None, sm_percent=None, busy_percent=None))
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


@given(st.floats(0, 1e6, allow_subnormal=False), st.lists(USERS, min_size=1, max_size=8), st.none() | st.floats(0, 100))
def test_no_energy_is_made(joules: float, users: list[EnergyUser], foreign: float | None) -> None:
    parts = divided(joules, users, foreign)
    assert len(parts) == len(users)
    assert sum(parts) <= joules * (1 + 1e-9)
    assert all(part >= 0 for part in parts)


def test_energy_beside_a_process_of_unknown_use_is_divided_by_memory() -> None:
    assert divided(8.0, [EnergyUser(weight=5, part=0.5)], None) == [4.0]


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


QUIET = Judged(idle_s={"uid-two": 30.0}, over_bytes={("uid-one", "gpu-0"): 0})


def seen(joined: JoinedUsage | None = None) -> tuple[JoinedUsage, UsageLedger]:
    joined = joined or join(LOOK)
    return joined, fold(UsageLedger(), joined, 100.0, window_s=600.0, keep_ended_s=300.0)


def told(*, dcgm: bool = False, joined: JoinedUsage | None = None) -> dict[str, Family]:
    return {family.name: family for family in families(*seen(joined), QUIET, dcgm=dcgm)}


def test_memory_of_each_claim_and_container() -> None:
    used = told()["dra_claim_memory_used_bytes"]
    assert used.labels == CLAIM_LABELS
    assert used.samples == (
        (("team", "one", "pod-a", "main", "gpu", "gpu-0", "s1"), 4.0 * GIB),
        (("team", "two", "pod-b", "main", "gpu", "gpu-0", "s2"), 6.0 * GIB),
    )
    granted = told()["dra_claim_memory_granted_bytes"]
    assert granted.samples[0] == (("team", "one", "gpu", "gpu-0", "s1"), 20.0 * GIB)
    assert told()["dra_claim_idle_seconds"].samples == ((("team", "two", "gpu", "gpu-0", "s2"), 30.0),)
    assert told()["dra_claim_over_grant_bytes"].samples == ((("team", "one", "gpu", "gpu-0", "s1"), 0.0),)
    assert [value for _, value in told()["dra_claim_last_used_timestamp_seconds"].samples] == [NOW.timestamp()] * 2


def test_the_parts_of_a_gpu_add_up_in_its_series() -> None:
    found = {
        part: told()[f"dra_gpu_memory_{part}_bytes"].samples[0][1]
        for part in ("claims", "unattributed", "reserved", "used")
    }
    assert found["claims"] + found["unattributed"] + found["reserved"] == found["used"] == 41.0 * GIB
    assert told()["dra_gpu_unattributed_processes"].samples[0][1] == 2.0


def test_what_is_not_known_has_no_sample() -> None:
    found = told(joined=join(replace(LOOK, readings=Unread(reason="detached"))))
    names = ("dra_claim_memory_used_bytes", "dra_claim_processes", "dra_gpu_memory_used_bytes", "dra_gpu_power_watts")
    assert [found[name].samples for name in names] == [()] * 4
    assert len(found["dra_claim_memory_granted_bytes"].samples) == 2


def test_names_of_dcgm_exporter_only_when_asked() -> None:
    """Beside it, every sum would double. Units are its own: MiB, watts, millijoules."""
    reading = GpuUsage(
        gpu_uuid=LOOK.assignments.gpus[0].gpu_uuid, memory_total=80 * GIB, memory_used=40 * GIB, power_mw=250_000  # type: ignore[union-attr]
    )  # fmt: skip
    joined = join(replace(LOOK, readings=(reading,)))
    assert not [name for name in told(joined=joined) if name.startswith("DCGM")]
    found = told(dcgm=True, joined=joined)
    assert found["DCGM_FI_DEV_FB_USED"].samples == ((("0", "GPU-a", "nvidia0", "", "n"), 40960.0),)
    assert found["DCGM_FI_DEV_FB_FREE"].samples[0][1] == 40960.0
    assert found["DCGM_FI_DEV_POWER_USAGE"].samples[0][1] == 250.0
    assert found["DCGM_FI_DEV_GPU_UTIL"].samples == ()


def test_a_claim_made_anew_under_its_name_has_its_labels_once() -> None:
    """Two equal series would spoil the whole scrape."""
    _, ledger = seen()
    anew = replace(SHARES.claims[0], uid="z")
    again = join(replace(LOOK, assignments=replace(SHARES, claims=(anew, SHARES.claims[1]))))
    ledger = fold(ledger, again, 110.0, window_s=600.0, keep_ended_s=300.0)
    assert len(ledger.rows) == 3
    for family in families(again, ledger, QUIET):
        labels = [each for each, _ in family.samples]
        assert len(labels) == len(set(labels)), family.name
    used = {family.name: family for family in families(again, ledger, QUIET)}["dra_claim_memory_used_bytes"]
    assert used.samples[0][1] == 4.0 * GIB  # the living one's


def test_the_answer_is_what_the_commands_read() -> None:
    joined, ledger = seen()
    answer = json.loads(json.dumps(document(joined, ledger, window_s=60.0)))
    told = decode(answer)
    assert (told.window_s, told.gaps) == (60.0, [])
    one = told.uses[0]
    assert (one.namespace, one.claim, one.node, one.device, one.share) == ("team", "one", "n", "gpu-0", "s1")
    assert (one.used_bytes, one.granted_bytes, one.peak_bytes) == (4 * GIB, 20 * GIB, 4 * GIB)
    assert (one.sm_ratio, one.processes, one.pods, one.idle_s) == (0.1, 1, ("pod-a",), 0.0)
    (gpu,) = answer["gpus"]
    assert (
        gpu["memoryClaimsBytes"] + gpu["memoryUnattributedBytes"] + gpu["memoryReservedBytes"] == gpu["memoryUsedBytes"]
    )


def test_the_answer_says_what_is_not_known() -> None:
    joined = join(replace(LOOK, pods=Unread(reason="no socket")))
    answer = document(*seen(joined), window_s=60.0)
    assert answer["knows"]["claims"] == "no socket"
    assert answer["knows"]["driver"] is True
    assert answer["claims"][0]["devices"][0]["usedBytes"] is None
    assert decode(answer).gaps == ["node n: the exporter cannot measure claims: no socket"]


def test_all_of_a_whole_gpu_or_a_partition_is_granted() -> None:
    cut = InstanceUsage(gi_id=7, memory_total=10 * GIB, memory_used=GIB)
    devices = {
        "whole": use(),
        "part": use(form=Form.PARTITION, device="gpu-0-mig-1g10gb-19-0", gi_id=7),
        "gone": use(form=Form.PARTITION, device="gpu-0-mig-1g10gb-19-1", gi_id=8),
        "admin": use(admin_access=True),
    }
    look = replace(LOOK, assignments=assigned(**devices), readings=(reading(instances=(cut,)),))
    for each, expected in (
        (look, [80 * GIB, 10 * GIB, None, None]),
        (replace(look, readings=Unread(reason="x")), [None] * 4),
    ):
        answer = document(*seen(join(each)), window_s=60.0)
        found = {claim["name"]: claim["devices"][0]["grantBytes"] for claim in answer["claims"]}
        assert [found[name] for name in devices] == expected
