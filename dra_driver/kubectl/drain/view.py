"""Reads what a drain looks at: the GPUs that a node publishes, who has them, and events of the Node.

A drain looks for minutes, so a single answer that fails does not end it.
"""

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Final, Protocol

from dra_driver.core.errors import ApiUnreachableError, GoneError, ServerBusyError
from dra_driver.core.model.ids import GpuUuid
from dra_driver.kube import paths
from dra_driver.kubectl.drain.gpus import PublishedGpu, gpus_of, is_settled
from dra_driver.kubectl.drain.holders import DeviceHolder, DrainScope, holders_of

LOOK_S: Final = 1.0
"""Between two looks, and at least five times as long as one takes: a list of all claims of a cluster may be large."""
TRIES: Final = 5
"""Failed looks in a row before a drain gives up."""


class DrainApi(Protocol):
    """The part of ``kube.rest.RestClient`` that a drain needs."""

    def get(self, path: str) -> dict[str, Any]: ...
    def list(self, path: str, query: Mapping[str, str] | None = None) -> dict[str, Any]: ...
    def create(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]: ...
    def merge_patch(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]: ...


class NodeView:
    """One node and driver, as the API server shows them."""

    def __init__(self, api: DrainApi, node: str, driver: str) -> None:
        self._api, self._node, self._driver = api, node, driver

    def gpus(self) -> tuple[PublishedGpu, ...]:
        """The GPUs that the node publishes."""
        return gpus_of(self._slices(), self._node, self._driver)

    def settled_gpus(self) -> tuple[PublishedGpu, ...] | None:
        """The same; None while the node is in the middle of publishing them."""
        slices = self._slices()
        return gpus_of(slices, self._node, self._driver) if is_settled(slices, self._node, self._driver) else None

    def holders(
        self, gpus: Collection[GpuUuid] | None, published: Sequence[PublishedGpu], *, force: bool
    ) -> tuple[DeviceHolder, ...]:
        """Who has these GPUs (None: any of the node)."""
        pool = f"{self._node}/{self._driver}"
        scope = DrainScope(driver=self._driver, pool=pool, gpus=gpus, published=published)
        claims = self._items(paths.resource_claims())
        return holders_of(claims, self._items(paths.pods(), f"spec.nodeName={self._node}"), scope, force=force)

    def said(self, reason: str, text: str) -> bool:
        """Whether the Node has an event of that reason with that text."""
        selector = f"involvedObject.kind=Node,involvedObject.name={self._node},reason={reason}"
        events = self._items(paths.events("default"), selector)
        return any(text in str(event.get("message")) for event in events)

    def _slices(self) -> list[Mapping[str, Any]]:
        return self._items(paths.resource_slices(), f"spec.driver={self._driver},spec.nodeName={self._node}")

    def _items(self, path: str, selector: str = "") -> list[Mapping[str, Any]]:
        query = {"fieldSelector": selector} if selector else None
        try:
            found = self._api.list(path, query)["items"]
        except GoneError:  # paging took longer than the server keeps old versions
            found = self._api.list(path, query)["items"]
        return [item for item in found if isinstance(item, Mapping)]


class DrainWait:
    """Looks again and again until something is so, or the time is over."""

    def __init__(self, timeout_s: float, clock: Callable[[], float], sleep: Callable[[float], None]) -> None:
        self._until, self._clock, self._sleep = clock() + timeout_s, clock, sleep
        self._failed = 0

    @property
    def now(self) -> float:
        return self._clock()

    def wait_for(self, look: Callable[[], bool], *, least_s: float = 0.0, most_s: float | None = None) -> bool:
        """Whether ``look`` became true in time: before the end of all, but within ``most_s``, and with ``least_s``.

        Raises KubernetesApiError when looks fail `TRIES` times in a row, or are refused.
        """
        until = max(self._until, self._clock() + least_s)
        if most_s is not None:
            until = min(until, self._clock() + most_s)
        while True:
            began = self._clock()
            if self._tried(look):
                return True
            now = self._clock()
            if now >= until:
                return False
            self._sleep(min(max(LOOK_S, 5 * (now - began)), max(until - now, 0.1)))

    def _tried(self, look: Callable[[], bool]) -> bool:
        try:
            found = look()
        except (ApiUnreachableError, ServerBusyError):
            self._failed += 1
            if self._failed >= TRIES:
                raise
            return False
        self._failed = 0
        return found


def wait_at_most(timeout_s: float) -> DrainWait:
    """With the clock of this machine."""
    return DrainWait(timeout_s, time.monotonic, time.sleep)
