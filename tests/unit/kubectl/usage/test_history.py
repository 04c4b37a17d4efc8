"""What Prometheus recorded, joined by claim; a value that cannot be is left out and said."""

from typing import Any

import pytest

from dra_driver.kubectl.usage.history import History, queries

LABELS = {"namespace": "a", "claim": "x", "node": "n", "request": "gpu", "device": "gpu-0", "share": "s"}


def answer(*series: tuple[dict[str, str], Any]) -> dict[str, Any]:
    result = [{"metric": labels, "value": [1.0, value]} for labels, value in series]
    return {"status": "success", "data": {"resultType": "vector", "result": result}}


def test_answers_are_joined_by_claim_and_device() -> None:
    history = History(3600)
    for field, value in {"used_bytes": "10", "peak_bytes": "15", "sm_ratio": "0.5", "held_s": "3660"}.items():
        history.add(field, answer((LABELS, value)))
    history.add(
        "energy_joules", answer(({**LABELS, "estimated": "true"}, "5"), ({**LABELS, "estimated": "false"}, "1"))
    )
    history.add("pods", answer(({**LABELS, "pod": "q"}, "1"), ({**LABELS, "pod": "p"}, "1")))
    (use,) = history.uses()
    assert (use.namespace, use.claim, use.node, use.device, use.share) == ("a", "x", "n", "gpu-0", "s")
    assert (use.used_bytes, use.peak_bytes, use.sm_ratio, use.pods) == (10, 15, 0.5, ("p", "q"))
    assert (use.energy_joules, use.energy_estimated) == (6.0, True)
    assert use.held_s == 3600, "a claim is not charged for more hours than the window has"
    assert (use.granted_bytes, use.idle_s) == (None, None)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("used_bytes", "-5"),
        ("sm_ratio", "7"),
        ("held_s", "9999999"),
        ("peak_bytes", "NaN"),
        ("idle_s", "+Inf"),
        ("energy_joules", "1e300"),
        pytest.param("used_bytes", 10**400, id="larger than a float"),
    ],
)
def test_a_value_that_cannot_be_is_left_out_and_said(field: str, value: str) -> None:
    history = History(3600)
    history.add("processes", answer((LABELS, "1")))
    history.add(field, answer((LABELS, value)))
    (use,) = history.uses()
    assert getattr(use, field) is None
    (gap,) = history.gaps()
    assert gap.startswith(f"1 values of Prometheus cannot be and are left out: {field} of a/x on gpu-0")


def test_series_without_a_claim_and_odd_items_are_left_out() -> None:
    history = History(3600)
    odd: dict[str, Any] = answer(({"namespace": "a"}, "1"))
    odd["data"]["result"] += [None, 7, {"metric": []}, {"value": [1, "1"]}]
    history.add("processes", odd)
    assert history.uses() == []


@pytest.mark.parametrize(
    "wrong",
    [
        None,
        [],
        {},
        {"status": "error", "error": "parse\nerror"},
        {"status": "success", "data": {"resultType": "matrix", "result": []}},
    ],
)
def test_what_is_no_answer_is_refused(wrong: Any) -> None:
    with pytest.raises(ValueError, match=r"refused the question|is no vector"):
        History(60).add("processes", wrong)


def test_names_of_labels_are_made_printable() -> None:
    history = History(3600)
    history.add("processes", answer(({**LABELS, "claim": "\x1b]0;x\x07" + "y" * 999, "pod": "p"}, "1")))
    (use,) = history.uses()
    assert use.claim.isprintable()
    assert len(use.claim) == 253


def test_a_long_window_has_bounded_steps() -> None:
    """Prometheus refuses a subquery of more than 11,000 points."""
    for window in (300, 86_400, 366 * 86_400):
        query = queries(window)["peak_bytes"]
        step = int(query.rpartition(":")[2].partition("s")[0])
        assert window / step <= 505
        assert step >= 60
