"""The process of the page for visitors, against the embedded API server behind RBAC."""

from pathlib import Path

import pytest

from dra_driver.kube.connection import Connection
from dra_driver.kube.rest import RestClient
from dra_driver.sim.apiserver.kinds import NAMESPACES
from dra_driver.sim.apiserver.server import ApiServer
from tests.fakes.rbac import Rules
from tests.fakes.token_gate import TokenGate
from tests.harness.visitors import ADMIN, GUEST, TENANT, World, page_process, what_each_sees


@pytest.mark.timeout(120)
def test_administrator_tenant_and_guest_see_what_their_tokens_may_read(tmp_path: Path) -> None:
    world, api = World(), ApiServer()
    api.start()
    try:
        for name in (world.own, world.other):
            api.store.create(NAMESPACES, {"metadata": {"name": name}})
        admin = api.kubeconfig(tmp_path / "admin.conf")
        world.create(RestClient(Connection.load(str(admin))), [])
        rights = world.rights()
        tokens = {name: f"secret-{name}-{world.suffix}" for name in (ADMIN, TENANT, GUEST)}
        users = {
            token: (f"system:serviceaccount:{world.own}:{name}", Rules(rights, account=name, namespace=world.own))
            for name, token in tokens.items()
        }
        with (
            TokenGate(admin, users) as gate,
            page_process(gate.kubeconfig(tmp_path / "page.conf"), tmp_path) as page,
        ):
            what_each_sees(world, page, tokens, lambda name: gate.users.pop(tokens[name]), print)
            assert not [call for call in gate.calls if call.verb not in ("GET", "POST")]
            assert {call.path for call in gate.calls if call.verb == "POST"} == {
                "/apis/authentication.k8s.io/v1/selfsubjectreviews"
            }
    finally:
        api.stop()
