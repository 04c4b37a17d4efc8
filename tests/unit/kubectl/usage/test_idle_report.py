"""Idle and oversize claims: unknown is never idle, nor a claim with a device that is used; and quotas."""

import pytest
from msgspec.structs import replace

from dra_driver.core.model.usage import GIB, Profile
from dra_driver.kube.shapes import read
from dra_driver.kubectl.usage.device_use import ClaimDeviceUse, claims_held
from dra_driver.kubectl.usage.idle_report import DeviceSize, UsageFinding, classify, joined, sizes_in
from dra_driver.kubectl.usage.quota import CLAIMS, DEVICES, CountedClaim, ResourceQuota, rows, unlimited

PROFILES = (Profile(name="1g.10gb", memory_bytes=10 * GIB), Profile(name="3g.40gb", memory_bytes=40 * GIB))


SIZE = DeviceSize(memory_bytes=80 * GIB, profiles=PROFILES)


def use(
    device: str = "gpu-0", *, idle_s: float | None = 0.0, peak: float | None = 30, granted: float | None = 80
) -> ClaimDeviceUse:
    return ClaimDeviceUse(
        namespace="a",
        claim="x",
        node="n",
        device=device,
        idle_s=idle_s,
        used_bytes=None if peak is None else 0,
        peak_bytes=None if peak is None else int(peak * GIB),
        granted_bytes=None if granted is None else int(granted * GIB),
    )


def published(*devices: object) -> list[object]:
    return [{"spec": {"nodeName": "n", "devices": devices}}]


def findings(*uses: ClaimDeviceUse, after_s: float = 600.0) -> list[UsageFinding]:
    return [row.finding for row in classify(uses, idle_after_s=after_s, size_of=lambda _: SIZE)]


@pytest.mark.parametrize(
    ("idle_s", "found"),
    [(600.0, UsageFinding.IDLE), (599.0, UsageFinding.USED), (0.0, UsageFinding.USED), (None, UsageFinding.UNKNOWN)],
)
def test_a_claim_is_idle_after_the_time(idle_s: float | None, found: UsageFinding) -> None:
    assert findings(use(idle_s=idle_s, peak=60)) == [found]


def test_a_claim_with_a_device_that_is_used_or_not_known_is_not_idle() -> None:
    assert findings(use(idle_s=900), use("gpu-1", idle_s=0, peak=60)) != [UsageFinding.IDLE] * 2
    assert UsageFinding.IDLE not in findings(use(idle_s=900), use("gpu-1", idle_s=None))
    assert findings(use(idle_s=900), use("gpu-1", idle_s=700)) == [UsageFinding.IDLE] * 2
    assert findings(use(idle_s=None, peak=60), use("gpu-1", idle_s=0, peak=60)) == [UsageFinding.USED] * 2
    assert findings(use(idle_s=None, peak=None)) == [UsageFinding.UNKNOWN]


def test_oversized_claim_gets_smallest_profile_and_share() -> None:
    (row,) = classify([use(peak=6)], idle_after_s=600, size_of=lambda _: SIZE)
    assert row.finding is UsageFinding.OVERSIZE
    assert (row.profile, row.share_bytes) == ("1g.10gb", 8 * GIB)


def test_profiles_are_those_that_the_gpu_publishes() -> None:
    def device(name: str, profile: str, value: object) -> dict[str, object]:
        return {"name": name, "attributes": {"profile": {"string": profile}}, "capacity": {"memory": {"value": value}}}

    devices = [device("gpu-0-mig-3g40gb-9-0", "3g.40gb", "40Gi"), device("gpu-0-mig-1g10gb-19-0", "1g.10gb", "10Gi")]
    devices += [device("gpu-1-mig-1g10gb-19-0", "1g.10gb", []), {"name": "gpu-0"}]
    size_of = sizes_in(published(*devices), pytest.fail)
    assert [tuple(size_of(use(name)).profiles) for name in ("gpu-0", "gpu-1")] == [PROFILES, ()]


