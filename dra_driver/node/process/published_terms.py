"""The terms under which GPUs are published: those in force, amended by conditions of the hardware that pass.

Prepares use the terms in force (``terms_resolver.py``): a claim that was allocated before a condition began is tried.
"""

from collections.abc import Callable, Mapping, Sequence

from msgspec.structs import replace

from dra_driver.core.model.gpu import Snapshot
from dra_driver.core.model.ids import GpuUuid
from dra_driver.core.model.terms import DETACHED_TAINT, GpuTerms, Taint, Terms, terms_of
from dra_driver.node.process.terms_resolver import TermsResolver

Amend = Callable[[Snapshot, Terms], Mapping[GpuUuid, GpuTerms]]
"""New terms of the GPUs that a condition is about; empty without one. Never raises."""


class PublishedTerms:
    """Amends the terms of ``base``. Not thread-safe: the inventory publisher calls it under its lock."""

    def __init__(self, base: TermsResolver, amendments: Sequence[Amend]) -> None:
        self._base = base
        self._amendments = amendments
        self._last: Terms = {}

    @property
    def is_known(self) -> bool:
        """See ``TermsResolver.is_known``."""
        return self._base.is_known

    def update(self, snapshot: Snapshot) -> Terms:
        """See ``TermsResolver.update``; equal terms are the same object as before."""
        terms = self._base.update(snapshot)
        for amend in self._amendments:
            changed = amend(snapshot, terms)
            if changed:
                terms = {**terms, **changed}
        if terms != self._last:
            self._last = terms
        return self._last


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
