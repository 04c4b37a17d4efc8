"""A GPU that is published whole, in partitions and shared: what keeps claims away, in words."""

from typing import Any

from dra_driver.explain.report import Answer, Explanation
from dra_driver.explain.scheduler import scheduler_of
from dra_driver.model.terms import GpuTerms, SharingTerms, Strategy, Taint
from tests.fakes.dra_objects import exactly
from tests.fakes.published import h100, having, share, slice_name, slices
from tests.unit.explain.clusters import A, said, template

MPS = SharingTerms(strategy=Strategy.MPS, max_shares=3)


def whole(**fields: Any) -> dict[str, Any]:
    return exactly(deviceClassName="gpu.nvidia.com", **fields)


def part(profile: str = "1g.10gb", name: str = "gpu") -> dict[str, Any]:
    return exactly(name, f'{A}.profile == "{profile}"', deviceClassName="mig.nvidia.com")


def asking(**amounts: str) -> dict[str, Any]:
    return whole(capacity={"requests": amounts})


def fix(report: Explanation) -> str:
    assert report.nearest_miss is not None
    return report.nearest_miss.fix


def seen(report: Explanation) -> str:
    return report.requests[0].reasons[-1].seen[0]


def test_of_many_partitions_in_use_any_one_would_do() -> None:
    claims = [having(f"c{start}", slice_name(start), users=(f"p{start}",)) for start in range(7)]
    report = said(h100(claims=claims, templates=[template("t", part())]))
    assert "7 devices would suit request gpu: 7 in use" in report.verdict.sentence
    assert fix(report).endswith("; 6 more devices are as near")


def test_a_whole_gpu_waits_for_all_that_have_parts_of_it() -> None:
    claims = [having(f"c{start}", slice_name(start), users=(f"p{start}",)) for start in range(2)]
    report = said(h100(claims=claims, templates=[template("t", whole())]))
    assert "1 on GPUs that others use" in report.verdict.sentence
    assert seen(report).startswith("gpu-0-counter-set: multiprocessors short by 32 (132 needed, 100 left), used by ")
    assert fix(report) == "end all of what uses the GPU: default/c1 (pod p1), default/c0 (pod p0)"


def test_a_partition_waits_for_those_alone_whose_counters_it_needs() -> None:
    """A 4g in the lower half is kept away by a slice there, not by its neighbour in the upper half."""
    claims = [having("low", slice_name(0), users=("p",)), having("high", slice_name(6), users=("q",))]
    report = said(h100(claims=claims, templates=[template("t", part("4g.40gb"))]))
    assert "memory-slice-0 short by 1" in seen(report)
    assert fix(report) == "end what uses the GPU: default/low (pod p)"


def test_a_share_that_asks_for_too_much_is_told_what_is_left_and_who_has_the_rest() -> None:
    claims = [share("one", memory="50Gi", percent="70", users=("p",))]
    report = said(
        h100(sharing=MPS, claims=claims, templates=[template("t", asking(memory="40Gi", computePercent="5"))])
    )
    assert "1 without enough capacity (memory)" in report.verdict.sentence
    assert report.requests[0].reasons[-1].message == "not enough memory: 40Gi wanted"
    assert seen(report) == "gpu-0 has 30359Mi of 81559Mi free: default/one (pod p) has 50Gi"
    assert fix(report) == "ask for 30359Mi of memory or less; or end what uses it: default/one (pod p)"


def test_what_a_request_does_not_name_it_takes_all_of() -> None:
    """A share of memory alone waits for compute that it never asked for."""
    claims = [share("one", memory="50Gi", percent="70")]
    report = said(h100(sharing=MPS, claims=claims, templates=[template("t", asking(memory="10Gi"))]))
    message = "not enough computePercent: 100 wanted, which is what a request takes that does not name it"
    assert report.requests[0].reasons[-1].message == message
    assert fix(report).startswith("ask for capacity.requests.computePercent: 30 or less; or end what uses it")


