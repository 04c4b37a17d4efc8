"""Sums of what claims use: one with an unknown part says so, and a claim with an unknown device is not idle."""

from dra_driver.kubectl.usage.device_use import ClaimDeviceUse, by_claim, by_namespace, by_node, by_pod, summed

ONE = ClaimDeviceUse(
    namespace="a", claim="x", node="n", device="gpu-0", pods=("p", "q"), used_bytes=2, granted_bytes=8, idle_s=9.0
)
TWO = ClaimDeviceUse(
    namespace="a", claim="x", node="n", device="gpu-1", pods=("p", "q"), used_bytes=3, granted_bytes=8, idle_s=4.0
)
OTHER = ClaimDeviceUse(namespace="b", claim="y", node="n", device="gpu-2", used_bytes=None, granted_bytes=8)


def test_a_claim_is_the_sum_of_its_devices_and_idle_as_long_as_all_of_them() -> None:
    first, second = summed([TWO, OTHER, ONE], by_claim)
    assert (first.key, first.used_bytes, first.granted_bytes, first.idle_s) == (("a", "x"), 5, 16, 4.0)
    assert (second.key, second.used_bytes, second.idle_s) == (("b", "y"), None, None)
    assert (first.claims, first.devices, first.partial) == (1, 2, ())


def test_a_sum_with_an_unknown_part_names_it() -> None:
    (node,) = summed([ONE, OTHER], by_node)
    assert (node.key, node.used_bytes, node.claims, node.idle_s) == (("n",), 2, 2, None)
    assert node.partial == ("idle_s", "used_bytes") or set(node.partial) == {"used_bytes", "idle_s"}


def test_pods_of_one_claim_are_one_line() -> None:
    """What each of them uses is not told apart, so neither gets all of it."""
    assert [each.key for each in summed([ONE, TWO], by_pod)] == [("a", "p,q")]
    assert [each.key for each in summed([ONE, OTHER], by_namespace)] == [("a",), ("b",)]


def test_the_mean_of_utilisation_is_over_devices() -> None:
    one, two = (
        ClaimDeviceUse(namespace="a", claim="x", device=str(at), sm_ratio=value) for at, value in enumerate((0.2, 0.6))
    )
    (found,) = summed([one, two], by_claim)
    assert found.sm_ratio is not None
    assert abs(found.sm_ratio - 0.4) < 1e-9
