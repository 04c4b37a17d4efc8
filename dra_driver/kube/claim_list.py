"""Lists all claims with devices of one pool, for a node that has lost its journal.

The API server cannot select claims by pool, so the claims of the whole cluster are read page by page, and only those of
the pool are kept.
"""

import logging
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol

from dra_driver.errors import ClaimError
from dra_driver.kube import paths
from dra_driver.kube.claims import allocated_claim
from dra_driver.model.claim import AllocatedClaim, ClaimRef
from dra_driver.model.ids import ClaimUid, PoolName

log = logging.getLogger(__name__)

PAGE = 250


class PageGetter(Protocol):
    """The part of ``rest.RestClient`` that is needed here."""

    def get(self, path: str, query: Mapping[str, str] | None = None) -> dict[str, Any]: ...


class ApiClaimLister:
    """Lists claims of one driver. Thread-safe."""

    def __init__(self, rest: PageGetter, driver_name: str) -> None:
        self._rest = rest
        self._driver = driver_name

    def allocated(self, pool: PoolName) -> Sequence[AllocatedClaim]:
        """Claims that are reserved and allocated from ``pool``. Malformed ones are logged and left out.

        Raises KubernetesApiError: GoneError when paging took so long that it has to begin again, ForbiddenError without
        the right to list claims.
        """
        return [claim for item in self._items() if (claim := self._claim_of(item, pool)) is not None]

    def _items(self) -> Iterator[Any]:
        query = {"limit": str(PAGE)}
        while True:
            page = self._rest.get(paths.resource_claims(), query)
            yield from page.get("items") or ()
            token = (page.get("metadata") or {}).get("continue")
            if not token:
                return
            query["continue"] = str(token)

    def _claim_of(self, item: Any, pool: PoolName) -> AllocatedClaim | None:
        status = item.get("status") or {}
        if not status.get("reservedFor") or not status.get("allocation"):
            return None
        metadata = item["metadata"]
        ref = ClaimRef(namespace=metadata["namespace"], name=metadata["name"], uid=ClaimUid(metadata["uid"]))
        try:
            claim = allocated_claim(item, ref, self._driver)
        except ClaimError as error:
            if any(result.get("driver") == self._driver for result in _results(status)):
                log.warning("claim is malformed; left out", extra={"claim": ref, "reason": error})
            return None
        return claim if any(result.pool == pool for result in claim.results) else None


def _results(status: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    results = (status["allocation"].get("devices") or {}).get("results")
    return [result for result in results if isinstance(result, dict)] if isinstance(results, list) else []
