"""Published pools, devices and counters, and the file of --claim-template."""

from pathlib import Path
from typing import Any

import pytest

from dra_driver.conformance.cluster import counters, devices, incomplete, narrowed, read_template, together
from dra_driver.core.errors import ConfigurationError

Wire = dict[str, Any]


def slice_of(name: str, *, generation: int = 1, count: int = 1, **content: Any) -> Wire:
    pool = {"name": "pool", "generation": generation, "resourceSliceCount": count}
    return {"metadata": {"name": name}, "spec": {"driver": "d", "pool": pool, **content}}


def uses(name: str, amount: str) -> Wire:
    return {"name": name, "consumesCounters": [{"counterSet": "card", "counters": {"memory": {"value": amount}}}]}


CARD = slice_of("b", count=2, sharedCounters=[{"name": "card", "counters": {"memory": {"value": "8Gi"}}}])


def test_pools_without_all_of_their_slices_are_named() -> None:
    assert incomplete([slice_of("a", count=2, devices=[]), CARD]) == ""
    assert "has 1 slices of its newest generation 1, and they say that there are 2" in incomplete([CARD])
    assert incomplete([]) == "the driver has published no ResourceSlice for this node"


def test_slices_of_older_generations_do_not_count() -> None:
    old, new = slice_of("a", devices=[{"name": "old"}]), slice_of("b", generation=2, devices=[{"name": "new"}])
    assert [device.name for device in devices([old, new])] == ["new"]
    assert incomplete([old, new]) == ""


def test_devices_that_exclude_each_other_are_not_chosen_together() -> None:
    offered = [uses("whole", "8Gi"), uses("part-0", "4Gi"), uses("part-1", "4Gi"), uses("part-2", "4Gi")]
    slices = [slice_of("a", count=2, devices=offered), CARD]
    assert [device.name for device in together(slices, devices(slices), 32)] == ["part-0", "part-1"]


def test_shares_and_more_devices_than_wanted_are_left_out() -> None:
    offered = [{"name": "shared", "allowMultipleAllocations": True}, *({"name": f"d-{at}"} for at in range(5))]
    slices = [slice_of("a", devices=offered)]
    assert [device.name for device in together(slices, devices(slices), 3)] == ["d-0", "d-1", "d-2"]


def test_narrowed_slices_keep_their_counters() -> None:
    slices = [slice_of("a", count=2, devices=[uses("part-0", "4Gi"), uses("part-1", "4Gi")]), CARD]
    kept = narrowed(slices, {("pool", "part-1")})
    assert [device.name for device in devices(kept)] == ["part-1"]
    assert counters(kept) == counters(slices)
    assert len(devices(slices)) == 2  # the original is not changed


SPEC = "devices: {requests: [{name: a, exactly: {deviceClassName: c}}]}"
CLAIM = f"kind: ResourceClaim\nspec: {{{SPEC}}}\n"
TEMPLATE = f"kind: ResourceClaimTemplate\nspec: {{spec: {{{SPEC}}}}}\n"
CLASS = "kind: DeviceClass\nmetadata: {name: c}\nspec: {}\n"


@pytest.mark.parametrize("text", [CLAIM, TEMPLATE, f"{CLASS}---\n{TEMPLATE}---\n"])
def test_a_claim_or_template_is_read(tmp_path: Path, text: str) -> None:
    path = tmp_path / "t.yaml"
    path.write_text(text)
    template = read_template(path)
    assert template.spec["devices"]["requests"][0]["name"] == "a"
    assert len(template.classes) == text.count("DeviceClass\n")


@pytest.mark.parametrize(
    "text",
    ["", "kind: Pod\n", f"{CLAIM}---\n{CLAIM}", "kind: ResourceClaim\nspec: 1\n", "a: [", "- 1\n", CLASS, None],
)
def test_other_files_are_refused_by_name(tmp_path: Path, text: str | None) -> None:
    path = tmp_path / "t.yaml"
    if text is not None:
        path.write_text(text)
    with pytest.raises(ConfigurationError, match=r"--claim-template .*t\.yaml"):
        read_template(path)
