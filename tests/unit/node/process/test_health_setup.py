"""Which rules conditions are judged by, before and after the GPUs were read."""

from collections.abc import Iterable

from msgspec.structs import replace

from dra_driver.core.errors import StorageError
from dra_driver.core.model.gpu import Snapshot
from dra_driver.core.model.health import HealthCause
from dra_driver.core.model.health_rules import DEFAULT_RULES, HealthRules
from dra_driver.core.model.terms import GpuTerms, Terms, Use
from dra_driver.node.process.health_setup import rules_in_force
from dra_driver.node.process.terms_resolver import TermsResolver
from tests.unit.node.slices.gpus import gpu, snapshot

LOST, OTHER = gpu(0), gpu(1)
EVICTS = HealthRules(evicting_causes=frozenset({HealthCause.LOST}))


class Policies:
    """One policy for GPU 0."""

    def __init__(self) -> None:
        self.problem: str | None = None
        self.is_known = True
        self.health = EVICTS
        self.fails = False

    def check(self) -> bool:
        return False

    def terms(self, snapshot: Snapshot, uses: Iterable[Use]) -> Terms:
        if self.fails:
            raise StorageError("no disk")
        wanted = GpuTerms(policy="p", health=self.health)
        return {each.uuid: wanted for each in snapshot.gpus if each == LOST}


def test_a_gpu_that_is_missing_at_the_start_is_judged_by_its_policy() -> None:
    """A condition that evicts would else be weaker until the GPUs are read, and begin anew then."""
    policies = Policies()
    terms = TermsResolver(policies, list)
    early = terms.expected(snapshot(LOST, OTHER))
    assert rules_in_force(terms, early, LOST.uuid) == EVICTS
    terms.update(snapshot(OTHER))
    assert rules_in_force(terms, early, LOST.uuid) == EVICTS, "it is not in the inventory"
    assert rules_in_force(terms, early, OTHER.uuid) == DEFAULT_RULES


def test_newer_policies_are_followed_once_the_terms_are_resolved() -> None:
    """Also those that say nothing about the GPU."""
    policies = Policies()
    terms = TermsResolver(policies, list)
    early = terms.expected(snapshot(LOST))
    policies.health = replace(EVICTS, evicting_causes=frozenset())
    terms.update(snapshot(LOST, OTHER))
    assert rules_in_force(terms, early, LOST.uuid) == policies.health
    assert terms.of_gpu(OTHER.uuid) == GpuTerms()


def test_policies_that_cannot_be_read_have_no_early_rules() -> None:
    """The start goes on."""
    policies = Policies()
    policies.fails = True
    assert TermsResolver(policies, list).expected(snapshot(LOST)) == {}
    assert rules_in_force(TermsResolver(policies, list), {}, LOST.uuid) == DEFAULT_RULES
