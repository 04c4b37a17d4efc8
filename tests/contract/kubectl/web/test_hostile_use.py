"""Hostile texts and shapes in usage data: GpuNode status and exporter responses.

An exporter stands beside the pods of tenants, and its answer and its findings name their objects and commands.
"""

import re
from typing import TYPE_CHECKING, Any

import pytest

from dra_driver.config.status import node_status_of
from dra_driver.kubectl.usage.device_use import MAX_NAME, decode
from tests.contract.kubectl.web.conftest import Site
from tests.contract.kubectl.web.test_pages import HOSTILE, full_state, hostile_state, plain_state
from tests.unit.kubectl.web.objects import DRIVER

if TYPE_CHECKING:
    from starlette.testclient import TestClient

PAGES = ("/", "/claims", "/nodes/n", "/nodes/n/gpu-0", "/claims/team/a")
LONG = HOSTILE * 10_000
SINCE = "2026-11-22T10:00:00Z"


def node_with(usage: Any, name: str = "n", gpu: str = "gpu-0") -> Any:
    status = {"driverName": DRIVER, "gpus": [{"name": gpu, "uuid": gpu, "health": "Healthy"}], "usage": usage}
    return node_status_of({"metadata": {"name": name}, "status": status})


def told_in(text: str, gpu: str) -> dict[str, Any]:
    """``status.usage`` with this text wherever there is one; ``since`` is a time, or the whole entry is not read."""
    claim = {"namespace": text, "claim": text, "claimUid": text, "since": text, "action": text}
    pods = [{"name": text, "uid": text}]
    memory = {"used": text, "granted": text, "processes": 1, "graceSeconds": 60}
    foreign = {"gpu": gpu, "processes": 2, "memory": text, "since": SINCE, "commands": [text, text]}
    return {
        "checkedAt": text,
        "overGrant": [{**claim, **memory, "gpu": gpu, "pods": pods}],
        "unattributed": [foreign],
        "idle": [{**claim, "afterMinutes": 5}],
    }


def answer_in(text: str, *, namespace: str, claim: str, device: str) -> dict[str, Any]:
    """An exporter's answer about one device, with this text in all else."""
    used = {"device": device, "request": text, "share": text, "form": text, "lastUsed": text, "usedBytes": 2**34}
    return {
        "version": 1,
        "node": "n",
        "time": text,
        "windowSeconds": text,
        "knows": {text: text, "processes": text},
        "gpus": [{"device": device, "uuid": text, "model": text, "unreadable": text, "memoryUsedBytes": 2**34}],
        "claims": [{"uid": text, "namespace": namespace, "name": claim, "pods": [text], "devices": [used]}],
    }


def give(site: Site, answer: dict[str, Any]) -> None:
    told = decode(answer, "n")
    site.uses, site.gaps = [*site.uses, *told.uses], [*site.gaps, *told.gaps]
    site.memory += told.gpus


def assert_harmless(text: str) -> None:
    assert "<script>alert" not in text
    assert "<img" not in text
    assert "}}49" not in text
    assert "\u202e" not in text
    assert len(re.findall("<script", text)) == 1
    assert not re.search(r"\s(on[a-z]+|style)=[\"']", text)


@pytest.mark.parametrize("text", [HOSTILE, LONG], ids=["hostile", "long"])
def test_texts_of_status_usage_are_text(site: Site, browser: "TestClient", text: str) -> None:
    """They stand on the pages of node and GPU, escaped; an entry with more text than an API server takes does not."""
    site.read(full_state(), n=node_with(told_in(text, "gpu-0")))
    pages = {path: browser.get(f"{site.base}{path}").text for path in PAGES}
    for path in ("/nodes/n", "/nodes/n/gpu-0"):
        assert ("&lt;script&gt;alert(1)" in pages[path]) == (text == HOSTILE)
    for page in pages.values():
        assert_harmless(page)


def test_texts_of_an_exporter_are_text(site: Site, browser: "TestClient") -> None:
    give(site, answer_in(HOSTILE, namespace="team", claim="a", device="gpu-0"))
    give(site, answer_in(LONG, namespace=LONG, claim=LONG, device=LONG))
    assert max(len(use.claim) for use in site.uses) == MAX_NAME
    site.read(full_state())
    site.read(full_state())
    pages = {path: browser.get(f"{site.base}{path}").text for path in PAGES}
    assert "16.0 GiB" in pages["/nodes/n/gpu-0"]
    assert "cannot measure" in pages["/claims"]
    for page in pages.values():
        assert_harmless(page)


def test_a_gpu_of_a_hostile_name_has_its_page(site: Site, browser: "TestClient") -> None:
    name = HOSTILE.replace("/", "")  # no name in Kubernetes has a slash, and none such has a page
    site.read(hostile_state(name), **{name: node_with(told_in(HOSTILE, name), name, name)})
    give(site, answer_in(HOSTILE, namespace=name, claim=name, device=name) | {"node": name})
    for _ in range(2):
        site.read(site.state, **site.told)
    page = browser.get(f"{site.base}/").text
    links = {link for link in re.findall(r'href="([^"]+)"', page) if "alert" in link}
    assert len(links) == 2
    for link in links:
        answer_page = browser.get(link)
        assert answer_page.status_code == 200
        assert_harmless(answer_page.text)


@pytest.mark.parametrize("wrong", [7, "text", [], [None], [[]], {"a": 1}, [{"gpu": {}}], True, [{}] * 10_000])
def test_shapes_that_no_node_process_writes_are_left_out(site: Site, browser: "TestClient", wrong: Any) -> None:
    usages = [
        wrong,
        dict.fromkeys(("overGrant", "unattributed", "idle", "checkedAt"), wrong),
        {name: [dict.fromkeys(entries[0], wrong)] for name, entries in told_in("x", "gpu-0").items() if name[0] != "c"},
    ]
    for usage in usages:
        site.read(plain_state(), n=node_with(usage))
        for path in ("/nodes/n", "/nodes/n/gpu-0"):
            answer = browser.get(f"{site.base}{path}")
            assert answer.status_code == 200
            assert "banner" not in answer.text


@pytest.mark.parametrize("wrong", [7, "text", [], [None], [[]], {"a": 1}, True, -1, 1e300, 10**400])
def test_shapes_that_no_exporter_answers_are_left_out(site: Site, browser: "TestClient", wrong: Any) -> None:
    """Numbers that cannot be are unknown: none of them is drawn or divided by."""
    good = answer_in("x", namespace="team", claim="a", device="gpu-0")
    for name in ("node", "time", "windowSeconds", "knows", "gpus", "claims"):
        give(site, {**good, name: wrong})
    device = dict.fromkeys(("usedBytes", "peakBytes", "grantBytes", "percent", "processes", "energyJoules"), wrong)
    names = ("memoryTotalBytes", "memoryUsedBytes", "percent", "powerWatts", "unattributedProcesses")
    gpu = dict.fromkeys(names, wrong)
    claims = [{**good["claims"][0], "devices": [{"device": "gpu-0", **device}]}]
    give(site, {**good, "claims": claims, "gpus": [{"device": "gpu-0", **gpu}]})
    for _ in range(2):
        site.read(full_state())
    for path in PAGES:
        assert browser.get(f"{site.base}{path}").status_code == 200
