"""Catalog devices equal published devices; requested capacities and shares are checked on them."""

from typing import Any

import pytest
from msgspec.structs import replace

from dra_driver.core.model.gpu import Gpu, Snapshot
from dra_driver.core.model.terms import GpuTerms, SharingTerms, Strategy
from dra_driver.hardware.gpu import catalog
from dra_driver.hardware.gpu.simulated.spec import DEFAULT_CUDA_VERSION, DEFAULT_DRIVER_VERSION, invent
from dra_driver.kubectl.lint.catalog_devices import OPTIONAL, VARYING, KnownDevice, catalog_devices
from dra_driver.kubectl.lint.scope import WELL_KNOWN, KnownObjects, devices_of
from dra_driver.node.slices import ApiServerFeatures, build_devices
from dra_driver.scheduler.cel import compile_selector
from tests.fakes.dra_objects import wire
from tests.unit.kubectl.lint.helpers import D, one, rules, template, wire_slice


@pytest.mark.parametrize("key", list(catalog.models()))
def test_whole_gpus_are_as_slices_publish_them(key: str) -> None:
    gpu = replace(invent(catalog.model(key), 0, "catalog"), mig_enabled=False)
    published = wire(build_devices(_snapshot(gpu), {}, ApiServerFeatures(counters=True)).devices[0])
    found = next(d for d in catalog_devices() if d.model == key and d.wire["attributes"]["type"]["string"] == "gpu")
    assert _described(found, published) == published["attributes"]
    assert found.wire["capacity"] == published.get("capacity", {})


@pytest.mark.parametrize("strategy", list(Strategy))
@pytest.mark.parametrize("key", list(catalog.models()))
def test_shared_gpus_are_as_slices_publish_them(key: str, strategy: Strategy) -> None:
    gpu = replace(invent(catalog.model(key), 0, "catalog"), mig_enabled=False)
    terms = {gpu.uuid: GpuTerms(policy="p", sharing=SharingTerms(strategy=strategy))}
    published = wire(build_devices(_snapshot(gpu), terms, ApiServerFeatures(multi_allocation=True)).devices[0])
    found = next(d for d in catalog_devices() if d.model == key and d.shared and strategy.value in d.label)
    assert _described(found, published) == published["attributes"]
    assert found.wire["capacity"] == published["capacity"]
    assert found.wire["allowMultipleAllocations"] is published["allowMultipleAllocations"] is True


@pytest.mark.parametrize("key", ["a100-sxm4-40gb", "h100-sxm5-80gb", "b200-180gb"])
def test_partitions_have_the_names_and_types_that_slices_publish(key: str) -> None:
    gpu = replace(invent(catalog.model(key), 0, "catalog"), mig_enabled=False, mig_resetless=True)
    devices = wire(build_devices(_snapshot(gpu), {}, ApiServerFeatures(counters=True)).devices[1:])
    for known in (d for d in catalog_devices() if d.model == key and not d.bare and "profile" in d.wire["attributes"]):
        profile = known.wire["attributes"]["profile"]
        published = next(d for d in devices if d["attributes"]["profile"] == profile)
        described = {name: list(value) for name, value in _described(known, published).items()}
        assert described == {name: list(value) for name, value in published["attributes"].items()}
        assert known.wire["attributes"]["placementSize"] == published["attributes"]["placementSize"]


def _snapshot(gpu: Gpu) -> Snapshot:
    return Snapshot(driver_version=DEFAULT_DRIVER_VERSION, cuda_driver_version=DEFAULT_CUDA_VERSION, gpus=(gpu,))


def _described(known: KnownDevice, published: dict[str, Any]) -> dict[str, Any]:
    """Returns the attributes of a catalog device, without optional ones that are invented."""
    invented = OPTIONAL - published["attributes"].keys()
    return {name: value for name, value in known.wire["attributes"].items() if name not in invented}


def test_boards_with_nvlinks_know_the_attributes_of_an_island() -> None:
    """So that lint takes selectors and constraints on them; boards without NVLinks and partitions have none."""
    real = [device for device in catalog_devices() if not device.bare]
    with_islands = {device.model for device in real if "nvlinkIsland" in device.wire["attributes"]}
    assert {"a100-pcie-80gb", "h100-sxm5-80gb"} <= with_islands
    assert "l4-24gb" not in with_islands
    assert not any("profile" in d.wire["attributes"] and "nvlinkIsland" in d.wire["attributes"] for d in real)


