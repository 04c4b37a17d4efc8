"""The table of published devices."""

from typing import Any

from dra_driver.cli.devices import devices, holders
from dra_driver.cli.table import render
from dra_driver.errors import ForbiddenError


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


def test_row_shows_what_people_choose_by() -> None:
    item = slice_of(
        "node-a",
        "gpu-0",
        attributes={"type": {"string": "gpu"}, "productName": {"string": "NVIDIA L4"}},
        capacity={"memory": {"value": "23034Mi"}},
        taints=[{"key": "gpu.nvidia.com/lost", "effect": "NoExecute"}],
    )
    (row,) = devices([item], {("gpu.nvidia.com", "node-a/gpu.nvidia.com", "gpu-0"): ["default/train"]})
    assert (row.node, row.device, row.type, row.product, row.memory) == (
        "node-a",
        "gpu-0",
        "gpu",
        "NVIDIA L4",
        "23034Mi",
    )
    assert row.taints == ("gpu.nvidia.com/lost:NoExecute",)
    assert row.claims == ("default/train",)


def test_only_the_newest_generation_of_a_pool_counts() -> None:
    """During an update both are there, and the scheduler ignores the old one."""
    found = devices([slice_of("n", "gpu-0", generation=1), slice_of("n", "gpu-1", generation=2)], {})
    assert [row.device for row in found] == ["gpu-1"]


def test_devices_of_other_drivers_are_shown_with_what_they_have() -> None:
    found = devices([slice_of("b", "x"), slice_of("a", "nic-0", driver="nic.example")], {})
    assert [(row.node, row.driver, row.product) for row in found] == [
        ("a", "nic.example", ""),
        ("b", "gpu.nvidia.com", ""),
    ]


class Lister:
    """Claims, or the right to see them missing."""

    def __init__(self, claims: list[dict[str, Any]] | None) -> None:
        self.claims = claims

    def list(self, path: str) -> dict[str, Any]:
        if self.claims is None:
            raise ForbiddenError("no")
        return {"items": self.claims}


def test_claims_are_found_by_driver_pool_and_device() -> None:
    result = {"driver": "d", "pool": "p", "device": "x"}
    allocated = {
        "metadata": {"namespace": "default", "name": "train"},
        "status": {"allocation": {"devices": {"results": [result, result]}}},
    }
    pending = {"metadata": {"namespace": "default", "name": "waits"}}
    held = holders(Lister([allocated, pending]))  # type: ignore[arg-type]
    assert held == {("d", "p", "x"): ["default/train"]}


def test_without_the_right_to_list_claims_holders_are_unknown_not_absent() -> None:
    held = holders(Lister(None))  # type: ignore[arg-type]
    assert held is None
    assert devices([slice_of("n", "gpu-0")], held)[0].claims == ("?",)


def test_table_is_aligned_and_escapes_control_characters() -> None:
    """Attribute values come from any driver."""
    assert render(("A", "LONG"), [("value", ""), ("\x1b[31m", "b")]).splitlines() == [
        "A       LONG",
        "value   <none>",
        "?[31m   b",
    ]
