"""When terms are worked out again, and what holds meanwhile."""

from collections.abc import Iterable

import pytest

from dra_driver.errors import ConfigurationError, DraError, DriverUnavailableError, StorageError
from dra_driver.kubelet.terms_resolver import TermsResolver
from dra_driver.model.gpu import Gpu, Snapshot
from dra_driver.model.ids import GpuUuid
from dra_driver.model.terms import Form, GpuTerms, SharingTerms, Strategy, Terms, Use

UUID = GpuUuid("GPU-0")
SNAPSHOT = Snapshot(driver_version="580.65.06")


class Policies:
    problem: str | None = None

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


def test_terms_are_worked_out_once_per_inventory_and_policy_change() -> None:
    """The chore comes every five seconds for as long as the process lives."""
    policies = Policies()
    resolver = TermsResolver(policies, list)
    for _ in range(3):
        resolver.update(SNAPSHOT)
    assert len(policies.asked) == 1
    policies.changed = True
    resolver.update(SNAPSHOT)
    assert len(policies.asked) == 2


def test_same_terms_are_the_same_object() -> None:
    """Whoever publishes looks at identity to see whether anything changed."""
    policies = Policies()
    policies.answer = {UUID: GpuTerms(policy="p")}
    resolver = TermsResolver(policies, list)
    first = resolver.update(SNAPSHOT)
    policies.changed = True
    assert resolver.update(SNAPSHOT) is first is resolver.current()


def test_waiting_terms_are_looked_at_again_with_what_is_in_use_by_then() -> None:
    """A form in use stays until it is free, and not longer."""
    policies, uses = Policies(), [Use(gpu_uuid=UUID, form=Form.WHOLE)]
    policies.answer = {UUID: GpuTerms(waiting="gpu-0 becomes hidden when it is free")}
    resolver = TermsResolver(policies, lambda: list(uses))
    resolver.update(SNAPSHOT)
    uses.clear()
    policies.answer = {UUID: GpuTerms(offered=False)}
    assert not resolver.update(SNAPSHOT)[UUID].offered
    assert [len(asked) for asked in policies.asked] == [1, 0]


def test_terms_of_a_shared_gpu_follow_its_shares() -> None:
    """Whether some are in use decides what is published when the API server keeps no shares any more."""
    policies = Policies()
    policies.answer = {UUID: GpuTerms(sharing=SharingTerms(strategy=Strategy.MPS))}
    uses: list[Use] = []
    resolver = TermsResolver(policies, lambda: list(uses))
    resolver.update(SNAPSHOT)
    uses.append(Use(gpu_uuid=UUID, form=Form.SHARE))
    resolver.update(SNAPSHOT)
    assert policies.asked == [[], uses]


def test_terms_of_before_hold_while_they_cannot_be_worked_out() -> None:
    """An unreadable journal or contradicting policies change nothing that is published, and say why."""
    policies = Policies()
    policies.answer = {UUID: GpuTerms(policy="p")}
    resolver = TermsResolver(policies, list)
    before = resolver.update(SNAPSHOT)
    for error in (ConfigurationError("a and b contradict"), StorageError("disk full")):
        policies.answer, policies.changed = error, True
        assert resolver.update(SNAPSHOT) is before
        assert resolver.problem == str(error)
    policies.answer = {}
    assert resolver.update(SNAPSHOT) == {}
    assert resolver.problem is None


def test_a_gpu_is_not_offered_until_its_terms_could_be_worked_out_once() -> None:
    """A GPU that policies hide must not become free for all because the journal could not be read just then."""
    policies, uuids = Policies(), [GpuUuid("GPU-0"), GpuUuid("GPU-1")]
    first, both = (
        Snapshot(gpus=tuple(Gpu(uuid=uuid, minor=minor) for minor, uuid in enumerate(uuids[:count])))
        for count in (1, 2)
    )
    policies.answer = StorageError("disk full")
    resolver = TermsResolver(policies, list)
    assert not resolver.update(first)[uuids[0]].offered
    policies.answer = {}
    assert resolver.update(first) == {}
    policies.answer = StorageError("disk full")
    closed = resolver.update(both)
    assert {uuid: terms.offered for uuid, terms in closed.items()} == {uuids[1]: False}
    assert resolver.update(both) is closed
    policies.answer = {}
    assert resolver.update(both) == {}


def test_nothing_is_prepared_by_terms_that_are_not_known() -> None:
    """A slow first look at the hardware: the call waits for it instead of refusing a share as one of no policy."""
    policies = Policies()
    resolver = TermsResolver(policies, list)
    with pytest.raises(DriverUnavailableError, match="not known yet"):
        resolver.current()
    policies.answer = StorageError("disk full")
    resolver.update(SNAPSHOT)
    with pytest.raises(DriverUnavailableError, match="disk full"):
        resolver.current()
    policies.answer = {}
    resolver.update(SNAPSHOT)
    assert resolver.current() == {}
