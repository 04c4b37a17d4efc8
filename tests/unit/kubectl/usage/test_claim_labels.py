"""Labels of claims: their own, and those of all of their pods."""

from typing import Any

from dra_driver.kubectl.usage.device_use import GONE, WITHOUT, claim_labels, value_in

Obj = dict[str, Any]


def claim(labels: Obj, *users: str) -> Obj:
    reserved = [{"resource": "pods", "uid": uid} for uid in users]
    return {"metadata": {"namespace": "a", "name": "x", "labels": labels}, "status": {"reservedFor": reserved}}


def pod(uid: str, **labels: str) -> Obj:
    return {"metadata": {"uid": uid, "labels": labels}}


def team(item: Obj, *pods: Obj) -> str:
    return value_in(claim_labels([item], pods).get(("a", "x")), "team")


def test_a_claims_own_label_comes_first() -> None:
    assert team(claim({"team": "ml"}, "p"), pod("p", team="web")) == "ml"


def test_a_label_of_pods_counts_if_all_of_them_agree() -> None:
    """Otherwise one team would pay for another's."""
    both = claim({"app": "x"}, "p", "q")
    assert team(both, pod("p", team="web"), pod("q", team="web", app="y")) == "web"
    assert team(both, pod("p", team="web"), pod("q", team="ml")) == WITHOUT
    assert team(both, pod("p", team="web"), pod("q")) == WITHOUT


def test_a_pod_that_is_not_known_may_have_another_label() -> None:
    """As where pods of another namespace may not be listed."""
    assert team(claim({}, "p", "gone"), pod("p", team="web")) == WITHOUT
    assert team(claim({}), pod("p", team="web")) == WITHOUT


def test_a_claim_that_is_gone_has_no_labels() -> None:
    assert value_in(None, "team") == GONE


def test_wrong_objects_have_no_labels() -> None:
    """They come from a file or a server that is none."""
    assert claim_labels([{"metadata": None}, {"metadata": {"labels": ["x"]}}], [{"metadata": 5}]) == {
        ("default", ""): ()
    }
