"""The quotas of namespaces about devices and claims, and classes that no quota counts."""

from dra_driver.kube.shapes import read
from dra_driver.kubectl.usage.quota import CLAIMS, DEVICES, CountedClaim, ResourceQuota, UnlimitedClass, rows, unlimited

GPU = f"gpu.nvidia.com{DEVICES}"


def quota(hard: dict[str, object], used: dict[str, object] | None) -> ResourceQuota:
    status = {} if used is None else {"used": used}
    item = {"metadata": {"namespace": "a", "name": "q"}, "spec": {"hard": hard}, "status": status}
    return read(ResourceQuota, item)


def claim(request: str, name: str = "gpu", *, admin: bool = False) -> CountedClaim:
    ways = [
        {"name": "big", "deviceClassName": "gpu.nvidia.com"},
        {"name": "small", "deviceClassName": "mig.nvidia.com"},
    ]
    requests = [
        {"name": "gpu", "exactly": {"deviceClassName": "gpu.nvidia.com"}},
        {"name": "any", "firstAvailable": ways},
    ]
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


def test_a_quota_that_is_not_counted_yet_has_nothing_left_that_is_known() -> None:
    (row,) = rows([quota({GPU: "2"}, None)], [])
    assert (row.used, row.left, row.idle) == (None, None, None)


def test_a_class_without_a_limit_is_a_way_around_the_others() -> None:
    found = rows([quota({GPU: "2"}, {GPU: "1"})], [])
    claims = [
        claim("gpu"),
        claim("any/small"),
        claim("any/small", "y"),
        claim("any/small", admin=True),
        read(CountedClaim, {"metadata": {}}),
    ]
    assert unlimited(claims, found) == [UnlimitedClass(namespace="a", device_class="mig.nvidia.com", devices=2)]
    assert unlimited(claims, []) != unlimited(claims, found)
