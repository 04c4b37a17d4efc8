"""``kubectl dra ui --sign-in`` on a real API server: pages with the tokens of an administrator, a tenant and a user
without rights, a revoked token, and refused requests.

Needs a control plane only: the page runs as a process here. It uses the API server's address and CA of KUBECONFIG,
which is one file, and ignores its credentials.
"""

from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from dra_driver.core.errors import NotFoundError
from dra_driver.kube.connection import Connection
from dra_driver.kube.rest import RestClient
from tests.e2e.cluster import crd_served
from tests.harness.visitors import ADMIN, GUEST, TENANT, World, page_process, what_each_sees
from tests.rights.accounts import installed, token


@pytest.fixture
def admin(kubeconfig: str) -> RestClient:
    return RestClient(Connection.load(kubeconfig))


@pytest.fixture
def world(admin: RestClient) -> Iterator[World]:
    made, undo = World(), list[str]()
    other = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": made.other}}
    with crd_served(admin, "gpunodes"), installed(admin, made.rights(), made.own, made.suffix):
        admin.create("/api/v1/namespaces", other)
        try:
            made.create(admin, undo)
            yield made
        finally:
            for path in (*reversed(undo), f"/api/v1/namespaces/{made.other}"):
                with suppress(NotFoundError):
                    admin.delete(path)


def test_each_visitor_sees_what_the_own_token_may_read(
    world: World, admin: RestClient, kubeconfig: str, folder: Path, say: Callable[[str], None]
) -> None:
    tokens = {name: token(admin, name, world.own) for name in (ADMIN, TENANT, GUEST)}

    def revoke(account: str) -> None:
        """Tokens of a deleted ServiceAccount are invalid, also if there is a new one of this name."""
        path = f"/api/v1/namespaces/{world.own}/serviceaccounts"
        admin.delete(f"{path}/{account}")
        admin.create(path, {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": account}})

    with page_process(Path(kubeconfig), folder) as page:
        what_each_sees(world, page, tokens, revoke, say)
