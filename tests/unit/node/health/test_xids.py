"""The table of XIDs."""

import pytest

from dra_driver.node.health.xids import KNOWN, ROWS, XidRecovery, label, xid

APPLICATION_ERRORS = (13, 31, 43, 45, 68, 109)
"""What NVIDIA's device plugin and DRA driver ignore."""


@pytest.mark.parametrize("number", APPLICATION_ERRORS)
def test_an_application_error_does_not_taint(number: int) -> None:
    """A program's mistake must not take the GPU from others."""
    assert not xid(number).taints
    assert xid(number).recovery is XidRecovery.RESTART_APP
    assert "L" in xid(number).sources


def test_an_unknown_xid_taints_and_says_so() -> None:
    """As with NVIDIA's drivers: what no document describes may be any error."""
    assert (xid(999).taints, xid(999).reported) == (True, False)
    assert "not in this driver's table" in xid(999).meaning


def test_a_metric_has_one_label_for_all_unknown_xids() -> None:
    """A GPU that invents numbers must not fill the metrics."""
    assert (label(79), label(999), label(123456)) == ("79", "other", "other")


def test_each_row_is_whole_and_stands_once_in_order() -> None:
    """A number that stands twice would hide its first row."""
    numbers = [row[0] for row in ROWS]
    assert numbers == sorted(set(numbers))
    assert len(KNOWN) == len(ROWS)
    for number, meaning, _, since, sources in ROWS:
        assert 0 < number < 1000
        assert meaning
        assert not meaning.endswith(".")
        assert since in {0, 565, 570, 575}
        assert sources
        assert set(sources) <= set("CNL")