def test_every_form_of_every_model_is_there() -> None:
    profiles = sum(len(model.mig.profiles) if model.mig else 0 for model in catalog.models().values())
    real = [device for device in catalog_devices() if not device.bare]
    assert len(real) == 3 * len(catalog.models()) + profiles
    assert len({device.label for device in real}) == len(real)


def test_well_known_classes_divide_them_by_type() -> None:
    for name, kind in (("gpu.nvidia.com", "gpu"), ("mig.nvidia.com", "mig")):
        program = compile_selector(WELL_KNOWN[name])
        for device in catalog_devices():
            assert program.evaluate(device.view) == (device.wire["attributes"]["type"]["string"] == kind)


def test_bare_devices_lack_exactly_what_is_optional() -> None:
    for device in catalog_devices():
        assert OPTIONAL.isdisjoint(device.wire["attributes"]) == device.bare
    assert OPTIONAL <= VARYING


SHARE, LIMIT = 'memory: 10Gi, computePercent: "20"', "{defaultActiveThreadPercentage: 50}"


def asking(capacity: str, *, of: str = "gpu.nvidia.com", selector: str = "", count: int = 1, rest: str = "") -> str:
    cel = f"\n    selectors: [{{cel: {{expression: {selector!r}}}}}]" if selector else ""
    request = f"- name: gpu\n  exactly:\n    deviceClassName: {of}\n    count: {count}{cel}"
    return template(f"{request}\n    capacity: {{requests: {{{capacity}}}}}", rest=rest)


def config(sharing: str) -> str:
    parameters = f"{{apiVersion: resource.nvidia.com/v1beta1, kind: GpuConfig, sharing: {sharing}}}"
    return f"config:\n- opaque: {{driver: gpu.nvidia.com, parameters: {parameters}}}"


def cluster(terms: SharingTerms | None) -> KnownObjects:
    """A cluster with one H100, published under these terms."""
    gpu = invent(catalog.model("h100-sxm5-80gb"), 0, "a")
    features = ApiServerFeatures(counters=True, multi_allocation=True)
    built = build_devices(_snapshot(gpu), {gpu.uuid: GpuTerms(policy="p", sharing=terms)}, features)
    devices = devices_of([wire_slice("a", wire(built.devices))])
    return KnownObjects(devices=catalog_devices(), cluster_devices=devices)


MULTI = "device.allowMultipleAllocations"
MPS = f'{MULTI} && {D}.sharingStrategy == "MPS"'
PLACED = asking("memory: 5Gi", of="mig.nvidia.com", selector=f"{D}.placementStart == 5 && {D}.placementSize == 1")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (asking(SHARE), []),
        (asking(SHARE, selector=MULTI), []),
        (asking(f'{SHARE}, shares: "1"'), []),
        # Only shared GPUs have a sharing strategy; a value that no policy publishes is found.
        (asking(SHARE, selector=MPS), []),
        (asking(SHARE, selector=MPS.replace("MPS", "mps")), ["DRA018"]),
        (asking(SHARE, selector=f'{D}.sharingStrategy == "MPS"'), ["DRA015"]),
        # The start of a partition differs within a profile, so no value is wrong.
        (PLACED, []),
        (PLACED.replace("Size == 1", "Size == 7"), ["DRA018"]),
        # Memory of partitions is a filter.
        (asking("memory: 9Gi", of="mig.nvidia.com"), []),
        # A policy may share them (sharing.migDevices).
        (asking(f'{SHARE}, shares: "1"', of="mig.nvidia.com"), []),
        # An exclusive GPU may be allocated.
        (asking("memory: 10Gi", rest=config("{strategy: MPS}")), ["DRA042"]),
        (asking(SHARE, selector=MPS, rest=config("{strategy: MPS}")), []),
        (asking(SHARE, count=2, selector=MPS.replace("MPS", "TimeSlicing")), []),
    ],
)
def test_rules_that_a_request_breaks(text: str, expected: list[str]) -> None:
    assert rules(text) == expected


