"""Amounts that are asked of capacities, and shares."""

import pytest

from dra_driver.gpu import catalog
from dra_driver.gpu.simulated.spec import DEFAULT_CUDA_VERSION, DEFAULT_DRIVER_VERSION, invent
from dra_driver.lint.known import KnownObjects, devices_of, known_from_catalog
from dra_driver.model.gpu import Snapshot
from dra_driver.model.terms import GpuTerms, SharingTerms, Strategy
from dra_driver.slices.build import build_devices
from dra_driver.slices.gates import ApiServerFeatures
from tests.unit.lint.helpers import D, findings, one, rules, template, wire_slice

SHARE = 'memory: 10Gi, computePercent: "20"'


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
    snapshot = Snapshot(driver_version=DEFAULT_DRIVER_VERSION, cuda_driver_version=DEFAULT_CUDA_VERSION, gpus=(gpu,))
    features = ApiServerFeatures(counters=True, multi_allocation=True)
    built = build_devices(snapshot, {gpu.uuid: GpuTerms(policy="p", sharing=terms)}, features)
    devices = devices_of([wire_slice("a", [dict(device) for device in built.devices])])
    return KnownObjects(devices=known_from_catalog().devices, cluster_devices=devices)


def test_what_a_shared_gpu_gives_is_fine() -> None:
    assert rules(asking(SHARE)) == []
    assert rules(asking(SHARE, selector="device.allowMultipleAllocations")) == []
    assert rules(asking(f'{SHARE}, shares: "1"')) == []


def test_selectors_on_shared_gpus_are_judged_by_what_policies_publish() -> None:
    """The strategy is there on shared GPUs only; a value that no policy has is found."""
    guarded = "device.allowMultipleAllocations && " + D + ".sharingStrategy == "
    assert rules(asking(SHARE, selector=guarded + '"MPS"')) == []
    assert rules(asking(SHARE, selector=guarded + '"mps"')) == ["DRA018"]
    assert rules(asking(SHARE, selector=f'{D}.sharingStrategy == "MPS"')) == ["DRA015"]


def test_a_placement_may_be_asked_for() -> None:
    """Where a partition begins differs within a profile, so no value is wrong."""
    text = asking("memory: 5Gi", of="mig.nvidia.com", selector=f"{D}.placementStart == 5 && {D}.placementSize == 1")
    assert rules(text) == []
    assert rules(text.replace("Size == 1", "Size == 7")) == ["DRA018"]


@pytest.mark.parametrize(
    ("capacity", "of", "severity", "said"),
    [
        ('computePercent: "101"', "gpu.nvidia.com", "error", "at most 100 of computePercent, 101 is asked for"),
        ("memory: 2Ti", "gpu.nvidia.com", "warning", "gives out at most 189471Mi of memory, 2Ti is asked for"),
        ("memory: 2Ti", "mig.nvidia.com", "warning", "no device that matches has 2Ti of memory"),
        ('computePercent: "20"', "mig.nvidia.com", "error", "no device that matches has a capacity 'computePercent'"),
        ('computePercents: "20"', "gpu.nvidia.com", "error", "no device that matches has a capacity 'computePercents'"),
    ],
)
def test_what_no_known_device_gives(capacity: str, of: str, severity: str, said: str) -> None:
    found = one(asking(capacity, of=of), "DRA041")
    assert (found.severity, said in found.message) == (severity, True), found.message


def test_what_the_devices_of_a_cluster_do_not_give_is_an_error() -> None:
    """A share where no policy shares: every pod would wait."""
    found = [f for f in findings(asking(SHARE), cluster(None)) if f.rule == "DRA041"]
    assert found == []  # the catalog's could: a policy is an edit away
    alone = KnownObjects(devices=cluster(None).cluster_devices, cluster_devices=cluster(None).cluster_devices)
    assert one(asking(SHARE), "DRA041", alone).severity == "error"


def test_memory_alone_takes_all_of_the_compute() -> None:
    found = one(asking("memory: 10Gi"), "DRA042")
    assert found.severity == "info"
    assert "a GPU that is not shared is given whole" in found.message
    only = one(asking("memory: 10Gi", selector="device.allowMultipleAllocations"), "DRA042")
    assert "given whole" not in only.message


def test_a_cluster_whose_policy_lets_memory_alone_be_a_share_is_believed() -> None:
    text = asking("memory: 10Gi", selector="device.allowMultipleAllocations")
    assert rules(text, cluster(SharingTerms(strategy=Strategy.MPS, default_percent=0))) == []
    assert rules(text, cluster(SharingTerms(strategy=Strategy.MPS))) == ["DRA042"]


def test_memory_of_partitions_is_a_filter_and_no_share() -> None:
    assert rules(asking("memory: 9Gi", of="mig.nvidia.com")) == []


def test_several_shares_are_refused_under_mps() -> None:
    """An error where it must be MPS, a warning where it may be, nothing where it is not."""
    guarded = "device.allowMultipleAllocations && " + D + ".sharingStrategy == "
    assert one(asking(SHARE, count=2), "DRA043").severity == "warning"
    assert one(asking(SHARE, count=2, selector=guarded + '"MPS"'), "DRA043").severity == "error"
    assert rules(asking(SHARE, count=2, selector=guarded + '"TimeSlicing"')) == []


def test_of_alternatives_only_one_is_a_share() -> None:
    ways = "".join(
        f"\n  - {{name: {name}, deviceClassName: gpu.nvidia.com, capacity: {{requests: {{{SHARE}}}}}}}"
        for name in ("a", "b")
    )
    assert rules(template(f"- name: gpu\n  firstAvailable:{ways}")) == []


def test_a_share_and_its_parameters() -> None:
    """What contradicts every policy is an error, what contradicts some a warning; what says nothing else is fine."""
    limits = "{strategy: MPS, mpsConfig: {defaultActiveThreadPercentage: 50}}"
    assert one(asking(SHARE, rest=config(limits)), "DRA044").severity == "error"
    assert one(asking(SHARE, rest=config("{strategy: MPS}")), "DRA044").severity == "warning"
    mps = "device.allowMultipleAllocations && " + D + '.sharingStrategy == "MPS"'
    assert rules(asking(SHARE, selector=mps, rest=config("{strategy: MPS}"))) == []
    assert one(asking(SHARE, selector=mps, rest=config("{strategy: TimeSlicing}")), "DRA044").severity == "error"


def test_parameters_of_a_gpu_that_need_not_be_shared_are_fine() -> None:
    assert rules(asking("memory: 10Gi", rest=config("{strategy: MPS}"))) == ["DRA042"]


POLICY = """
---
apiVersion: gpu.dra-driver.io/v1alpha1
kind: GpuPolicy
metadata: {name: pool}
spec: {select: {}, attributes: [{name: example.com/pool, string: inference}, {name: tier, int: 1}]}
"""


def test_attributes_of_policies_in_the_input_are_known() -> None:
    """With type and value, and with the warning that GPUs under no policy lack them."""
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


def test_attributes_of_policies_that_nodes_refuse_are_not_known() -> None:
    bad = POLICY.replace("int: 1", "int: one")
    assert rules(asking(SHARE, selector=f"{D}.tier == 1") + bad) == ["DRA016", "DRA060"]
