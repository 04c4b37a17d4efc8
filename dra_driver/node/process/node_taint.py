"""A taint of all devices of the node, for `published_terms.PublishedTerms`."""

from collections.abc import Mapping

from msgspec.structs import replace

from dra_driver.core.model.gpu import Snapshot
from dra_driver.core.model.ids import GpuUuid
from dra_driver.core.model.terms import DETACHED_TAINT, GpuTerms, Taint, Terms, terms_of


class NodeTaint:
    """The taint `DETACHED_TAINT` with a value, or none. One owner sets it and publishes after it."""

    def __init__(self) -> None:
        self.value: str | None = None

    def amend(self, snapshot: Snapshot, terms: Terms) -> Mapping[GpuUuid, GpuTerms]:
        """The terms of every GPU with the taint in addition; empty without one."""
        if self.value is None:
            return {}
        taint = Taint(key=DETACHED_TAINT, value=self.value, effect="NoSchedule")
        known = {gpu.uuid: terms_of(terms, gpu.uuid) for gpu in snapshot.gpus}
        return {gpu: replace(found, taints=(*found.taints, taint)) for gpu, found in known.items()}
