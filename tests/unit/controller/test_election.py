"""When a replica may take a Lease, and lists in pages, reduced to the kept fields."""

from collections.abc import Mapping
from datetime import timedelta
from typing import Any

import pytest

from dra_driver.controller import election
from dra_driver.controller.election import LeaseRecord, LeaseTimes
from dra_driver.controller.pending_evictions import SpecialClaim, special_claim
from dra_driver.controller.watches import ReducedLists
from dra_driver.core.errors import ApiUnreachableError
from tests.unit.controller.objects import DRIVER, NOON, special_claim_object


def record(holder: str = "other", version: str = "1", duration: float = 15.0) -> LeaseRecord:
    return LeaseRecord(version=version, holder=holder, duration_s=duration, transitions=3, acquired="then")


def test_a_record_that_changes_is_never_taken_whatever_its_times_say() -> None:
    sighting = election.seen(record(version="1"), None, 100.0)
    sighting = election.seen(record(version="2"), sighting, 114.0)
    assert not election.may_take(sighting, "me", 128.9)
    assert election.may_take(sighting, "me", 129.0)


def test_an_unchanged_record_keeps_its_first_sighting() -> None:
    sighting = election.seen(record(), None, 100.0)
    assert election.seen(record(), sighting, 110.0).since_s == 100.0


def test_the_holders_own_promise_counts() -> None:
    sighting = election.seen(record(duration=60.0), None, 0.0)
    assert not election.may_take(sighting, "me", 59.0)


@pytest.mark.parametrize("holder", ["", "me"])
def test_a_released_lease_and_the_own_one_are_taken_at_once(holder: str) -> None:
    assert election.may_take(election.seen(record(holder), None, 0.0), "me", 0.0)


def test_a_foolish_promise_is_bounded() -> None:
    obj = {"metadata": {"resourceVersion": "1"}, "spec": {"holderIdentity": "x", "leaseDurationSeconds": 10**9}}
    assert LeaseRecord.of(obj).duration_s == election.LONGEST_S


@pytest.mark.parametrize("obj", [{}, {"metadata": None, "spec": []}, {"spec": {"holderIdentity": 5}}])
def test_a_malformed_lease_reads_as_free(obj: dict[str, object]) -> None:
    found = LeaseRecord.of(obj)
    assert (found.holder, found.duration_s) == ("", 1.0)


def test_a_renewal_keeps_the_time_of_acquiring_and_a_takeover_counts() -> None:
    kept = election.held_by("me", record("me"), NOON + timedelta(seconds=5), 15)
    assert (kept["acquireTime"], kept["leaseTransitions"]) == ("then", 3)
    taken = election.held_by("me", record("other"), NOON, 15)
    assert (taken["acquireTime"], taken["leaseTransitions"]) == ("2026-11-22T12:00:00.000000Z", 4)
    assert election.held_by("me", None, NOON, 15)["leaseTransitions"] == 0


def test_a_leader_stops_and_its_request_ends_before_others_may_take_the_lease() -> None:
    for duration in (3, 15, 120):
        times = LeaseTimes.of(duration)
        assert times.renew_s + times.request_s < times.duration_s
        assert times.retry_s * 1.2 < times.renew_s


class Pages:
    def __init__(self, pages: list[dict[str, Any]]) -> None:
        self.pages, self.asked = pages, list[Mapping[str, str] | None]()

    def get(self, path: str, query: Mapping[str, str] | None = None) -> dict[str, Any]:
        self.asked.append(dict(query or {}))
        return self.pages[len(self.asked) - 1]

    def watch(self, path: str, query: Mapping[str, str], read_timeout_s: float) -> Any:
        raise NotImplementedError


def reduced(pages: Pages) -> ReducedLists[Any]:
    return ReducedLists(pages, lambda item: special_claim(item, DRIVER))


def test_pages_are_joined_and_only_special_claims_are_kept() -> None:
    plain = {"metadata": {"name": "plain", "namespace": "team"}}
    api = Pages(
        [
            {"metadata": {"resourceVersion": "7", "continue": "more"}, "items": [special_claim_object(0), plain]},
            {"metadata": {"resourceVersion": "7"}, "items": [special_claim_object(1, name="b"), None]},
        ]
    )
    lists = reduced(api)
    document = lists.list("/claims", {"fieldSelector": ""})
    kept = [lists.slim(item) for item in document["items"]]
    assert [claim.name for claim in kept if isinstance(claim, SpecialClaim)] == ["claim-a", "b"]
    assert [item["metadata"] for item in document["items"]] == [
        {"name": "claim-a", "namespace": "team"},
        {"name": "b", "namespace": "team"},
    ]
    assert [query.get("continue") for query in api.asked if query is not None] == [None, "more"]


def test_an_object_of_a_watch_is_reduced_too() -> None:
    lists = reduced(Pages([]))
    assert lists.slim({"metadata": {"name": "plain"}}) is None
    assert isinstance(lists.slim(special_claim_object(0)), SpecialClaim)


def test_a_list_that_is_none_is_an_error() -> None:
    with pytest.raises(ApiUnreachableError, match="expected a list"):
        reduced(Pages([{"items": 5}])).list("/claims")
