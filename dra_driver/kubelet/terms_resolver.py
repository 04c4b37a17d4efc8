"""What the GPUs of this node may be published as now: policies, the newest inventory and what is in use, together.

Owns when terms are worked out again, and the last ones. Refuses to know what a policy says (``policy/``) and what
follows from terms (``slices/``, ``claims/``).
"""

import logging
import threading
from collections.abc import Callable, Iterable
from typing import Protocol

from dra_driver.errors import DraError, DriverUnavailableError
from dra_driver.model.gpu import Snapshot
from dra_driver.model.terms import GpuTerms, Terms, Use

log = logging.getLogger(__name__)

CLOSED = GpuTerms(offered=False)
"""For a GPU of which nobody could say yet what it may be used as: the default terms would offer it to everybody."""


class Policies(Protocol):
    """The part of ``policy.source.PolicySource`` that is needed here."""

    @property
    def problem(self) -> str | None: ...
    def check(self) -> bool: ...
    def terms(self, snapshot: Snapshot, uses: Iterable[Use]) -> Terms: ...


class TermsResolver:
    """The terms in force. Thread-safe.

    They are worked out when the inventory changes, when policies change, and every time they are asked for while they
    depend on what is in use: a form in use keeps newer terms waiting, or a GPU is shared.
    """

    def __init__(self, policies: Policies, uses: Callable[[], Iterable[Use]]) -> None:
        self._policies = policies
        self._uses = uses
        self._lock = threading.Lock()  # guards the fields below; one working-out at a time
        self._snapshot: Snapshot | None = None
        self._terms: Terms = {}
        self._problem: str | None = None

    @property
    def problem(self) -> str | None:
        """Why the terms in force are not those of the newest policies, or cannot be worked out; None if they are."""
        return self._problem or self._policies.problem

    def current(self) -> Terms:
        """The terms in force. Never waits for the journal.

        Raises DriverUnavailableError before they were worked out for the first time: under the default terms a share
        would be refused for good.
        """
        if self._snapshot is None:
            reason = self._problem or "the GPUs have not been looked at yet"
            raise DriverUnavailableError(f"what this node's GPUs may be used as is not known yet: {reason}")
        return self._terms

    def update(self, snapshot: Snapshot) -> Terms:
        """The terms for ``snapshot``. When the journal cannot be read, those of before; new GPUs are not offered."""
        with self._lock:
            changed = self._policies.check()
            depends = any(terms.waiting or terms.sharing for terms in self._terms.values())
            if changed or depends or self._problem is not None or snapshot is not self._snapshot:
                self._work_out(snapshot)
            return self._terms

    def _work_out(self, snapshot: Snapshot) -> None:
        try:
            terms = self._policies.terms(snapshot, self._uses())
        except DraError as error:
            if str(error) != self._problem:
                log.warning("policies cannot be applied", extra={"reason": error})
            self._problem = str(error)
            self._close_unknown(snapshot)
            return
        self._problem = None
        self._snapshot = snapshot
        if terms == self._terms:
            return  # the same object goes on meaning "nothing changed"
        for gpu, found in terms.items():
            before = self._terms.get(gpu)
            if found.waiting and (before is None or before.waiting != found.waiting):
                log.info("new terms wait for the GPU to be free", extra={"gpu": gpu, "reason": found.waiting})
        self._terms = terms

    def _close_unknown(self, snapshot: Snapshot) -> None:
        """GPUs that came after the last success; those of before keep what they have."""
        known = {gpu.uuid for gpu in self._snapshot.gpus} if self._snapshot is not None else set()
        new = [gpu.uuid for gpu in snapshot.gpus if gpu.uuid not in known and gpu.uuid not in self._terms]
        if new:
            self._terms = {**self._terms, **dict.fromkeys(new, CLOSED)}
