"""What the CustomResourceDefinition says beyond the compact schemas."""

import re
from collections.abc import Iterator
from typing import Any

import pytest

from dra_driver.config.schemas.export import gpu_node_crd, gpu_policy_crd


def quantities(schema: dict[str, Any]) -> Iterator[dict[str, Any]]:
    if schema.get("x-kubernetes-int-or-string"):
        yield schema
    for inner in (*schema.get("properties", {}).values(), *(schema[name] for name in ("items",) if name in schema)):
        yield from quantities(inner)


def test_quantities_have_their_bounds_as_rules() -> None:
    """Kubernetes ignores minimum and maximum of what may be a number or a text: -1 would be stored."""
    root = gpu_policy_crd()["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    rules = [one["x-kubernetes-validations"][0]["rule"] for one in quantities(root)]
    assert len(rules) == 4
    assert sum("quantity('0')) >= 0" in rule for rule in rules) == 2
    assert sum("isGreaterThan(quantity('1048575'))" in rule for rule in rules) == 2
    assert all("quantity('1Ei')) <= 0" in rule for rule in rules)


@pytest.mark.parametrize("crd", [gpu_policy_crd(), gpu_node_crd()], ids=["GpuPolicy", "GpuNode"])
def test_columns_show_fields_that_the_schema_has(crd: dict[str, Any]) -> None:
    """kubectl shows an empty column for a path that leads nowhere, and says nothing."""
    (version,) = crd["spec"]["versions"]
    root = version["schema"]["openAPIV3Schema"]
    assert version["subresources"] == {"status": {}}
    for column in version["additionalPrinterColumns"]:
        schema = root
        for step in re.sub(r"\[[^]]*\]", ".[]", column["jsonPath"]).strip(".").split("."):
            if step == "metadata":
                break
            schema = schema["items"] if step == "[]" else schema["properties"][step]
        else:
            assert schema["type"] == column["type"], column
