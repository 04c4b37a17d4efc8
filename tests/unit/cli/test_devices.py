"""The table of published devices and the claims that hold them."""

from typing import Any

from dra_driver.capacity import devices_of
from dra_driver.cli.devices import row
from dra_driver.cli.table import render
from dra_driver.kube.state import ClusterState


def slice_of(
    node: str, *names: str, generation: int = 1, driver: str = "gpu.nvidia.com", **device: Any
) -> dict[str, Any]:
    return {
        "metadata": {"name": f"{node}-{generation}-{names}"},
        "spec": {
            "driver": driver,
            "nodeName": node,
            "pool": {"name": f"{node}/{driver}", "generation": generation, "resourceSliceCount": 1},
            "devices": [{"name": name, **device} for name in names],
        },
    }


def claim(name: str, *devices: str, node: str = "n", pods: tuple[str, ...] = (), **result: Any) -> dict[str, Any]:
    where = {"request": "gpu", "driver": "gpu.nvidia.com", "pool": f"{node}/gpu.nvidia.com", **result}
    results = [{**where, "device": device} for device in devices]
    return {
        "metadata": {"namespace": "default", "name": name},
        "status": {
            "allocation": {"devices": {"results": results}},
            "reservedFor": [{"resource": "pods", "name": pod, "uid": pod} for pod in pods],
        },
    }


def test_row_shows_what_people_choose_by() -> None:
    item = slice_of(
        "n",
        "gpu-0",
        attributes={"type": {"string": "gpu"}, "productName": {"string": "NVIDIA L4"}},
        capacity={"memory": {"value": "23034Mi"}},
        taints=[{"key": "gpu.nvidia.com/lost", "effect": "NoExecute"}],
    )
    (found,) = devices_of(ClusterState(slices=[item], claims=[claim("train", "gpu-0", pods=("train-0",))]))
    assert row(found) == (
        "n",
        "gpu.nvidia.com",
        "gpu-0",
        "gpu",
        "NVIDIA L4",
        "23034Mi",
        "gpu.nvidia.com/lost:NoExecute",
        "default/train",
        "train-0",
    )


def test_only_the_newest_generation_of_a_pool_counts() -> None:
    """During an update both are there, and the scheduler ignores the old one."""
    slices = [slice_of("n", "gpu-0", generation=1), slice_of("n", "gpu-1", generation=2)]
    assert [found.device for found in devices_of(ClusterState(slices=slices))] == ["gpu-1"]


def test_devices_of_other_drivers_are_shown_with_what_they_have() -> None:
    found = devices_of(ClusterState(slices=[slice_of("b", "x"), slice_of("a", "nic-0", driver="nic.example")]))
    assert [(item.node, item.driver, item.product) for item in found] == [
        ("a", "nic.example", ""),
        ("b", "gpu.nvidia.com", ""),
    ]


def test_pending_claims_hold_nothing_and_shares_are_listed_each() -> None:
    pending = {"metadata": {"namespace": "default", "name": "waits"}}
    claims = [pending, claim("a", "gpu-0", shareID="1"), claim("b", "gpu-0", shareID="2")]
    (found,) = devices_of(ClusterState(slices=[slice_of("n", "gpu-0")], claims=claims))
    assert [holder.claim for holder in found.holders or ()] == ["a", "b"]


def test_admin_access_is_marked_because_it_holds_nothing() -> None:
    state = ClusterState(slices=[slice_of("n", "gpu-0")], claims=[claim("monitor", "gpu-0", adminAccess=True)])
    assert row(devices_of(state)[0])[7] == "default/monitor (admin access)"


def test_held_device_that_is_not_published_any_more_is_still_listed() -> None:
    """A GPU that fell off the bus keeps its claim."""
    (found,) = devices_of(ClusterState(claims=[claim("train", "gpu-9")]))
    assert (found.device, found.published, row(found)[3]) == ("gpu-9", False, "(not published)")


def test_without_the_right_to_list_claims_holders_are_unknown_not_absent() -> None:
    state = ClusterState(slices=[slice_of("n", "gpu-0")], gaps=["resourceclaims: forbidden"])
    (found,) = devices_of(state)
    assert found.holders is None
    assert row(found)[7:] == ("?", "?")


def test_filters_by_node_driver_and_namespace_of_the_holder() -> None:
    state = ClusterState(
        slices=[slice_of("n", "gpu-0"), slice_of("m", "gpu-0"), slice_of("n", "nic-0", driver="nic.example")],
        claims=[claim("train", "gpu-0")],
    )
    assert len(devices_of(state, node="n")) == 2
    assert len(devices_of(state, node="n", driver="nic.example")) == 1
    assert [item.node for item in devices_of(state, namespace="default")] == ["n"]


def test_many_holders_are_cut_short() -> None:
    claims = [claim(f"c{number}", "gpu-0", shareID=str(number)) for number in range(5)]
    (found,) = devices_of(ClusterState(slices=[slice_of("n", "gpu-0")], claims=claims))
    assert row(found)[7] == "default/c0,default/c1,default/c2 and 2 more"


def test_table_is_aligned_and_escapes_control_characters() -> None:
    """Attribute values come from any driver."""
    assert render(("A", "LONG"), [("value", ""), ("\x1b[31m", "b")]).splitlines() == [
        "A       LONG",
        "value   <none>",
        "?[31m   b",
    ]
