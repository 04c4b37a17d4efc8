"""The process of the page for visitors, against the embedded API server behind RBAC."""

import time
from pathlib import Path

import pytest

from tests.harness.visitors import ADMIN, GUEST, TENANT, Browser, World, embedded, page_process, what_each_sees


@pytest.mark.timeout(120)
def test_administrator_tenant_and_guest_see_what_their_tokens_may_read(tmp_path: Path) -> None:
    world = World()
    with (
        embedded(world, (ADMIN, TENANT, GUEST), tmp_path) as (gate, tokens),
        page_process(gate.kubeconfig(tmp_path / "page.conf"), tmp_path) as page,
    ):
        what_each_sees(world, page, tokens, lambda name: gate.users.pop(tokens[name]), print)
        assert not [call for call in gate.calls if call.verb not in ("GET", "POST")]
        assert {call.path for call in gate.calls if call.verb == "POST"} == {
            "/apis/authentication.k8s.io/v1/selfsubjectreviews"
        }


@pytest.mark.timeout(60)
def test_no_page_waits_for_an_acknowledgment(tmp_path: Path) -> None:
    """Linux delays an ACK by 40 ms on a kept connection, and without TCP_NODELAY the end of an answer waits for it."""
    world, times = World(), list[float]()
    with (
        embedded(world, (), tmp_path) as (gate, _),
        page_process(gate.kubeconfig(tmp_path / "page.conf"), tmp_path) as page,
    ):
        browser = Browser(page.address)
        for _ in range(10):
            begun = time.monotonic()
            assert browser.get("/")[0] == 401  # the page to sign in
            times.append(time.monotonic() - begun)
    assert min(times[1:]) < 0.035
