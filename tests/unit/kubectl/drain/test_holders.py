"""Which GPUs a node publishes, and which claims and pods have them."""

import pytest

from dra_driver.core.errors import ConfigurationError
from dra_driver.core.model.ids import GpuUuid
from dra_driver.kubectl.drain.report import line
from dra_driver.kubectl.drain.view import (
    DeviceHolder,
    DrainScope,
    SliceSpec,
    gpus_of,
    holders_of,
    is_settled,
    newest_specs,
    selected,
)
from tests.unit.kubectl.drain.cluster import DRIVER, NODE, POOL, Wire, claim, device, pod, resource_slice


def specs(slices: list[Wire], node: str = NODE) -> list[SliceSpec]:
    return newest_specs(slices, node, DRIVER)


SLICES = [
    resource_slice(device("gpu-0", "GPU-0", taint=True), device("gpu-0-mig-1g10gb-19-0", "GPU-0"), generation=2),
    resource_slice(device("gpu-1", "GPU-1", taint=True), generation=2),
    resource_slice(device("gpu-9", "GPU-9"), generation=1),
    resource_slice(device("gpu-7", "GPU-7"), node="other"),
    resource_slice(device("gpu-8", "GPU-8"), driver="other"),
]
PUBLISHED = gpus_of(specs(SLICES))


def test_gpus_are_those_of_the_newest_generation_on_this_node() -> None:
    """A GPU is drained when all of its forms have the taint."""
    assert [(gpu.name, gpu.uuid, len(gpu.devices)) for gpu in PUBLISHED] == [
        ("gpu-0", "GPU-0", 2),
        ("gpu-1", "GPU-1", 1),
    ]
    assert [(gpu.drained, gpu.marked) for gpu in PUBLISHED] == [(False, True), (True, True)]


def test_a_pool_in_the_middle_of_a_change_is_not_settled() -> None:
    """A taint would seem to be gone, or to be there, while half of the resource slices are of the old generation."""
    half = [resource_slice(device("gpu-0", "GPU-0"), generation=2, of=2)]
    whole = [*half, resource_slice(device("gpu-1", "GPU-1"), generation=2, of=2)]
    old = resource_slice(device("gpu-1", "GPU-1"), generation=1, of=2)
    assert not is_settled(specs([*half, old]))
    assert is_settled(specs([*whole, old]))
    assert is_settled(specs([]))
    assert is_settled(specs(half, "other"))


def test_gpus_are_chosen_by_uuid_or_name() -> None:
    """A GPU that fell off the bus is not published, and may be drained by its UUID."""
    assert selected(PUBLISHED, ["gpu-1", "GPU-0", "GPU-1", "GPU-lost"]) == ("GPU-1", "GPU-0", "GPU-lost")
    with pytest.raises(ConfigurationError, match=r"gpu-5.*gpu-0 \(GPU-0\)"):
        selected(PUBLISHED, ["gpu-5"])


def held(claims: list[Wire], pods: list[Wire], gpus: set[str] | None = None, *, force: bool) -> list[DeviceHolder]:
    chosen = None if gpus is None else {GpuUuid(gpu) for gpu in gpus}
    scope = DrainScope(driver=DRIVER, pool=POOL, gpus=chosen, published=PUBLISHED)
    return list(holders_of(claims, pods, scope, force=force))


def lines(*claims: Wire, gpus: set[str] | None = None) -> list[str]:
    pods = [pod("a"), pod("bare", controller="")]
    return [line(holder) for holder in held(list(claims), pods, gpus, force=False)]


def test_every_form_is_found() -> None:
    """Also the claim that the scheduler makes for an extended resource, and a claim that no pod uses yet."""
    extended = claim("made", "gpu-1", "a")
    extended["metadata"]["annotations"] = {"resource.kubernetes.io/extended-resource-claim": "true"}
    found = lines(
        claim("part", "gpu-0-mig-1g10gb-19-0", "bare"),
        claim("share", "gpu-0", "a", shareID="x"),
        extended,
        claim("watch", "gpu-1", "a", adminAccess=True),
        claim("unused", "gpu-0"),
    )
    assert found == [
        "gpu-0 (share): claim team/share, pod a (ReplicaSet/web)",
        "gpu-0 (whole GPU): claim team/unused, no pod",
        "gpu-0-mig-1g10gb-19-0 (partition): claim team/part, pod bare",
        "gpu-1 (whole GPU, extended resource): claim team/made, pod a (ReplicaSet/web)",
        "gpu-1 (admin access): claim team/watch, pod a (ReplicaSet/web)",
    ]


def test_only_the_chosen_gpus_count() -> None:
    """A device that is published no more is taken for one of them by the GPU in its name, else for any."""
    claims = [
        claim("zero", "gpu-0"),
        claim("one", "gpu-1"),
        claim("gone", "gpu-0-mig-2g20gb-14-0"),
        claim("lost", "gpu-5"),
        claim("elsewhere", "gpu-0", pool="other/gpu.nvidia.com"),
    ]
    assert [text.rpartition("/")[2] for text in lines(*claims, gpus={"GPU-0"})] == [
        "zero, no pod",
        "gone, no pod",
        "lost, no pod",
    ]


def test_some_pods_are_not_evicted() -> None:
    """A pod that would not come again, a static one, and one that asks for it."""
    pods = [
        pod("bare", controller=""),
        pod("static", **{"kubernetes.io/config.mirror": "x"}),
        pod("asks", **{"gpu.dra-driver.io/no-eviction": "true"}),
        pod("plain"),
    ]
    claims = [claim("c", "gpu-0", "bare", "static", "asks", "plain")]
    for force, kept in ((False, ["bare", "static", "asks"]), (True, ["static", "asks"])):
        (holder,) = held(claims, pods, force=force)
        assert [one.name for one in holder.pods if one.kept] == kept


def test_an_odd_claim_of_this_pool_stays_a_holder() -> None:
    """A drain that took it for free would end its pod's work; what is odd in claims of other pools is theirs."""
    labelled, unnamed, broken = claim("labelled", "gpu-0", "a"), claim("unnamed", "gpu-0"), claim("broken", "gpu-0")
    labelled["metadata"]["labels"] = {"a": 7}
    del labelled["status"]["reservedFor"][0]["uid"]
    unnamed["status"]["allocation"]["devices"]["results"][0]["device"] = 7
    broken["status"]["allocation"]["devices"]["results"] = {"0": {"driver": DRIVER, "pool": POOL, "device": "gpu-0"}}
    other = claim("other", "gpu-0", pool="other")
    other["status"]["allocation"]["devices"]["results"].append("x")
    assert lines(labelled, unnamed, broken, other, {"metadata": None, "status": None}) == [
        "? (whole GPU): claim team/broken, no pod",
        "? (whole GPU): claim team/unnamed, no pod",
        "gpu-0 (whole GPU): claim team/labelled, pod a",
    ]


def test_an_odd_device_hides_no_other() -> None:
    odd: Wire = {"name": "gpu-1", "attributes": {"uuid": {"string": "GPU-1"}, "other": 7}, "capacity": 7}
    item = resource_slice(device("gpu-0", "GPU-0"), odd, {"name": 7}, {"name": "gpu-2", "attributes": {"uuid": 7}})
    item["metadata"] = {"labels": {"a": 7}}
    assert [gpu.name for gpu in gpus_of(specs([item, {"spec": 7}]))] == ["gpu-0", "gpu-1"]
