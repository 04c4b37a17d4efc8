"""Idle and oversize claims: unknown is never idle, and a claim is idle only when all of its devices are."""

import pytest
from msgspec.structs import replace

from dra_driver.core.model.usage import GIB, Profile
from dra_driver.kubectl.usage.device_use import ClaimDeviceUse
from dra_driver.kubectl.usage.waste import DeviceSize, WasteFinding, judge, sizes_in

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
        peak_bytes=None if peak is None else int(peak * GIB),
        granted_bytes=None if granted is None else int(granted * GIB),
    )


def published(*devices: object) -> list[object]:
    return [{"spec": {"nodeName": "n", "devices": devices}}]


def findings(*uses: ClaimDeviceUse, after_s: float = 600.0) -> list[WasteFinding]:
    return [row.finding for row in judge(uses, idle_after_s=after_s, size_of=lambda _: SIZE)]


@pytest.mark.parametrize(
    ("idle_s", "found"),
    [(600.0, WasteFinding.IDLE), (599.0, WasteFinding.USED), (0.0, WasteFinding.USED), (None, WasteFinding.UNKNOWN)],
)
def test_a_claim_is_idle_after_the_time(idle_s: float | None, found: WasteFinding) -> None:
    assert findings(use(idle_s=idle_s, peak=60)) == [found]


def test_a_claim_with_a_device_that_is_used_or_not_known_is_not_idle() -> None:
    assert findings(use(idle_s=900), use("gpu-1", idle_s=0, peak=60)) != [WasteFinding.IDLE] * 2
    assert WasteFinding.IDLE not in findings(use(idle_s=900), use("gpu-1", idle_s=None))
    assert findings(use(idle_s=900), use("gpu-1", idle_s=700)) == [WasteFinding.IDLE] * 2
    assert findings(use(idle_s=None, peak=60), use("gpu-1", idle_s=0, peak=60)) == [WasteFinding.USED] * 2


def test_nothing_known_is_said_as_such() -> None:
    assert findings(use(idle_s=None, peak=None)) == [WasteFinding.UNKNOWN]


def test_an_oversize_claim_is_told_the_smallest_profile_and_share() -> None:
    (row,) = judge([use(peak=6)], idle_after_s=600, size_of=lambda _: SIZE)
    assert row.finding is WasteFinding.OVERSIZE
    assert row.enough is not None
    assert (row.enough.profile, row.enough.share_bytes) == ("1g.10gb", 8 * GIB)


def test_profiles_are_those_that_the_gpu_publishes() -> None:
    def device(name: str, profile: str, value: object) -> dict[str, object]:
        return {"name": name, "attributes": {"profile": {"string": profile}}, "capacity": {"memory": {"value": value}}}

    devices = [device("gpu-0-mig-3g40gb-9-0", "3g.40gb", "40Gi"), device("gpu-0-mig-1g10gb-19-0", "1g.10gb", "10Gi")]
    devices += [device("gpu-1-mig-1g10gb-19-0", "1g.10gb", []), {"name": "gpu-0"}]
    size_of = sizes_in(published(*devices), pytest.fail)
    assert [tuple(size_of(use(name)).profiles) for name in ("gpu-0", "gpu-1")] == [PROFILES, ()]


def test_a_whole_gpu_is_as_large_as_it_is_published_and_a_share_as_its_grant() -> None:
    size_of = sizes_in(published({"name": "gpu-0", "capacity": {"memory": {"value": "80Gi"}}}), pytest.fail)
    whole, share = use(peak=6, granted=None), replace(use(peak=6, granted=None), share="s")
    found = judge([whole], idle_after_s=600, size_of=size_of) + judge([share], idle_after_s=600, size_of=size_of)
    assert [(row.finding, row.held_bytes) for row in found] == [
        (WasteFinding.OVERSIZE, 80 * GIB),
        (WasteFinding.USED, None),
    ]


def test_a_device_that_cannot_be_read_is_named_and_the_others_have_their_size() -> None:
    good = {"name": "gpu-0", "capacity": {"memory": {"value": "80Gi"}, "cores": 5}, "taints": 5}
    lost: list[str] = []
    size_of = sizes_in([{"spec": 5}, *published({"name": "gpu-1", "capacity": 5}, good)], lost.append)
    assert [size_of(use(name)).memory_bytes for name in ("gpu-0", "gpu-1")] == [80 * GIB, None]
    assert [each.partition(" cannot")[0] for each in lost] == ["without a name", "gpu-1"]
