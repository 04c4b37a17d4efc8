"""When terms are worked out again, and what holds meanwhile."""

from collections.abc import Iterable

from dra_driver.errors import ConfigurationError, DraError, StorageError
from dra_driver.kubelet.terms_book import TermsBook
from dra_driver.model.gpu import Snapshot
from dra_driver.model.ids import GpuUuid
from dra_driver.model.terms import Form, GpuTerms, Terms, Use

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
        assert snapshot == SNAPSHOT
        self.asked.append(list(uses))
        if isinstance(self.answer, DraError):
            raise self.answer
        return dict(self.answer)


def test_terms_are_worked_out_once_per_inventory_and_policy_change() -> None:
    """The chore comes every five seconds for as long as the process lives."""
    policies = Policies()
    book = TermsBook(policies, list)
    for _ in range(3):
        book.update(SNAPSHOT)
    assert len(policies.asked) == 1
    policies.changed = True
    book.update(SNAPSHOT)
    assert len(policies.asked) == 2


def test_same_terms_are_the_same_object() -> None:
    """Whoever publishes looks at identity to see whether anything changed."""
    policies = Policies()
    policies.answer = {UUID: GpuTerms(policy="p")}
    book = TermsBook(policies, list)
    first = book.update(SNAPSHOT)
    policies.changed = True
    assert book.update(SNAPSHOT) is first is book.current()


def test_waiting_terms_are_looked_at_again_with_what_is_in_use_by_then() -> None:
    """A form in use stays until it is free, and not longer."""
    policies, uses = Policies(), [Use(gpu_uuid=UUID, form=Form.WHOLE)]
    policies.answer = {UUID: GpuTerms(waiting="gpu-0 becomes hidden when it is free")}
    book = TermsBook(policies, lambda: list(uses))
    book.update(SNAPSHOT)
    uses.clear()
    policies.answer = {UUID: GpuTerms(offered=False)}
    assert not book.update(SNAPSHOT)[UUID].offered
    assert [len(asked) for asked in policies.asked] == [1, 0]


def test_terms_of_before_hold_while_they_cannot_be_worked_out() -> None:
    """An unreadable journal or contradicting policies change nothing that is published, and say why."""
    policies = Policies()
    policies.answer = {UUID: GpuTerms(policy="p")}
    book = TermsBook(policies, list)
    before = book.update(SNAPSHOT)
    for error in (ConfigurationError("a and b contradict"), StorageError("disk full")):
        policies.answer, policies.changed = error, True
        assert book.update(SNAPSHOT) is before
        assert book.problem == str(error)
    policies.answer = {}
    assert book.update(SNAPSHOT) == {}
    assert book.problem is None
