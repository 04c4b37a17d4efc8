"""Watches GpuPolicies for the attributes that they add: selectors may read them, so the webhook has to know them."""

import threading
from collections.abc import Callable, Mapping
from typing import Any, Final

from dra_driver.config.webhook_files import Attributes
from dra_driver.controller.watches import PagedApi, ReducedLists
from dra_driver.kube import paths
from dra_driver.kube.reflector import Reflector

THREAD_NAME: Final = "webhook-policies"


class WebhookPolicies:
    """``start`` and ``stop`` once, by one owner; ``attributes`` from any thread.

    ``on_change`` is called in the watch's thread after each change; it must return at once.
    """

    def __init__(self, api: PagedApi, on_change: Callable[[], None]) -> None:
        self._listed = threading.Event()
        lists = ReducedLists(api, added_attributes)

        def note(_change: object) -> None:
            self._listed.set()
            on_change()

        self._reflector = Reflector(lists, paths.gpu_policies(), "", note, slim=lists.slim, name=THREAD_NAME)

    def start(self) -> None:
        self._reflector.start()

    def stop(self) -> None:
        """Idempotent."""
        self._reflector.stop()

    def attributes(self) -> Attributes | None:
        """None while the copy may be outdated: then no attribute can be called unknown."""
        if not self._listed.is_set() or self._reflector.problem is not None:
            return None
        return {name: items for name, items in self._reflector.items().items() if items}


def added_attributes(item: Mapping[str, Any]) -> list[Any]:
    """What a GpuPolicy adds; empty for none, and for what is malformed."""
    spec = item.get("spec")
    found = spec.get("attributes") if isinstance(spec, dict) else None
    return found if isinstance(found, list) else []