@pytest.mark.parametrize(
    ("text", "rule", "severity"),
    [
        # Several shares are an error if only MPS is possible, a warning if it is one way.
        (asking(SHARE, count=2), "DRA043", "warning"),
        (asking(SHARE, count=2, selector=MPS), "DRA043", "error"),
        # Parameters that contradict all policies are an error; a contradiction to some policies is a warning.
        (asking(SHARE, rest=config(f"{{strategy: MPS, mpsConfig: {LIMIT}}}")), "DRA044", "error"),
        (asking(SHARE, rest=config("{strategy: MPS}")), "DRA044", "warning"),
        (asking(SHARE, selector=MPS, rest=config("{strategy: TimeSlicing}")), "DRA044", "error"),
    ],
)
def test_a_share_that_some_policies_refuse_is_a_warning(text: str, rule: str, severity: str) -> None:
    assert one(text, rule).severity == severity


@pytest.mark.parametrize(
    ("capacity", "of", "severity", "said"),
    [
        ('computePercent: "101"', "gpu.nvidia.com", "error", "at most 100 of computePercent, 101 is requested"),
        ("memory: 2Ti", "gpu.nvidia.com", "warning", "provides at most 188447Mi of memory, 2Ti is requested"),
        ("memory: 2Ti", "mig.nvidia.com", "warning", "no matching device has 2Ti of memory"),
        ('computePercents: "20"', "gpu.nvidia.com", "error", "no matching device has a capacity 'computePercents'"),
    ],
)
def test_capacity_that_no_known_device_provides(capacity: str, of: str, severity: str, said: str) -> None:
    found = one(asking(capacity, of=of), "DRA041")
    assert (found.severity, said in found.message) == (severity, True), found.message


def test_capacity_that_no_device_of_the_cluster_provides_is_an_error() -> None:
    """A share without a sharing policy keeps every pod pending."""
    # A device of the catalog could serve it, after a policy is added.
    assert "DRA041" not in rules(asking(SHARE), cluster(None))
    alone = KnownObjects(devices=cluster(None).cluster_devices, cluster_devices=cluster(None).cluster_devices)
    assert one(asking(SHARE), "DRA041", alone).severity == "error"


def test_a_request_for_memory_only_takes_all_of_the_compute() -> None:
    found = one(asking("memory: 10Gi"), "DRA042")
    assert found.severity == "info"
    assert "a GPU that is not shared is allocated as a whole" in found.message
    only = one(asking("memory: 10Gi", selector="device.allowMultipleAllocations"), "DRA042")
    assert "as a whole" not in only.message


def test_a_default_of_the_clusters_policy_is_respected() -> None:
    text = asking("memory: 10Gi", selector="device.allowMultipleAllocations")
    assert rules(text, cluster(SharingTerms(strategy=Strategy.MPS, default_percent=0))) == []
    assert rules(text, cluster(SharingTerms(strategy=Strategy.MPS))) == ["DRA042"]


def test_alternatives_count_as_one_share() -> None:
    share = f"deviceClassName: gpu.nvidia.com, capacity: {{requests: {{{SHARE}}}}}"
    alternatives = "".join(f"\n  - {{name: {name}, {share}}}" for name in ("a", "b"))
    assert rules(template(f"- name: gpu\n  firstAvailable:{alternatives}")) == []


POLICY = """
---
apiVersion: gpu.dra-driver.io/v1alpha1
kind: GpuPolicy
metadata: {name: pool}
spec: {select: {}, attributes: [{name: example.com/pool, string: inference}, {name: tier, int: 1}]}
"""


def test_attributes_of_policies_in_the_input_are_known() -> None:
    pool = 'device.attributes["example.com"]'
    guarded = "has(" + pool + ".pool) && " + pool + '.pool == "inference"'
    assert rules(asking(SHARE, selector=guarded) + POLICY) == []
    plain = pool + '.pool == "inference"'
    assert one(asking(SHARE, selector=plain), "DRA015").severity == "error"
    assert one(asking(SHARE, selector=plain) + POLICY, "DRA015").severity == "warning"
    assert rules(asking(SHARE, selector=f"{D}.?tier.orValue(0) == 2") + POLICY) == ["DRA018"]
    assert rules(asking(SHARE, selector=f"{D}.?tier.orValue(0) == 1") + POLICY) == []
    assert one(asking(SHARE, selector=f"{D}.tier == 1") + POLICY, "DRA015").severity == "warning"
    assert rules(asking(SHARE, selector=f'{D}.?tier.orValue("") == "1"') + POLICY) != []


def test_attributes_of_invalid_policies_are_unknown() -> None:
    bad = POLICY.replace("int: 1", "int: one")
    assert rules(asking(SHARE, selector=f"{D}.tier == 1") + bad) == ["DRA016", "DRA060"]
