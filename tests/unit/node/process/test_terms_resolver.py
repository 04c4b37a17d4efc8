"""When terms are resolved again, and which terms apply until then."""

from collections.abc import ItemsView, Iterable
from typing import Any

import pytest

from dra_driver.core.errors import ConfigurationError, DraError, DriverUnavailableError, StorageError
from dra_driver.core.model.gpu import Gpu, Snapshot
from dra_driver.core.model.ids import GpuUuid
from dra_driver.core.model.terms import DETACHED_TAINT, Form, GpuTerms, SharingTerms, Strategy, Taint, Terms, Use
from dra_driver.node.process.terms_resolver import DetachTaint, PublishedTerms, TermsResolver
from tests.fakes.stand_in import stand_in

UUID, OTHER = GpuUuid("GPU-0"), GpuUuid("GPU-1")
SNAPSHOT = Snapshot(driver_version="580.65.06")
GPUS = Snapshot(gpus=(Gpu(uuid=UUID, minor=0), Gpu(uuid=OTHER, minor=1)))


class Policies:
    problem: str | None = None
    is_known = True

    def __init__(self) -> None:
        self.changed = False
        self.answer: Terms | DraError = {}
        self.asked: list[list[Use]] = []

    def check(self) -> bool:
        changed, self.changed = self.changed, False
        return changed

    def terms(self, snapshot: Snapshot, uses: Iterable[Use]) -> Terms:
        self.asked.append(list(uses))
        if isinstance(self.answer, DraError):
            raise self.answer
        return dict(self.answer)


@pytest.fixture
def policies() -> Policies:
    return Policies()


@pytest.fixture
def resolver(policies: Policies) -> TermsResolver:
    return TermsResolver(stand_in(policies), list)


def test_terms_are_resolved_once_per_inventory_and_policy_change(policies: Policies, resolver: TermsResolver) -> None:
    policies.answer = {UUID: GpuTerms(policy="p")}
    first = resolver.update(SNAPSHOT)
    for _ in range(2):
        resolver.update(SNAPSHOT)
    assert len(policies.asked) == 1
    policies.changed = True
    assert resolver.update(SNAPSHOT) is first is resolver.current(), "the publisher compares by identity"
    assert len(policies.asked) == 2


def test_waiting_terms_are_resolved_again_with_the_uses_of_that_time(policies: Policies) -> None:
    uses = [Use(gpu_uuid=UUID, form=Form.WHOLE)]
    policies.answer = {UUID: GpuTerms(waiting="gpu-0 becomes hidden when it is free")}
    resolver = TermsResolver(stand_in(policies), lambda: list(uses))
    resolver.update(SNAPSHOT)
    uses.clear()
    policies.answer = {UUID: GpuTerms(offered=False)}
    assert not resolver.update(SNAPSHOT)[UUID].offered
    assert [len(asked) for asked in policies.asked] == [1, 0]


def test_terms_of_a_shared_gpu_follow_its_shares(policies: Policies) -> None:
    policies.answer = {UUID: GpuTerms(sharing=SharingTerms(strategy=Strategy.MPS))}
    uses: list[Use] = []
    resolver = TermsResolver(stand_in(policies), lambda: list(uses))
    resolver.update(SNAPSHOT)
    uses.append(Use(gpu_uuid=UUID, form=Form.SHARE))
    for _ in range(3):  # only the first time
        resolver.update(SNAPSHOT)
    assert policies.asked == [[], uses]


def test_former_terms_apply_while_new_ones_cannot_be_resolved(policies: Policies, resolver: TermsResolver) -> None:
    """An unreadable journal or contradicting policies change nothing that is published; ``problem`` says why."""
    policies.answer = {UUID: GpuTerms(policy="p")}
    before = resolver.update(SNAPSHOT)
    for error in (ConfigurationError("a and b contradict"), StorageError("disk full")):
        policies.answer, policies.changed = error, True
        assert resolver.update(SNAPSHOT) is before
        assert resolver.problem == str(error)
    policies.answer = {}
    assert resolver.update(SNAPSHOT) == {}
    assert resolver.problem is None


