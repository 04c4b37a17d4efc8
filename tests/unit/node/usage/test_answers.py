"""The metrics and the answer of one look: names, labels, sums, and nothing for what is not known."""

import json

from msgspec.structs import replace

from dra_driver.core.model.terms import Form
from dra_driver.core.model.usage import GpuUsage, InstanceUsage
from dra_driver.kubectl.usage.device_use import decode
from dra_driver.node.usage.answers import CLAIM_LABELS, Family, Judged, document, families
from dra_driver.node.usage.join import join
from dra_driver.node.usage.ledger import UsageLedger, fold
from dra_driver.node.usage.sources import Unread
from dra_driver.node.usage.values import JoinedUsage
from tests.unit.node.usage.claims import GIB, NOW
from tests.unit.node.usage.test_join import LOOK, SHARES, assigned, reading, use

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
    anew = replace(SHARES.claims[0], ref=replace(SHARES.claims[0].ref, uid="z"))
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
    assert decode(answer).gaps == ["node n: the exporter does not know claims: no socket"]


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
