"""Why devices are rejected: each of the allocator's reasons, counted, with the values found."""

from dra_driver.kubectl.explain.report import Answer, render
from tests.fakes.dra_objects import DRIVER, device_class, exactly, resource_slice
from tests.unit.kubectl.explain.clusters import (
    MEMORY,
    A,
    a100,
    allocated_claim,
    asked,
    cluster,
    codes,
    explained,
    h100,
    pod,
    template,
)


def test_a_pod_that_fits_names_the_nodes() -> None:
    report = asked(exactly("gpu", f'{A}.productName == "H100"'))
    assert report.verdict.answer is Answer.FITS
    assert report.verdict.sentence == "fits on 1 of 2 nodes"
    assert report.fitting_nodes == ("b",)


def test_the_false_clause_is_named_with_the_value_found() -> None:
    """Of ``a && b`` only the false part is shown, with the device's value."""
    expression = f'{A}.productName == "H100" && {MEMORY}.compareTo(quantity("100Gi")) >= 0'
    report = asked(exactly("gpu", expression))
    (request,) = report.requests
    assert [(reason.code, reason.devices) for reason in request.reasons] == [("requestSelector", n) for n in (4, 2)]
    assert request.reasons[0].message == f'selector, clause 1 of 2: {A}.productName == "H100"'
    assert request.reasons[0].seen == ("productName = A100 (4 devices)",)
    assert request.reasons[1].seen == ("memory = 80Gi (2 devices)",)
    assert report.nearest_miss is not None
    assert (report.nearest_miss.node, report.nearest_miss.device) == ("b", "gpu-0")


def test_class_selectors_are_distinguished_from_request_selectors() -> None:
    other = device_class("mig", expression=f'device.driver == "{DRIVER}" && {A}.type == "mig"')
    report = asked(exactly(deviceClassName="mig"), classes=[other])
    (reason,) = report.requests[0].reasons
    assert (reason.code, reason.seen) == ("classSelector", ("type = gpu (6 devices)",))


def test_a_missing_attribute_is_reported() -> None:
    report = asked(exactly("gpu", f'has({A}.fabric) && {A}.fabric == "x"'))
    assert report.requests[0].reasons[0].seen == ("fabric is missing (6 devices)",)


def test_devices_in_use_name_the_claim_and_its_pods() -> None:
    claims = [allocated_claim("one", "gpu-0", on="b", users=("p",)), allocated_claim("two", "gpu-1", on="b")]
    report = asked(exactly("gpu", f'{A}.productName == "H100"'), claims=claims)
    reason = report.requests[0].reasons[1]
    assert (reason.code, reason.devices) == ("inUse", 2)
    assert reason.seen == ("default/one (pod p)", "default/two (no pod)")
    assert "2 devices match request gpu: 2 in use" in report.verdict.sentence


def test_a_device_in_use_that_does_not_match_counts_under_its_selector() -> None:
    """Freeing an A100 does not help a request for an H900."""
    claims = [allocated_claim("one", "gpu-0", on="a")]
    assert codes(asked(exactly("gpu", f'{A}.productName == "H900"'), claims=claims)) == ["requestSelector"]


def test_taints_are_shown_and_tolerated() -> None:
    bad = {"key": "xid", "value": "79", "effect": "NoSchedule"}
    slices = [resource_slice("a", a100(0, taints=[bad]))]
    refused = asked(slices=slices)
    assert refused.requests[0].reasons[0].message == "taint xid=79:NoSchedule, not tolerated by the request"
    wanted = exactly(tolerations=[{"key": "xid", "operator": "Exists"}])
    assert asked(wanted, slices=slices).verdict.answer is Answer.FITS


def test_taints_of_rules_count_like_taints_of_devices() -> None:
    selector, taint = {"driver": DRIVER, "device": "gpu-0"}, {"key": "k", "effect": "NoSchedule"}
    rule = {"metadata": {"name": "r"}, "spec": {"deviceSelector": selector, "taint": taint}}
    report = asked(exactly(count=2), slices=[resource_slice("a", a100(0), a100(1))], taint_rules=[rule])
    assert [(reason.code, reason.devices) for reason in report.requests[0].reasons] == [("tainted", 1)]


def _partitioned(*sizes: str) -> list[dict[str, object]]:
    counters = resource_slice("a", count=2, name="counters")
    del counters["spec"]["devices"]
    counters["spec"]["sharedCounters"] = [{"name": "gpu-0", "counters": {"memory": {"value": "40Gi"}}}]
    parts = [
        a100(index, consumesCounters=[{"counterSet": "gpu-0", "counters": {"memory": {"value": size}}}])
        for index, size in enumerate(sizes)
    ]
    return [counters, resource_slice("a", *parts, count=2, name="devices")]


