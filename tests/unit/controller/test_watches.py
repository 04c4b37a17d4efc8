"""Lists in pages, reduced to what is kept."""

from collections.abc import Mapping
from typing import Any

import pytest

from dra_driver.controller.pending_evictions import SpecialClaim, special_claim
from dra_driver.controller.watches import ReducedLists
from dra_driver.core.errors import ApiUnreachableError
from tests.unit.controller.objects import DRIVER, special_claim_object


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
