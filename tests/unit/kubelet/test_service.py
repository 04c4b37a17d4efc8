"""Which label a claim's outcome gets."""

import pytest

from dra_driver import errors
from dra_driver.kubelet.service import result_of
from dra_driver.telemetry.metrics import RESULTS


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
    """Who has to act differs: the user, the administrator, the hardware's owner, or us."""
    assert result_of(error) == result
    assert result in RESULTS


def test_every_branch_but_our_own_defects_has_a_label() -> None:
    """A new branch of errors must get a label of its own rather than be counted as a defect."""
    branches = [branch for branch in errors.DraError.__subclasses__() if branch.__module__ == errors.__name__]
    assert len(branches) > 4
    assert {branch for branch in branches if result_of(branch("x")) == "internal"} == {errors.InvalidSpecError}
