"""Watches what evictions depend on: all slices of this driver, and all claims, of which special ones alone are kept.

Pods are not watched: a special claim names its pod, which is read when its eviction is due. A list is read in pages
and reduced page by page, so that neither the cluster's claims nor its slices are ever in memory as a whole.
"""

import threading
from collections.abc import Callable, Mapping
from typing import Any, Final, Protocol

from dra_driver.controller.fleet import SliceView, slice_view
from dra_driver.controller.special_claims import SpecialClaim, special_claim
from dra_driver.kube import paths
from dra_driver.kube.reflector import Reflector, Stream
from dra_driver.kube.rest import pages

PAGE: Final = 100
SLICES_THREAD: Final = "slices-watch"
CLAIMS_THREAD: Final = "claims-watch"
_REDUCED: Final = "reduced"


class PagedApi(Protocol):
    """The part of ``rest.RestClient`` that is needed here."""

    def get(self, path: str, query: Mapping[str, str] | None = None) -> dict[str, Any]: ...
    def watch(self, path: str, query: Mapping[str, str], read_timeout_s: float) -> Stream: ...


class ReducedLists:
    """Lists in pages, with each object replaced by what ``reduce`` makes of it. For a `Reflector`."""

    def __init__(self, api: PagedApi, reduce: Callable[[Mapping[str, Any]], Any]) -> None:
        self._api, self._reduce = api, reduce

    def list(self, path: str, query: Mapping[str, str] | None = None) -> dict[str, Any]:
        items: list[dict[str, Any]] = []
        page: dict[str, Any] = {}
        for page in pages(self._api.get, path, query, PAGE):
            items += [slim for item in page["items"] if (slim := self._reduced(item)) is not None]
        return {**page, "items": items}

    def watch(self, path: str, query: Mapping[str, str], read_timeout_s: float) -> Stream:
        return self._api.watch(path, query, read_timeout_s)

    def slim(self, item: Mapping[str, Any]) -> Any:
        """For the reflector: an object of a watch is reduced, one of a list has been."""
        return item[_REDUCED] if _REDUCED in item else self._reduce(item)

    def _reduced(self, item: Any) -> dict[str, Any] | None:
        reduced = self._reduce(item) if isinstance(item, dict) else None
        if reduced is None:
            return None
        metadata = {name: item["metadata"].get(name) for name in ("name", "namespace")}
        return {"metadata": metadata, _REDUCED: reduced}


class EvictionWatches:
    """Both watches. ``start`` and ``stop`` once, by one owner; everything else from any thread.

    ``on_change`` is called in a watch's thread after each change; it must return at once.
    """

    def __init__(self, api: PagedApi, driver: str, on_change: Callable[[], None]) -> None:
        self._slices_listed, self._claims_listed = threading.Event(), threading.Event()
        slices = ReducedLists(api, slice_view)
        self._slices = Reflector(
            slices,
            paths.resource_slices(),
            f"spec.driver={driver}",
            lambda _change: _note(self._slices_listed, on_change),
            slim=slices.slim,
            name=SLICES_THREAD,
        )
        claims = ReducedLists(api, lambda item: special_claim(item, driver))
        self._claims = Reflector(
            claims,
            paths.resource_claims(),
            "",
            lambda _change: _note(self._claims_listed, on_change),
            slim=claims.slim,
            name=CLAIMS_THREAD,
        )

    def start(self) -> None:
        self._slices.start()
        self._claims.start()

    def stop(self) -> None:
        """End both. Idempotent."""
        self._slices.stop()
        self._claims.stop()

    @property
    def problem(self) -> str | None:
        """Why the copies may be outdated or are not complete yet; None while they are current."""
        for listed, reflector, what in (
            (self._slices_listed, self._slices, "ResourceSlices"),
            (self._claims_listed, self._claims, "ResourceClaims"),
        ):
            if reflector.problem is not None or not listed.is_set():
                return f"cannot watch {what}: {reflector.problem or 'they are not listed yet'}"
        return None

    def slices(self) -> list[SliceView]:
        return list(self._slices.items().values())

    def claims(self) -> list[SpecialClaim]:
        return list(self._claims.items().values())


def _note(listed: threading.Event, on_change: Callable[[], None]) -> None:
    listed.set()
    on_change()
