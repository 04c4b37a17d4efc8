"""A joined look as the watchdog, the search for foreign processes and that for idle claims take it."""

from msgspec.structs import replace

from dra_driver.core.model.usage_rules import UsageRules
from dra_driver.node.usage.idle import claim_uses
from dra_driver.node.usage.join import join
from dra_driver.node.usage.sources import Unread
from dra_driver.node.usage.values import Assignments
from dra_driver.node.usage.watchdog import share_uses
from tests.unit.node.usage.claims import GIB
from tests.unit.node.usage.test_join import LOOK, SHARES, assigned, claimed, process, reading, share, use

RULES = UsageRules(idle_after_min=5)


def ruled(assignments: Assignments) -> Assignments:
    return replace(assignments, gpus=(replace(assignments.gpus[0], rules=RULES),))


def test_shares_with_their_pods_and_rules() -> None:
    """All processes of a claim on a GPU together; the rules are the GPU's."""
    one, two = share_uses(join(replace(LOOK, assignments=ruled(SHARES))))
    assert (one.claim.name, one.device, one.used_bytes, one.grant_bytes) == ("one", "gpu-0", 4 * GIB, 20 * GIB)
    assert (one.processes, [pod.name for pod in one.pods], one.rules) == (1, ["pod-a"], RULES)
    assert two.used_bytes == 6 * GIB
    both = share_uses(join(replace(LOOK, assignments=assigned(one=(share(1), share(2))))))
    assert [(each.grant_bytes, each.used_bytes) for each in both] == [(40 * GIB, 4 * GIB)]


def test_what_is_not_a_share_is_not_judged() -> None:
    """Whole GPUs end where the hardware says, and shares without a grant of memory have no limit."""
    free = replace(share(2), memory_bytes=None)
    assert share_uses(join(replace(LOOK, assignments=assigned(one=use(), two=free)))) == []


def test_unknown_memory_is_never_over() -> None:
    """Nor is a look without the kubelet."""
    unknown = join(replace(LOOK, pods=Unread(reason="gone")))
    assert [each.used_bytes for each in share_uses(unknown)] == [None, None]
    assert [each.used for each in claim_uses(unknown)] == [None, None]
    assert [gpu.unattributed for gpu in unknown.gpus] == [None]


def test_claims_that_compute_and_claims_that_do_not() -> None:
    """A process with utilisation uses the claim; one at 0 does not; no process neither."""
    idle = reading(process(1, 4, 0))
    found = claim_uses(join(replace(LOOK, assignments=ruled(SHARES), readings=(idle,))))
    assert {each.claim.name: (each.used, each.after_min) for each in found} == {"one": (False, 5), "two": (False, 5)}
    unknown = reading(process(1, 4, None), process(2, 4, 7))
    found = claim_uses(join(replace(LOOK, readings=(unknown,))))
    assert {each.claim.name: each.used for each in found} == {"one": None, "two": True}


def test_monitors_are_no_claims_that_idle() -> None:
    """Admin access uses nothing."""
    assert claim_uses(join(replace(LOOK, assignments=assigned(one=use(admin_access=True))))) == []


def test_a_process_that_may_be_another_claims_makes_none_of_them_idle() -> None:
    """Of two claims in one container it is not known which one computes."""
    both = (claimed("one", share(1)), claimed("two", share(2)))
    found = claim_uses(join(replace(LOOK, pods={("team", "pod-a"): {"main": both}})))
    assert [each.used for each in found] == [None, None]
