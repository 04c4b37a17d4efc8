"""Rows of claims, waiting pods and events."""

from datetime import timedelta

from dra_driver.kube.state import ClusterState
from dra_driver.kubectl.capacity import claims_of
from dra_driver.kubectl.usage.device_use import ClaimDeviceUse
from dra_driver.kubectl.web.rows import (
    ClaimOnPage,
    ago,
    claim_views,
    event_rows,
    matching,
    page_of,
    query_string,
    uses_by_device,
    waiting_pods,
)
from tests.unit.kubectl.web.objects import GIB, NOW, claim, fleet, share, small_state, waiting_pod

USE = ClaimDeviceUse(namespace="team", claim="a", node="n", device="gpu-0", share="s", used_bytes=5 * GIB)


def views(state: ClusterState, *uses: ClaimDeviceUse) -> list[ClaimOnPage]:
    return claim_views(claims_of(state, NOW), fleet(state), uses_by_device(uses))


def test_a_claim_has_its_gpu_and_its_use() -> None:
    view = views(small_state(claim("a", "n", share("gpu-0", "20Gi"))), USE)[0]
    assert (view.devices[0].gpu, view.used_bytes, view.granted_bytes) == ("gpu-0", 5 * GIB, 20 * GIB)


def test_claim_without_a_measurement_has_no_use() -> None:
    assert views(small_state(claim("a", "n", share("gpu-0", "20Gi"))))[0].used_bytes is None


def test_a_claim_with_one_unmeasured_device_has_no_sum() -> None:
    """A sum of some would look like the whole."""
    both = claim("a", "n", share("gpu-0", "20Gi"), {"device": "gpu-0-mig-1g10gb-19-6"})
    assert views(small_state(both), USE)[0].used_bytes is None


def test_a_pending_claim_has_no_devices() -> None:
    """It is listed with what it asks for."""
    view = views(small_state(claim("a", "n")))[0]
    assert (view.devices, view.claim.requests) == ((), ("gpu: 1 x gpu.nvidia.com",))


def test_a_device_that_vanished_keeps_its_name() -> None:
    """A claim may have a device that no slice contains any more."""
    view = views(small_state(claim("a", "n", {"device": "gpu-7"})))[0]
    assert [(each.device, each.gpu, each.part) for each in view.devices] == [("gpu-7", "", None)]


def test_pods_of_one_owner_wait_together() -> None:
    """The first of them stands for all; pods that are placed do not wait."""
    pods = [waiting_pod(f"web-{number}", owner="web") for number in range(3)]
    placed = waiting_pod("placed")
    placed["spec"]["nodeName"] = "n"
    found = waiting_pods(ClusterState(pods=(*pods, waiting_pod("alone"), placed)))
    assert [(each.name, each.count, each.owner) for each in found] == [("alone", 1, ""), ("web-0", 3, "ReplicaSet/web")]


def test_pods_without_devices_do_not_wait_here() -> None:
    """A pod that waits for CPU alone is no matter of this page; one with an extended resource is."""
    plain, extended = waiting_pod("plain"), waiting_pod("extended")
    del plain["spec"]["resourceClaims"], extended["spec"]["resourceClaims"]
    extended["spec"]["containers"][0]["resources"] = {"requests": {"nvidia.com/gpu": "1"}}
    assert [each.name for each in waiting_pods(ClusterState(pods=(plain, extended)))] == ["extended"]


def test_events_are_newest_first() -> None:
    """Whatever field has their time."""
    events = [
        {"reason": "Old", "firstTimestamp": "2026-01-02T10:00:00Z", "involvedObject": {"kind": "Node", "name": "n"}},
        {"reason": "New", "eventTime": "2026-01-02T11:00:00Z", "involvedObject": {"namespace": "a", "name": "b"}},
    ]
    assert [(each.reason, each.about) for each in event_rows(events)] == [("New", " a/b"), ("Old", "Node n")]


def test_search_needs_every_word_and_no_case() -> None:
    """``team H100`` finds rows with both."""
    rows = ["Team a h100", "team b", "h100"]
    assert matching(rows, " team H100 ", str) == ["Team a h100"]
    assert matching(rows, "", str) == rows


def test_pages_have_bounds() -> None:
    """A page beyond the end is the last; text is the first."""
    rows = list(range(45))
    assert page_of(rows, "99", 20).rows == [40, 41, 42, 43, 44]
    first = page_of(rows, "²", 20, of=60)
    assert (first.number, first.pages, first.first, first.last, first.total, first.of) == (1, 3, 1, 20, 45, 60)
    assert page_of([], "1", 20).last == 0


def test_links_escape_what_people_typed() -> None:
    """Empty fields are left out."""
    assert query_string(q="a&b=<c>", page=2, show="") == "?q=a%26b%3D%3Cc%3E&page=2"


def test_age_is_short() -> None:
    """In one unit; "" for what is no time."""
    assert ago("2026-01-02T11:00:00Z", NOW + timedelta(hours=1)) == "2h"
    assert ago("yesterday", NOW) == ""