def test_all_that_a_share_lacks_is_told_at_once() -> None:
    claims = [share("one", memory="50Gi", percent="70")]
    report = said(h100(sharing=MPS, claims=claims, templates=[template("t", whole())]))
    assert "computePercent: 30 or less; and ask for capacity.requests.memory: 30359Mi or less; or end" in fix(report)


def test_when_no_share_is_left_asking_for_less_does_not_help() -> None:
    claims = [share(f"c{number}", memory="1Gi", percent="1") for number in range(3)]
    wanted = asking(memory="1Gi", computePercent="1")
    report = said(h100(sharing=MPS, claims=claims, templates=[template("t", wanted)]))
    assert seen(report).startswith("gpu-0 has 0 of 3 free: default/c0 (no pod) has 1, ")
    assert fix(report).startswith("end what uses it: default/c0 (no pod), default/c1")


def test_an_amount_that_is_never_given_out_names_the_bounds() -> None:
    report = said(h100(sharing=MPS, templates=[template("t", asking(memory="1Gi", computePercent="150"))]))
    assert fix(report) == "ask for at least 1, at most 100, in steps of 1"


def test_a_share_of_a_gpu_that_nobody_shares_says_who_could() -> None:
    report = said(h100(templates=[template("t", asking(memory="1Gi", computePercent="10"))]))
    message = report.requests[0].reasons[-1].message
    assert message == "has no capacity computePercent, of which the request wants 10: it is not shared"
    assert "GpuPolicy" in fix(report)


def test_admin_access_to_a_gpu_in_use_says_that_counters_are_in_its_way() -> None:
    claims = [having("one", "gpu-0", users=("p",))]
    report = said(h100(claims=claims, templates=[template("t", whole(adminAccess=True))]))
    assert report.requests[0].reasons[-1].message.endswith("the scheduler counts them for admin access as well")
    assert "migProfiles: []" in fix(report)


def test_a_fault_of_the_scheduler_is_told_with_the_way_around() -> None:
    """Two parts of one parent beside a partly used GPU: 1.36 refuses them, and a selector on the free GPU helps."""
    both = [{"matchAttribute": "gpu.nvidia.com/parentUUID"}]
    claims = [having("one", "gpu-0-mig-3g40gb-9-4", users=("p",))]
    state = h100(
        2, claims=claims, templates=[template("t", part("3g.40gb", "a"), part("3g.40gb", "b"), constraints=both)]
    )
    report = said(state, scheduler=scheduler_of("v1.36.2", {}))
    (fault,) = [cause for cause in report.causes if cause.code == "schedulerFault"]
    assert "a has the devices (a=gpu-1-mig-3g40gb-9-4, b=gpu-1-mig-3g40gb-9-0)" in fault.message
    assert "stays charged" in fault.message
    clause = fault.fix.removeprefix("add ").partition(" to the selectors")[0]
    pinned = [exactly(name, f'{A}.profile == "3g.40gb" && {clause}', deviceClassName="mig.nvidia.com") for name in "ab"]
    helped = h100(2, claims=claims, templates=[template("t", *pinned, constraints=both)])
    assert said(helped, scheduler=scheduler_of("v1.36.2", {})).verdict.answer is Answer.FITS
    assert said(state, scheduler=scheduler_of("v1.37.0", {})).verdict.answer is Answer.FITS


def test_what_really_does_not_fit_is_no_fault() -> None:
    claims = [having("one", "gpu-0", users=("p",))]
    report = said(h100(claims=claims, templates=[template("t", whole())]))
    assert report.causes == ()


def test_taints_of_policies_say_whose_they_are() -> None:
    """A reserved GPU shows the toleration, one that is about to change asks for patience."""
    for key, told in (
        ("gpu.dra-driver.io/reserved", "value: team-a, effect: NoSchedule}]; add that"),
        ("gpu.dra-driver.io/draining", "wait: GpuPolicy team-a makes something else of the GPU"),
    ):
        terms = GpuTerms(policy="team-a", taints=(Taint(key=key, value="team-a", effect="NoSchedule"),))
        report = said(h100(slices=slices(terms=terms), templates=[template("t", whole())]))
        assert told in fix(report)
