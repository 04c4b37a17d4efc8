"""The page with the rights of one namespace: it shows what may be read, and names the right that is missing."""

from typing import TYPE_CHECKING, Any

import pytest

from dra_driver.core.errors import ForbiddenError
from dra_driver.kube.state import KINDS
from dra_driver.kubectl.web.reading import LiveSource, read_from
from tests.contract.kubectl.web.conftest import Site
from tests.unit.kubectl.web.objects import claim, share, small_state, waiting_pod

if TYPE_CHECKING:
    from starlette.testclient import TestClient

OWN = "team"
LISTS = {"/": "resourceslices", "/claims": "resourceclaims", "/pending": "pods", "/capacity": "resourceslices"}


class OneNamespace:
    """An API server that lets the user list what is in one namespace, and nothing else."""

    def __init__(self, allowed: bool = True) -> None:
        self._allowed = allowed
        self._state = small_state(claim("mine", "n", share("gpu-0", "20Gi")), pods=(waiting_pod("waits"),))

    def get(self, path: str, query: Any = None) -> dict[str, Any]:
        return {"gitVersion": "v1.36.2", "major": "1", "minor": "36"}

    def list(self, path: str, query: Any = None) -> dict[str, Any]:
        kind = next((kind for kind in KINDS if path.endswith(f"/namespaces/{OWN}/{kind.resource}")), None)
        if kind is None or not self._allowed:
            raise ForbiddenError(f'GET {path} failed: 403 Forbidden: User "u" cannot list there')
        return {"items": list(getattr(self._state, kind.field))}


def pages(site: Site, browser: "TestClient") -> dict[str, str]:
    site.read()
    for path in LISTS:
        browser.get(f"{site.base}{path}")
    site.read()
    return {path: browser.get(f"{site.base}{path}").text for path in LISTS}


def test_a_namespace_is_shown_with_the_rights_that_are_missing(site: Site, browser: "TestClient") -> None:
    """Own claims and pods; nodes and GPUs are unknown, which is not the same as none."""
    site.source = LiveSource(OneNamespace(), OWN)
    found = pages(site, browser)
    assert "team/mine" in found["/claims"]
    assert "team/waits" in found["/pending"]
    assert "Which GPUs there are is not known" in found["/"]
    assert "Which devices are published is not known" in found["/capacity"]
    for page in found.values():
        assert "this user may not list resourceslices.resource.k8s.io (403)" in page
        assert "kubectl auth can-i list nodes" in page
        assert "list pods in all namespaces (403)" in page
        assert page.count("; those of namespace team are shown") >= 2


def test_without_any_right_every_page_says_which(site: Site, browser: "TestClient") -> None:
    """No page claims that there is nothing."""
    site.source = LiveSource(OneNamespace(allowed=False), OWN)
    for path, page in pages(site, browser).items():
        assert f"may not list {LISTS[path]}" in page, path
        assert "not known" in page
        assert "are shown" not in page


def test_the_right_to_ask_exporters_is_named(site: Site, browser: "TestClient") -> None:
    """Use goes through ``pods/proxy``, which few may get."""
    path = "/api/v1/namespaces/dra-driver/pods/exporter-a:8082/proxy/usage"
    site.use_failure = ForbiddenError(f"GET {path} failed: 403 Forbidden: no")
    site.read(small_state(claim("a", "n", share("gpu-0", "20Gi"))))
    for page in ("/claims", "/nodes/n/gpu-0"):
        text = browser.get(f"{site.base}{page}").text
        assert "this user may not get pods/proxy exporter-a:8082 in namespace dra-driver (403)" in text


@pytest.mark.parametrize("has_volume", [True, False])
def test_volumes_that_cannot_be_read_matter_to_pods_that_have_some(has_volume: bool) -> None:
    """The embedded cluster serves none, and few may list them."""
    pod = waiting_pod("waits")
    pod["spec"]["volumes"] = [{"name": "v", "persistentVolumeClaim": {"claimName": "v"}}] if has_volume else []

    class Api(OneNamespace):
        def list(self, path: str, query: Any = None) -> dict[str, Any]:
            if "persistentvolumeclaims" in path or "storageclasses" in path:
                raise ForbiddenError(f"GET {path} failed: 403 Forbidden: no")
            return {"items": [pod] if path.endswith("/pods") else []}

    gaps = read_from(LiveSource(Api())).gaps
    assert len(gaps) == (2 if has_volume else 0), gaps