def test_device_size_is_published_memory_or_grant() -> None:
    size_of = sizes_in(published({"name": "gpu-0", "capacity": {"memory": {"value": "80Gi"}}}), pytest.fail)
    whole, share = use(peak=6, granted=None), replace(use(peak=6, granted=None), share="s")
    result = {"driver": "d", "pool": "p", "device": "gpu-0", "adminAccess": True}
    status = {"allocation": {"devices": {"results": [result]}}}
    admin = claims_held([{"metadata": {"namespace": "a", "name": "x"}, "status": status}])
    uses = [*joined([whole, share], {}, size_of), *joined([whole], admin, size_of)]
    found = [row for each in uses for row in classify([each], idle_after_s=600, size_of=size_of)]
    assert [(row.finding, row.memory_bytes) for row in found] == [
        (UsageFinding.OVERSIZE, 80 * GIB), (UsageFinding.USED, None), (UsageFinding.USED, None),
    ]  # fmt: skip
    unknown = replace(whole, granted_bytes=80 * GIB, used_bytes=None)
    assert findings(unknown) == [UsageFinding.USED], "it may have more than its peak"


def test_unreadable_device_is_named_in_sizes() -> None:
    good = {"name": "gpu-0", "capacity": {"memory": {"value": "80Gi"}, "cores": 5}, "taints": 5}
    lost: list[str] = []
    size_of = sizes_in([{"spec": 5}, *published({"name": "gpu-1", "capacity": 5}, good)], lost.append)
    assert [size_of(use(name)).memory_bytes for name in ("gpu-0", "gpu-1")] == [80 * GIB, None]
    assert [each.partition(" cannot")[0] for each in lost] == ["without a name", "gpu-1"]


GPU = f"gpu.nvidia.com{DEVICES}"


def quota(hard: dict[str, object], used: dict[str, object] | None) -> ResourceQuota:
    status = {} if used is None else {"used": used}
    item = {"metadata": {"namespace": "a", "name": "q"}, "spec": {"hard": hard}, "status": status}
    return read(ResourceQuota, item)


def claim(request: str, name: str = "gpu", *, admin: bool = False) -> CountedClaim:
    whole, part = {"deviceClassName": "gpu.nvidia.com"}, {"deviceClassName": "mig.nvidia.com"}
    ways = [{"name": "big", **whole}, {"name": "small", **part}]
    requests = [{"name": "gpu", "exactly": whole}, {"name": "any", "firstAvailable": ways}]
    result = {"request": request, "adminAccess": admin}
    item = {
        "metadata": {"namespace": "a", "name": name},
        "spec": {"devices": {"requests": requests}},
        "status": {"allocation": {"devices": {"results": [result]}}},
    }
    return read(CountedClaim, item)


def test_limits_about_devices_and_claims_are_shown_and_others_not() -> None:
    hard = {GPU: "2", CLAIMS: "10", "requests.nvidia.com/gpu": "4", "requests.cpu": 1.5, "pods": "3"}
    hard |= {"x" + DEVICES: [], "y" + DEVICES: "many"}
    found = rows([quota(hard, {GPU: "5", CLAIMS: "3"})], ["nvidia.com/gpu"], {("a", "gpu.nvidia.com"): 1})
    assert [(row.limit, row.hard, row.used, row.left, row.idle) for row in found] == [
        (CLAIMS, 10, 3, 7, None),
        (GPU, 2, 5, 0, 1),
        ("requests.nvidia.com/gpu", 4, None, None, None),
    ]
    (row,) = rows([quota({GPU: "2"}, None)], [])  # not counted yet
    assert (row.used, row.left, row.idle) == (None, None, None)


def test_a_class_without_a_limit_is_a_way_around_the_others() -> None:
    found = rows([quota({GPU: "2"}, {GPU: "1"})], [])
    small = [claim("any/small"), claim("any/small", "y"), claim("any/small", admin=True)]
    claims = [claim("gpu"), *small, read(CountedClaim, {"metadata": {}})]
    assert [(row.namespace, row.device_class, row.hard, row.used) for row in unlimited(claims, found)] == [
        ("a", "mig.nvidia.com", None, 2)
    ]
    assert unlimited(claims, []) != unlimited(claims, found)
