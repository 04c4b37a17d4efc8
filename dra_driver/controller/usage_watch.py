"""Watches all GpuNodes, reduced to what they tell of the use of their GPUs."""

import threading
from collections.abc import Callable
from typing import Final

from dra_driver.controller.usage_cases import NodeUse, node_use
from dra_driver.controller.watches import PagedApi, ReducedLists
from dra_driver.kube import paths
from dra_driver.kube.reflector import Reflector

THREAD_NAME: Final = "usage-watch"


class UsageWatch:
    """``start`` and ``stop`` once, by one owner; everything else from any thread.

    ``on_change`` is called in the watch's thread after each change; it must return at once.
    """

    def __init__(self, api: PagedApi, on_change: Callable[[], None]) -> None:
        self._listed = threading.Event()
        nodes = ReducedLists(api, node_use)

        def note() -> None:
            self._listed.set()
            on_change()

        self._nodes = Reflector(nodes, paths.gpu_nodes(), "", lambda _change: note(), slim=nodes.slim, name=THREAD_NAME)

    def start(self) -> None:
        self._nodes.start()

    def stop(self) -> None:
        """Idempotent."""
        self._nodes.stop()

    @property
    def problem(self) -> str | None:
        """Why the copy may be outdated or is not complete yet; None while it is current."""
        if self._nodes.problem is not None or not self._listed.is_set():
            return f"cannot watch GpuNodes: {self._nodes.problem or 'they are not listed yet'}"
        return None

    def nodes(self) -> list[NodeUse]:
        return list(self._nodes.items().values())
