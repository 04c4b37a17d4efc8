"""What was read, computed and shown is freed when the next state replaces it, without garbage collection.

A collection of everything stops the page (`web.reading.Heap`), so nothing may need one.
"""

import gc
import weakref
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

from tests.contract.kubectl.web.conftest import Site
from tests.contract.kubectl.web.test_pages import CLASS, PAGES
from tests.unit.kubectl.web.objects import claim, partition, share, slice_of, small_state, waiting_pod, whole

if TYPE_CHECKING:
    from starlette.testclient import TestClient


class Watched(dict[str, Any]):
    """An object of the cluster to which weak references can be made."""


@pytest.fixture
def no_collection() -> Iterator[None]:
    gc.disable()
    yield
    gc.enable()


@pytest.mark.usefixtures("no_collection")
def test_an_old_state_is_freed_without_collection(site: Site, browser: "TestClient") -> None:
    """Slices, claims and pods, after every page showed them; capacity and explanations were computed of them."""
    watched = _read_and_look(site, browser)
    site.read(small_state())
    for path in PAGES:
        browser.get(f"{site.base}{path}")
    site.read(small_state(claim("other", "n")))
    assert [kind for kind, found in watched.items() if found() is not None] == []


def _read_and_look(site: Site, browser: "TestClient") -> dict[str, "weakref.ref[Watched]"]:
    devices = whole("gpu-0", "GPU-0", counter_set="c"), partition("gpu-0-mig-1", "GPU-0", "1g.10gb", (6, 1), "c")
    pod = waiting_pod("w")
    pod["spec"]["resourceClaims"][0]["resourceClaimName"] = "w"
    found = {
        "slice": Watched(slice_of("n", *devices, of=2)),
        "claim": Watched(claim("a", "n", share("gpu-0", "20Gi"))),
        "waiting claim": Watched(claim("w", "n")),
        "pod": Watched(pod),
    }
    counters = slice_of("n", sets=("c",), of=2)
    parts: dict[str, Any] = {"slices": (counters, found["slice"]), "pods": (found["pod"],), "classes": (CLASS,)}
    site.read(small_state(found["claim"], found["waiting claim"], **parts))
    for _ in range(2):
        for path in PAGES:
            browser.get(f"{site.base}{path}")
        site.read(site.state)
    assert "gpu-0" in browser.get(f"{site.base}/pending/team/w").text
    return {kind: weakref.ref(each) for kind, each in found.items()}
