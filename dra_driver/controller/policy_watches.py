"""Watches all GpuPolicies and GpuNodes, reduced to what their totals need (`policy_views`).

A cluster without the CustomResourceDefinitions answers 404: the watches then try again every half a minute, and nothing
else of the controller depends on them.
"""

import threading
from collections.abc import Callable
from typing import Final

from dra_driver.controller.policy_views import NodePolicies, PolicyView, node_view, policy_view
from dra_driver.controller.watches import PagedApi, ReducedLists
from dra_driver.kube import paths
from dra_driver.kube.reflector import Reflector

POLICIES_THREAD: Final = "policies-watch"
NODES_THREAD: Final = "gpunodes-watch"


class PolicyWatches:
    """Both watches. ``start`` and ``stop`` once, by one owner; everything else from any thread.

    ``on_change`` is called in a watch's thread after each change; it must return at once.
    """

    def __init__(self, api: PagedApi, on_change: Callable[[], None]) -> None:
        self._policies_listed, self._nodes_listed = threading.Event(), threading.Event()
        policies, nodes = ReducedLists(api, policy_view), ReducedLists(api, node_view)

        def note(listed: threading.Event) -> None:
            listed.set()
            on_change()

        self._policies = Reflector(
            policies,
            paths.gpu_policies(),
            "",
            lambda _change: note(self._policies_listed),
            slim=policies.slim,
            name=POLICIES_THREAD,
        )
        self._nodes = Reflector(
            nodes,
            paths.gpu_nodes(),
            "",
            lambda _change: note(self._nodes_listed),
            slim=nodes.slim,
            name=NODES_THREAD,
        )

    def start(self) -> None:
        self._policies.start()
        self._nodes.start()

    def stop(self) -> None:
        """End both. Idempotent."""
        self._policies.stop()
        self._nodes.stop()

    @property
    def problem(self) -> str | None:
        """Why the copies may be outdated or are not complete yet; None while they are current."""
        for listed, reflector, what in (
            (self._policies_listed, self._policies, "GpuPolicies"),
            (self._nodes_listed, self._nodes, "GpuNodes"),
        ):
            if reflector.problem is not None or not listed.is_set():
                return f"cannot watch {what}: {reflector.problem or 'they are not listed yet'}"
        return None

    def policies(self) -> list[PolicyView]:
        return list(self._policies.items().values())

    def nodes(self) -> list[NodePolicies]:
        return list(self._nodes.items().values())
