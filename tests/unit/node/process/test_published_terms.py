"""The taint of all devices of a node."""

from dra_driver.core.model.gpu import Gpu, Snapshot
from dra_driver.core.model.ids import GpuUuid
from dra_driver.core.model.terms import DETACHED_TAINT, GpuTerms, Taint, Terms
from dra_driver.node.process.terms_resolver import DetachTaint, PublishedTerms
from tests.fakes.stand_in import stand_in

FIRST, SECOND = GpuUuid("GPU-0"), GpuUuid("GPU-1")
SNAPSHOT = Snapshot(gpus=(Gpu(uuid=FIRST, minor=0), Gpu(uuid=SECOND, minor=1)))
RESERVED = Taint(key="gpu.dra-driver.io/reserved", value="p", effect="NoSchedule")


class Base:
    """Terms of one GPU by a policy; the other has the default terms."""

    is_known = True

    def __init__(self) -> None:
        self.terms: Terms = {FIRST: GpuTerms(policy="p", taints=(RESERVED,))}

    def update(self, _snapshot: Snapshot) -> Terms:
        return self.terms


def test_it_is_added_to_every_gpu_and_removed_again() -> None:
    """GPUs without a policy get it as well, and taints of policies stay."""
    base, taint = Base(), DetachTaint()
    published = PublishedTerms(stand_in(base), [taint.amend])
    assert published.update(SNAPSHOT) == base.terms
    taint.value = "requested"
    tainted = published.update(SNAPSHOT)
    detached = Taint(key=DETACHED_TAINT, value="requested", effect="NoSchedule")
    assert {gpu: terms.taints for gpu, terms in tainted.items()} == {FIRST: (RESERVED, detached), SECOND: (detached,)}
    assert published.update(SNAPSHOT) is tainted, "the publisher compares by identity"
    taint.value = None
    assert published.update(SNAPSHOT) == base.terms
