"""The table of published devices and the claims that use them."""

from typing import Any

from dra_driver.core.command_line.table import render
from dra_driver.core.model.terms import SharingTerms, Strategy
from dra_driver.kube.state import ClusterState
from dra_driver.kubectl.capacity import devices_of
from dra_driver.kubectl.commands.devices import row, rows
from tests.fakes.dra_objects import DRIVER, Obj, claim, resource_slice
from tests.fakes.published import h100, having, share, slice_name
from tests.unit.kubectl.capacity.helpers import holding


def slice_of(node: str, *names: str, generation: int = 1, driver: str = DRIVER, **device: Any) -> Obj:
    found = resource_slice(node, *({"name": name, **device} for name in names), generation=generation, name=f"{names}")
    found["spec"] |= {"driver": driver, "pool": {**found["spec"]["pool"], "name": f"{node}/{driver}"}}
    return found


def test_row_shows_device_state_and_users() -> None:
    item = slice_of(
        "n",
        "gpu-0",
        attributes={"type": {"string": "gpu"}, "productName": {"string": "NVIDIA L4"}},
        capacity={"memory": {"value": "23034Mi"}},
        taints=[{"key": "gpu.nvidia.com/lost", "effect": "NoExecute"}],
    )
    held = holding("train", "n", "gpu-0")
    held["status"]["reservedFor"] = [{"resource": "pods", "name": "train-0", "uid": "1"}]
    (found,) = devices_of(ClusterState(slices=[item], claims=[held]))
    assert row(found) == (
        *("n", "gpu.nvidia.com", "gpu-0", "gpu", "NVIDIA L4", "23034Mi", "in use", "gpu.nvidia.com/lost:NoExecute"),
        *("default/train", "train-0"),
    )


def test_only_the_newest_generation_of_a_pool_counts() -> None:
    """During an update both generations exist, and the scheduler ignores the old one."""
    slices = [slice_of("n", "gpu-0", generation=1), slice_of("n", "gpu-1", generation=2)]
    assert [found.device for found in devices_of(ClusterState(slices=slices))] == ["gpu-1"]


def test_devices_of_other_drivers_are_shown_without_gpu_attributes() -> None:
    found = devices_of(ClusterState(slices=[slice_of("b", "x"), slice_of("a", "nic-0", driver="nic.example")]))
    assert [(item.node, item.driver, item.product) for item in found] == [
        ("a", "nic.example", ""),
        ("b", "gpu.nvidia.com", ""),
    ]


def test_pending_claims_are_no_holders_and_each_share_is_listed() -> None:
    claims = [claim("waits"), holding("a", "n", "gpu-0", shareID="1"), holding("b", "n", "gpu-0", shareID="2")]
    (found,) = devices_of(ClusterState(slices=[slice_of("n", "gpu-0")], claims=claims))
    assert [holder.claim for holder in found.holders or ()] == ["a", "b"]


def test_admin_access_is_marked_because_it_reserves_nothing() -> None:
    state = ClusterState(slices=[slice_of("n", "gpu-0")], claims=[holding("monitor", "n", "gpu-0", adminAccess=True)])
    assert row(devices_of(state)[0])[8] == "default/monitor (admin access)"


def test_an_allocated_device_that_is_no_longer_published_is_listed() -> None:
    """A GPU that fell off the bus keeps its claim."""
    (found,) = devices_of(ClusterState(claims=[holding("train", "n", "gpu-9")]))
    assert (found.device, found.published, row(found)[3]) == ("gpu-9", False, "(not published)")


def test_without_the_right_to_list_claims_holders_are_unknown() -> None:
    (found,) = devices_of(ClusterState(slices=[slice_of("n", "gpu-0")], gaps=["resourceclaims: forbidden"]))
    assert found.holders is None
    assert (row(found)[6], *row(found)[8:]) == ("?", "?", "?")


def test_filters_by_node_driver_and_namespace_of_the_claim() -> None:
    state = ClusterState(
        slices=[slice_of("n", "gpu-0"), slice_of("m", "gpu-0"), slice_of("n", "nic-0", driver="nic.example")],
        claims=[holding("train", "n", "gpu-0")],
    )
    assert len(devices_of(state, node="n")) == 2
    assert len(devices_of(state, node="n", driver="nic.example")) == 1
    assert [item.node for item in devices_of(state, namespace="default")] == ["n"]


def test_long_lists_of_holders_are_cut() -> None:
    claims = [holding(f"c{number}", "n", "gpu-0", shareID=str(number)) for number in range(5)]
    (found,) = devices_of(ClusterState(slices=[slice_of("n", "gpu-0")], claims=claims))
    assert row(found)[8] == "default/c0, default/c1, default/c2 and 2 more"


def test_a_form_of_a_gpu_whose_other_forms_are_in_use_is_not_free() -> None:
    """The counters of the whole GPU are used, so it is blocked; other parts of the GPU stay free."""
    states = {found.device: found.state for found in devices_of(h100(claims=[having("x", slice_name(6))]))}
    assert (states["gpu-0"], states[slice_name(6)], states[slice_name(5)]) == ("blocked", "in use", "free")
    assert (states["gpu-0-mig-3g40gb-9-4"], states["gpu-0-mig-3g40gb-9-0"]) == ("blocked", "free")


def test_admin_access_consumes_no_counters() -> None:
    watching = having("x", "gpu-0")
    watching["status"]["allocation"]["devices"]["results"][0]["adminAccess"] = True
    assert {found.state for found in devices_of(h100(claims=[watching]))} == {"free"}


def test_a_shared_gpu_shows_each_share_and_the_rest() -> None:
    sharing = SharingTerms(strategy=Strategy.MPS, max_shares=3)
    claims = [share("one", memory="50Gi", percent="70"), share("two", memory="5Gi", percent="10")]
    whole, part = devices_of(h100(sharing=sharing, claims=claims))[:2]
    assert row(whole)[3] == "gpu (MPS)"
    assert row(whole)[6] == "in shares, left: memory 24624Mi, computePercent 20, shares 1"
    assert row(whole)[8] == (
        "default/one (memory 50Gi, computePercent 70), default/two (memory 5Gi, computePercent 10)"
    )
    assert part.state == "blocked"


def test_unused_placements_of_a_profile_share_a_line() -> None:
    """The 26 devices of one H100 take a few lines; allocated devices and each state have their own."""
    found = devices_of(h100(claims=[having("x", slice_name(6))]))
    names = [cells[2] for cells in rows(found, every=False)]
    assert names[:3] == ["gpu-0", slice_name(6), "gpu-0-mig-1g10gb-19-* (6)"]
    assert names.count("gpu-0-mig-3g40gb-9-0") == names.count("gpu-0-mig-3g40gb-9-4") == 1
    assert len(rows(found, every=True)) == len(found) == 26


def test_table_is_aligned_and_escapes_control_characters() -> None:
    """Attribute values may come from any driver."""
    assert render(("A", "LONG"), [("value", ""), ("\x1b[31m", "b")]).splitlines() == [
        "A       LONG",
        "value   <none>",
        "?[31m   b",
    ]