def test_a_short_counter_shows_the_missing_amount_and_its_users() -> None:
    claims = [allocated_claim("one", "gpu-0", on="a", users=("p",))]
    reason = asked(slices=_partitioned("20Gi", "30Gi"), claims=claims).requests[0].reasons[-1]
    seen = "gpu-0: memory short by 10Gi (30Gi needed, 20Gi left), used by gpu-0 of default/one (pod p)"
    assert (reason.code, reason.seen) == ("counterShort", (seen,))


def test_remaining_capacity_is_shown() -> None:
    shared = {**a100(0), "allowMultipleAllocations": True}
    claim = allocated_claim("one", "gpu-0", on="a")
    claim["status"]["allocation"]["devices"]["results"][0] |= {"shareID": "1", "consumedCapacity": {"memory": "30Gi"}}
    wanted = exactly(capacity={"requests": {"memory": "16Gi"}})
    (reason,) = asked(wanted, slices=[resource_slice("a", shared)], claims=[claim]).requests[0].reasons
    seen = "gpu-0 has 10Gi of 40Gi free: default/one (no pod) has 30Gi"
    assert (reason.code, reason.seen) == ("capacityShort", (seen,))


def test_constraints_name_attribute_and_values() -> None:
    apart = [a100(index) for index in range(2)]
    for index, device in enumerate(apart):
        device["attributes"]["root"] = {"string": f"r{index}"}
    wanted = template("t", exactly(count=2), constraints=[{"matchAttribute": f"{DRIVER}/root"}])
    report = explained(cluster(slices=[resource_slice("a", *apart)], templates=[wanted]))
    (reason,) = report.requests[0].reasons
    assert reason.code == "constraint"
    assert f"matchAttribute {DRIVER}/root" in reason.message
    assert "r1, while the chosen device has r0" in reason.seen[0]


def test_ignored_pools_are_named() -> None:
    report = asked(slices=[resource_slice("a", a100(0), count=2)])
    assert report.verdict.answer is Answer.CANNOT_FIT
    (cause,) = report.causes
    assert cause.code == "poolUnusable"
    assert "incomplete: 1 of 2 slices" in cause.message


def test_too_few_on_each_node_although_the_sum_suffices() -> None:
    report = asked(exactly(count=5))
    assert report.requests[0].nodes_short == 2
    assert "6 left, 5 needed on one node" in report.verdict.sentence


def test_requests_that_fit_alone_but_not_together() -> None:
    """Two requests of one claim never share a device."""
    report = asked(exactly("one", count=3), exactly("two", count=3))
    assert report.verdict.answer is Answer.CANNOT_FIT
    assert {request.request for request in report.requests} <= {"one", "two"}


def test_every_alternative_of_first_available_is_reported() -> None:
    alternatives = [
        {"name": name, **exactly(name, f'{A}.productName == "{name}"')["exactly"]} for name in ("B200", "B300")
    ]
    report = asked({"name": "gpu", "firstAvailable": alternatives})
    assert [request.request for request in report.requests] == ["gpu/B200", "gpu/B300"]


def test_the_nearest_miss_has_as_many_devices_as_are_missing() -> None:
    claims = [allocated_claim("one", "gpu-0", "gpu-1", on="a"), allocated_claim("two", "gpu-0", on="b")]
    assert asked(exactly(count=2), claims=claims).verdict.answer is Answer.FITS  # two are free on a
    report = asked(exactly(count=4), claims=claims)
    assert report.nearest_miss is not None
    assert (report.nearest_miss.node, report.nearest_miss.device) == ("a", "gpu-0, gpu-1")


def test_a_node_whose_devices_fit_is_the_nearest_miss() -> None:
    state = cluster(templates=[template("t", exactly("gpu", f'{A}.productName == "H100"'))])
    state.nodes[1]["spec"] = {"taints": [{"key": "dedicated", "effect": "NoSchedule"}]}  # type: ignore[index]
    report = explained(state)
    assert report.nearest_miss is not None
    assert report.nearest_miss.node == "b"
    assert [reason.by_devices for reason in report.nodes] == [False, True]


def test_one_node_in_detail_lists_every_device() -> None:
    report = asked(claims=[allocated_claim("one", "gpu-0", on="b")], node="b")
    assert report.node is not None
    assert [(line.device, line.code) for line in report.node.devices] == [("gpu-0", "inUse"), ("gpu-1", "given")]
    assert report.node.allocation == ("gpu=gpu-1",)


def test_many_devices_fit_on_one_screen() -> None:
    count = 20
    devices = [h100(index) for index in range(64)]
    slices = [resource_slice(f"n{number}", *devices) for number in range(count)]
    nodes = [{"metadata": {"name": f"n{number}"}} for number in range(count)]
    wanted = exactly("gpu", f'{A}.productName == "A100"')
    text = render(asked(wanted, nodes=nodes, slices=slices))
    assert len(text.splitlines()) < 30
    assert f"{count * 64} devices checked" in text


def test_text_of_objects_cannot_move_the_cursor() -> None:
    state = cluster(templates=[template("t")], slices=[])
    text = render(explained(state, pod("evil\x1b[2J", template="t")))
    assert "\x1b" not in text
