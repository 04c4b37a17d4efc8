"""Finding the claims of one pool among a cluster's."""

from collections.abc import Mapping
from typing import Any

import pytest

from dra_driver.errors import ForbiddenError
from dra_driver.kube.claim_list import ApiClaimLister
from dra_driver.model.ids import PoolName

DRIVER, POOL = "gpu.nvidia.com", PoolName("node-a/gpu.nvidia.com")


def claim(name: str, *, pool: str = POOL, driver: str = DRIVER, reserved: bool = True, **result: Any) -> dict[str, Any]:
    results = [{"request": "main", "driver": driver, "pool": pool, "device": "gpu-0"} | result]
    return {
        "metadata": {"namespace": "default", "name": name, "uid": f"uid-{name}"},
        "status": {
            "allocation": {"devices": {"results": results}},
            "reservedFor": [{"resource": "pods", "name": "p", "uid": "u"}] if reserved else [],
        },
    }


class Pages:
    """A list in pages, and the queries that asked for them."""

    def __init__(self, *pages: list[dict[str, Any]]) -> None:
        self.pages = pages
        self.queries: list[dict[str, str]] = []

    def get(self, path: str, query: Mapping[str, str] | None = None) -> dict[str, Any]:
        assert path == "/apis/resource.k8s.io/v1/resourceclaims"
        self.queries.append(dict(query or {}))
        number = int(self.queries[-1].get("continue", "0"))
        more = {"continue": str(number + 1)} if number + 1 < len(self.pages) else {}
        return {"metadata": more, "items": self.pages[number]}


def names(*pages: list[dict[str, Any]]) -> list[str]:
    return [found.ref.name for found in ApiClaimLister(Pages(*pages), DRIVER).allocated(POOL)]


def test_only_reserved_claims_of_this_pool_are_found() -> None:
    """Of a whole cluster, one node's."""
    others = [
        claim("other-node", pool="node-b/gpu.nvidia.com"),
        claim("other-driver", driver="nic.example"),
        claim("not-reserved", reserved=False),
        {"metadata": {"namespace": "default", "name": "pending", "uid": "u"}},
        {"metadata": {"namespace": "default", "name": "released", "uid": "u"}, "status": {}},
    ]
    assert names([*others, claim("mine")]) == ["mine"]


def test_all_pages_are_read() -> None:
    rest = Pages([claim("one")], [], [claim("two")])
    found = ApiClaimLister(rest, DRIVER).allocated(POOL)
    assert [item.ref.name for item in found] == ["one", "two"]
    assert [query.get("continue") for query in rest.queries] == [None, "1", "2"]
    assert all(query["limit"] for query in rest.queries)


def test_malformed_claim_is_left_out_and_named(caplog: pytest.LogCaptureFixture) -> None:
    """One malformed object must not prevent the rebuild of a node's journal."""
    assert names([claim("bad", device=7), claim("good")]) == ["good"]
    assert [getattr(record, "claim", None).name for record in caplog.records] == ["bad"]  # type: ignore[union-attr]


def test_a_malformed_claim_of_another_driver_is_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    assert names([claim("bad", driver="nic.example", device=7)]) == []
    assert caplog.records == []


def test_refusal_by_the_api_server_is_passed_on() -> None:
    """Recovery reports it and tries again later; it must not count as an empty list."""

    class Refusing:
        def get(self, path: str, query: Mapping[str, str] | None = None) -> dict[str, Any]:
            raise ForbiddenError("no")

    with pytest.raises(ForbiddenError):
        ApiClaimLister(Refusing(), DRIVER).allocated(POOL)
