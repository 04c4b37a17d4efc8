"""Watch objects of the cluster, each reduced to the fields that the controller keeps.

Lists are read and reduced page by page, so that the cluster's claims and slices are never in memory as a whole. Pods
are read when their eviction is due. A cluster without the CustomResourceDefinitions answers 404: those watches retry
every 30 s.
"""

import threading
from collections.abc import Callable, Mapping
from typing import Any, Final, Generic

from dra_driver.controller.pending_evictions import SliceView, SpecialClaim, slice_view, special_claim
from dra_driver.controller.policy_status import NodePolicies, PolicyView, node_view, policy_view
from dra_driver.controller.usage_requests import NodeUse, node_use
from dra_driver.kube import paths
from dra_driver.kube.reflector import PagedApi, ReducedLists, Reflector, View

PAGE: Final = 100


class ReducedWatch(Generic[View]):
    """``start`` and ``stop`` once, by one owner; the rest from any thread. ``on_change`` is called in its thread and
    must not wait. ``what`` names the objects in messages."""

    def __init__(
        self,
        api: PagedApi,
        path: str,
        reduce: Callable[[Mapping[str, object]], View | None],
        on_change: Callable[[], None],
        *,
        thread: str,
        what: str,
        selector: str = "",
    ) -> None:
        self._listed, self._what = threading.Event(), what
        lists: ReducedLists[View] = ReducedLists(api, lambda item, _beside: reduce(item), PAGE)

        def note(_change: object) -> None:
            self._listed.set()
            on_change()

        self._reflector = Reflector(lists, path, selector, note, slim=lists.slim, name=thread)

    def start(self) -> None:
        self._reflector.start()

    def stop(self) -> None:
        self._reflector.stop()

    @property
    def problem(self) -> str | None:
        """Return why the copy may be outdated or incomplete, None while it is current."""
        if self._reflector.problem is not None or not self._listed.is_set():
            return f"cannot watch {self._what}: {self._reflector.problem or 'they are not listed yet'}"
        return None

    def items(self) -> list[View]:
        return list(self._reflector.items().values())


class _Pair:
    _both: tuple[ReducedWatch[Any], ReducedWatch[Any]]

    def start(self) -> None:
        for watch in self._both:
            watch.start()

    def stop(self) -> None:
        for watch in self._both:
            watch.stop()

    @property
    def problem(self) -> str | None:
        return self._both[0].problem or self._both[1].problem


Watch = ReducedWatch[Any] | _Pair


class EvictionWatches(_Pair):
    """All slices of this driver, and the claims for extended resources."""

    def __init__(self, api: PagedApi, driver: str, on_change: Callable[[], None]) -> None:
        slices = ReducedWatch(
            api,
            paths.resource_slices(),
            slice_view,
            on_change,
            thread="slices-watch",
            what="ResourceSlices",
            selector=f"spec.driver={driver}",
        )
        claims = ReducedWatch(
            api,
            paths.resource_claims(),
            lambda item: special_claim(item, driver),
            on_change,
            thread="claims-watch",
            what="ResourceClaims",
        )
        self.slices: Callable[[], list[SliceView]] = slices.items
        self.claims: Callable[[], list[SpecialClaim]] = claims.items
        self._both = slices, claims


class PolicyWatches(_Pair):
    """All GpuPolicies and GpuNodes, reduced to the fields of their totals."""

    def __init__(self, api: PagedApi, on_change: Callable[[], None]) -> None:
        policies = ReducedWatch(
            api, paths.gpu_policies(), policy_view, on_change, thread="policies-watch", what="GpuPolicies"
        )
        nodes = ReducedWatch(api, paths.gpu_nodes(), node_view, on_change, thread="gpunodes-watch", what="GpuNodes")
        self.policies: Callable[[], list[PolicyView]] = policies.items
        self.nodes: Callable[[], list[NodePolicies]] = nodes.items
        self._both = policies, nodes


class UsageWatch(ReducedWatch[NodeUse]):
    """All GpuNodes, reduced to the usage that they report."""

    def __init__(self, api: PagedApi, on_change: Callable[[], None]) -> None:
        super().__init__(api, paths.gpu_nodes(), node_use, on_change, thread="usage-watch", what="GpuNodes")
        self.nodes: Callable[[], list[NodeUse]] = self.items