def test_a_gpu_is_not_offered_until_its_terms_were_resolved_once(policies: Policies, resolver: TermsResolver) -> None:
    """A GPU that policies hide must not be offered because the journal could not be read at that moment."""
    first = Snapshot(gpus=GPUS.gpus[:1])
    policies.answer = StorageError("disk full")
    assert not resolver.update(first)[UUID].offered
    policies.answer = {}
    assert resolver.update(first) == {}
    policies.answer = StorageError("disk full")
    closed = resolver.update(GPUS)
    assert {uuid: terms.offered for uuid, terms in closed.items()} == {OTHER: False}
    assert resolver.update(GPUS) is closed
    policies.answer = {}
    assert resolver.update(GPUS) == {}


def test_unknown_terms_are_an_error_to_retry(policies: Policies, resolver: TermsResolver) -> None:
    """During a slow first read of the hardware a prepare is repeated; default terms would refuse a share for good."""
    with pytest.raises(DriverUnavailableError, match="not resolved yet"):
        resolver.current()
    policies.answer = StorageError("disk full")
    resolver.update(SNAPSHOT)
    with pytest.raises(DriverUnavailableError, match="disk full"):
        resolver.current()
    policies.answer = {}
    resolver.update(SNAPSHOT)
    assert resolver.current() == {}


class ReadingTerms(dict[GpuUuid, GpuTerms]):
    """Terms that call ``read`` whenever ``update`` compares or walks them, as a concurrent prepare would."""

    def __init__(self, terms: Terms, read: Any) -> None:
        super().__init__(terms)
        self.read = read

    def __eq__(self, other: object) -> bool:
        self.read()
        return super().__eq__(other)

    __hash__ = None

    def items(self) -> ItemsView[GpuUuid, GpuTerms]:  # type: ignore[override]
        self.read()
        return super().items()


class ReadingPolicies(Policies):
    """Policies whose terms read the resolver's current terms during ``update``."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[Terms | DraError] = []
        self.resolver = TermsResolver(stand_in(self), list)

    def terms(self, snapshot: Snapshot, uses: Iterable[Use]) -> Terms:
        return ReadingTerms(super().terms(snapshot, uses), self.read)

    def read(self) -> None:
        try:
            self.seen.append(self.resolver.current())
        except DraError as error:
            self.seen.append(error)


def test_a_prepare_during_the_first_update_never_sees_default_terms() -> None:
    """``current`` takes no lock; a snapshot visible before its terms would have a share refused for good."""
    policies = ReadingPolicies()
    policies.answer = {UUID: GpuTerms(sharing=SharingTerms(strategy=Strategy.MPS))}
    policies.resolver.update(SNAPSHOT)
    assert policies.seen
    assert all(isinstance(seen, DriverUnavailableError) for seen in policies.seen), policies.seen
    assert policies.resolver.current() == policies.answer


class Base:
    """Terms of one GPU by a policy; the other has the default terms."""

    is_known = True

    def __init__(self, *taints: Taint) -> None:
        self.terms: Terms = {UUID: GpuTerms(policy="p", taints=taints)}

    def update(self, snapshot: Snapshot) -> Terms:
        assert snapshot is GPUS
        return self.terms


def test_the_taint_of_all_devices_is_added_to_every_gpu_and_removed_again() -> None:
    reserved = Taint(key="gpu.dra-driver.io/reserved", value="p", effect="NoSchedule")
    base, taint = Base(reserved), DetachTaint()
    published = PublishedTerms(stand_in(base), [taint.amend])
    assert published.update(GPUS) == base.terms
    taint.value = "requested"
    tainted = published.update(GPUS)
    detached = Taint(key=DETACHED_TAINT, value="requested", effect="NoSchedule")
    assert {gpu: terms.taints for gpu, terms in tainted.items()} == {UUID: (reserved, detached), OTHER: (detached,)}
    assert published.update(GPUS) is tainted, "the publisher compares by identity"
    taint.value = None
    assert published.update(GPUS) == base.terms
