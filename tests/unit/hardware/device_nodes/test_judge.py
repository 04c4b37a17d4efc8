"""What has to happen at a node's path."""

import pytest

from dra_driver.hardware.device_nodes.ensure import RIGHT, plan_node
from dra_driver.hardware.device_nodes.folder import Found, Seen
from dra_driver.hardware.device_nodes.numbers import NodeNumbers
from dra_driver.hardware.device_nodes.params import NodeParams

WANTED, OTHER = NodeNumbers(major=510, minor=0), NodeNumbers(major=509, minor=0)
FREE, FORBIDDEN = NodeParams(), NodeParams(modify=False)
MISSING = Seen(found=Found.MISSING)


def node(numbers: NodeNumbers) -> Seen:
    return Seen(found=Found.DEVICE, numbers=numbers, mode=0o600)


def test_a_right_node_is_left_alone_whatever_its_mode() -> None:
    """An administrator may have restricted it."""
    assert plan_node(WANTED, node(WANTED), FREE) == RIGHT
    assert plan_node(WANTED, node(WANTED), FORBIDDEN) == RIGHT


def test_a_link_to_the_right_node_is_right() -> None:
    assert plan_node(WANTED, Seen(found=Found.LINK), FREE, WANTED) == RIGHT


def test_a_missing_or_stale_node_is_made() -> None:
    """The major of nvidia-uvm changes when the module is loaded again."""
    assert plan_node(WANTED, MISSING, FREE).make
    assert plan_node(WANTED, node(OTHER), FREE).make


def test_what_the_administrator_forbids_is_not_done() -> None:
    """A missing node is a lack; a stale one is another device."""
    verdict = plan_node(WANTED, MISSING, FORBIDDEN)
    assert (verdict.make, verdict.refusal) == (False, None)
    assert "NVreg_ModifyDeviceFiles=0" in (verdict.missing or "")
    verdict = plan_node(WANTED, node(OTHER), FORBIDDEN)
    assert (verdict.make, verdict.missing) == (False, None)
    assert "509:0" in (verdict.refusal or "")


def test_parameters_that_are_not_understood_are_named() -> None:
    verdict = plan_node(WANTED, MISSING, NodeParams(modify=False, problem="params has nonsense"))
    assert "params has nonsense" in (verdict.missing or "")


@pytest.mark.parametrize("found", [Found.LINK, Found.OTHER])
def test_a_foreign_file_is_never_replaced(found: Found) -> None:
    verdict = plan_node(WANTED, Seen(found=found), FREE, OTHER)
    assert not verdict.make
    assert verdict.refusal == f"it is a {found.value}"
