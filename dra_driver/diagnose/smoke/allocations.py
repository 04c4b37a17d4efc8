"""Remembers what the claims of a run were allocated. A claim is deallocated in the moment in which its pod ends."""

import threading
from collections.abc import Mapping, Sequence
from typing import Any, Final

from dra_driver.core.errors import ApiUnreachableError
from dra_driver.diagnose.smoke.objects import RUN_LABEL
from dra_driver.diagnose.smoke.view import results_of
from dra_driver.kube import paths
from dra_driver.kube.reflector import ListWatch, Reflector, ReflectorChange

Wire = Mapping[str, Any]
START_S: Final = 20.0
LAG_S: Final = 5.0
"""How far the watch may be behind other answers of the API server."""


class SeenAllocations:
    """Watches the claims of one namespace in a thread of its own. Enter it once."""

    def __init__(self, rest: ListWatch, namespace: str, run: str) -> None:
        self._run = run
        self._seen = threading.Condition()  # guards the field below, and wakes those that wait for it
        self._results: dict[str, Sequence[Wire]] = {}
        self._listed = threading.Event()
        self._reflector = Reflector(
            rest, paths.resource_claims(namespace), "", self._changed, slim=self._slim, name="smoke-claims"
        )

    def __enter__(self) -> "SeenAllocations":
        """Raises ApiUnreachableError when the claims cannot be watched."""
        self._reflector.start()
        if not self._listed.wait(START_S):
            problem = self._reflector.problem or f"no list of claims within {START_S:.0f} s"
            self._reflector.stop()
            raise ApiUnreachableError(f"the claims of the namespace cannot be watched: {problem}")
        return self

    def __exit__(self, *_: object) -> None:
        self._reflector.stop()

    def of(self, name: str) -> Sequence[Wire]:
        """The allocation results that the claim has or had; none if it was never seen allocated."""
        with self._seen:
            self._seen.wait_for(lambda: name in self._results, LAG_S)
            return self._results.get(name, ())

    def _slim(self, item: dict[str, Any]) -> dict[str, Any] | None:
        labels = item["metadata"].get("labels") or {}
        if labels.get(RUN_LABEL) != self._run:
            return None
        if results := results_of(item):
            with self._seen:
                self._results[item["metadata"]["name"]] = results
                self._seen.notify_all()
        return item

    def _changed(self, change: ReflectorChange) -> None:
        if change.kind == "listed":
            self._listed.set()
