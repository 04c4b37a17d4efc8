"""The terms under which GPUs are published: those in force, amended by conditions of the hardware that pass.

Prepares use the terms in force (``terms_resolver.py``): a claim that was allocated before a condition began is tried.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from dra_driver.core.model.gpu import Snapshot
from dra_driver.core.model.ids import GpuUuid
from dra_driver.core.model.terms import GpuTerms, Terms

Amend = Callable[[Snapshot, Terms], Mapping[GpuUuid, GpuTerms]]
"""New terms of the GPUs that a condition is about; empty without one. Never raises."""


class TermsInForce(Protocol):
    """The part of ``terms_resolver.TermsResolver`` that is needed here."""

    @property
    def is_known(self) -> bool: ...
    def update(self, snapshot: Snapshot) -> Terms: ...


class PublishedTerms:
    """Amends the terms of ``base``. Not thread-safe: the inventory publisher calls it under its lock."""

    def __init__(self, base: TermsInForce, amendments: Sequence[Amend]) -> None:
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
