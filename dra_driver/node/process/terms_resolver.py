"""Resolve the terms of each GPU of this node from policies, the newest inventory and the forms in use."""

import logging
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence

from msgspec import Struct, field
from msgspec.structs import replace

from dra_driver.core.errors import DraError, DriverUnavailableError
from dra_driver.core.model.gpu import Snapshot
from dra_driver.core.model.ids import GpuUuid
from dra_driver.core.model.terms import DETACHED_TAINT, GpuTerms, Taint, Terms, Use, terms_of
from dra_driver.core.telemetry import metrics
from dra_driver.node.policy import PolicySource
from dra_driver.node.process.node_events import Warn

log = logging.getLogger(__name__)

CLOSED = GpuTerms(offered=False)
"""For a GPU whose terms are not resolved yet. The default terms would offer it to every claim."""


class _Resolved(Struct, frozen=True):
    """Terms, and the snapshot and uses that they were resolved for; no snapshot before the first success."""

    snapshot: Snapshot | None = None
    terms: Terms = field(default_factory=dict)
    uses: tuple[Use, ...] = ()


class TermsResolver:
    """The terms in force, resolved when the inventory or the policies change. Thread-safe. While they depend on the
    forms in use (newer terms wait for a free GPU, or a GPU is shared), also when these change."""

    def __init__(self, policies: PolicySource, uses: Callable[[], Iterable[Use]]) -> None:
        self._policies = policies
        self._uses = uses
        self._lock = threading.Lock()  # serialises update(), which alone assigns the fields below
        # One assignment of a pair: current() reads it without the lock and must not see a new snapshot with old terms.
        self._resolved = _Resolved()
        self._problem: str | None = None
        self._reported: str | None = None  # the problem that has an event; one thread reports

    @property
    def problem(self) -> str | None:
        """The reason why the newest policies are not in force, or terms cannot be resolved; None otherwise."""
        return self._problem or self._policies.problem

    @property
    def is_known(self) -> bool:
        """Return whether the policies were read; until then, publish nothing."""
        return self._policies.is_known

    def report(self, warn: Warn) -> None:
        """Record an event when policies are not in force, because their authors do not see the node's log."""
        problem = self.problem
        metrics.policies_in_force.set(problem is None)
        if problem in (None, self._reported) or warn("GpuPolicyProblem", problem or ""):
            self._reported = problem

    def current(self) -> Terms:
        """The terms in force. Never waits for the journal or for ``update``. Raises DriverUnavailableError until terms
        were resolved once: with default terms a share would be refused permanently."""
        resolved = self._resolved
        if resolved.snapshot is None:
            reason = self._problem or "the GPUs have not been read yet"
            raise DriverUnavailableError(f"the terms of this node's GPUs are not resolved yet: {reason}")
        return resolved.terms

    def of_gpu(self, gpu: GpuUuid) -> GpuTerms | None:
        """The terms in force of one GPU; None until they were resolved for it. Never waits."""
        resolved = self._resolved
        if resolved.snapshot is None or resolved.snapshot.gpu_by_uuid(gpu) is None:
            return None
        return terms_of(resolved.terms, gpu)

    def expected(self, snapshot: Snapshot) -> Terms:
        """The result of ``update`` for unused GPUs; puts nothing in force. Empty if unknown."""
        try:
            return self._policies.terms(snapshot, ())
        except DraError as error:
            log.warning("cannot apply policies yet", extra={"reason": error})
            return {}

    def update(self, snapshot: Snapshot) -> Terms:
        """Resolve the terms for ``snapshot``; equal terms are the same object as before. Keeps the former terms if the
        journal or the policies cannot be read; new GPUs are then not offered."""
        with self._lock:
            changed = self._policies.check()
            resolved = self._resolved
            if not changed and any(
                terms.waiting or terms.sharing or terms.partition_sharing for terms in resolved.terms.values()
            ):
                try:
                    changed = tuple(self._uses()) != resolved.uses
                except DraError:
                    changed = True  # the resolution reports the error
            if changed or self._problem is not None or snapshot is not resolved.snapshot:
                self._resolve(snapshot)
            return self._resolved.terms

    def _resolve(self, snapshot: Snapshot) -> None:
        before = self._resolved
        try:
            uses = tuple(self._uses())
            terms = self._policies.terms(snapshot, uses)
        except DraError as error:
            if str(error) != self._problem and self._policies.is_known:
                log.warning("cannot apply policies", extra={"reason": error})
            self._problem = str(error)
            # GPUs that appeared after the last success are closed; earlier ones keep their terms.
            known = {gpu.uuid for gpu in before.snapshot.gpus} if before.snapshot is not None else set()
            new = [gpu.uuid for gpu in snapshot.gpus if gpu.uuid not in known and gpu.uuid not in before.terms]
            if new:
                self._resolved = _Resolved(before.snapshot, {**before.terms, **dict.fromkeys(new, CLOSED)}, before.uses)
            return
        self._problem = None
        if terms == before.terms:
            terms = before.terms  # callers compare by identity to see whether anything changed
        for gpu, found in terms.items():
            former = before.terms.get(gpu)
            if found.waiting and (former is None or former.waiting != found.waiting):
                log.info("new terms wait until the GPU is free", extra={"gpu": gpu, "reason": found.waiting})
        self._resolved = _Resolved(snapshot, terms, uses)


Amend = Callable[[Snapshot, Terms], Mapping[GpuUuid, GpuTerms]]
"""New terms of the GPUs with a condition; empty without one. Never raises."""


class PublishedTerms:
    """The published terms of GPUs: the terms of ``base``, amended by transient conditions of the hardware.
    Prepares use ``base``: a claim that was allocated before a condition began is tried. Not thread-safe."""

    def __init__(self, base: TermsResolver, amendments: Sequence[Amend]) -> None:
        self._base, self._amendments = base, amendments
        self._last: Terms = {}

    @property
    def is_known(self) -> bool:
        return self._base.is_known

    def update(self, snapshot: Snapshot) -> Terms:
        terms = self._base.update(snapshot)
        for amend in self._amendments:
            changed = amend(snapshot, terms)
            if changed:
                terms = {**terms, **changed}
        if terms != self._last:
            self._last = terms
        return self._last


class DetachTaint:
    """The taint `DETACHED_TAINT` with a value, or none. One owner sets it and publishes after it."""

    def __init__(self) -> None:
        self.value: str | None = None

    def amend(self, snapshot: Snapshot, terms: Terms) -> Mapping[GpuUuid, GpuTerms]:
        """The terms of every GPU with the additional taint; empty without one."""
        if self.value is None:
            return {}
        taint = Taint(key=DETACHED_TAINT, value=self.value, effect="NoSchedule")
        known = {gpu.uuid: terms_of(terms, gpu.uuid) for gpu in snapshot.gpus}
        return {gpu: replace(found, taints=(*found.taints, taint)) for gpu, found in known.items()}
