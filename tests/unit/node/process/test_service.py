"""Which label a claim's outcome gets."""

import pytest

from dra_driver.core import errors
from dra_driver.core.telemetry.metrics import RESULTS
from dra_driver.node.process.service import result_of


@pytest.mark.parametrize(
    ("error", "result"),
    [
        (None, "ok"),
        (errors.InvalidParametersError("x"), "configuration"),
        (errors.DeviceInUseError("x"), "claim"),
        (errors.DriverUnavailableError("x"), "hardware"),
        (errors.StorageError("x"), "retryable"),
        (errors.ForbiddenError("x"), "kubernetes-api"),
        (errors.DraError("x"), "internal"),
    ],
)
def test_every_branch_of_the_error_tree_has_its_label(error: errors.DraError | None, result: str) -> None:
    """Each label names who has to act: the user, the administrator, the owner of the hardware, or a developer."""
    assert result_of(error) == result
    assert result in RESULTS


def test_every_branch_of_errors_has_a_label_of_its_own() -> None:
    """A new branch of errors must get a label of its own rather than be counted as a defect."""
    branches = [branch for branch in errors.DraError.__subclasses__() if branch.__module__ == errors.__name__]
    assert len(branches) > 4
    assert {branch for branch in branches if result_of(branch("x")) == "internal"} == {errors.InvalidSpecError}
