"""The API server's CA is replaced while a client runs: the new one is read from where the old one came from."""

import ssl
from collections.abc import Iterator
from pathlib import Path

import pytest
import trustme
import yaml

from dra_driver.core.errors import ApiUnreachableError
from dra_driver.kube.connection import Connection
from dra_driver.kube.rest import RestClient
from tests.fakes.scripted_http import Exchange, ScriptedServer


@pytest.fixture
def context() -> ssl.SSLContext:
    """The server's TLS; a certificate that is loaded later counts for the next connection."""
    return ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)


@pytest.fixture
def server(context: ssl.SSLContext) -> Iterator[ScriptedServer]:
    """Ends each connection after its answer, so that the next request begins TLS anew."""

    def script(x: Exchange) -> None:
        x.json({"ok": True}, headers={"Connection": "close"})

    found = ScriptedServer(script)
    found.serve_tls(context)
    with found:
        yield found


def rotate(context: ssl.SSLContext, ca: Path) -> None:
    authority = trustme.CA()
    authority.issue_cert("127.0.0.1").configure_cert(context)
    ca.write_bytes(authority.cert_pem.bytes())


def client(server: ScriptedServer, ca: Path, user: dict[str, object]) -> RestClient:
    document = yaml.safe_load(server.kubeconfig())
    document["clusters"][0]["cluster"]["certificate-authority"] = str(ca)
    document["users"][0]["user"] |= user
    path = ca.with_name("kubeconfig")
    path.write_text(yaml.safe_dump(document))
    return RestClient(Connection.load(str(path)))


@pytest.mark.parametrize("user", [{}, {"username": "u", "password": "p"}], ids=["direct", "library"])
def test_a_new_authority_is_read_from_its_file(
    user: dict[str, object], server: ScriptedServer, context: ssl.SSLContext, tmp_path: Path
) -> None:
    """A node process outlives its cluster's CA; the kubelet renews ca.crt in the pod."""
    ca = tmp_path / "ca.crt"
    rotate(context, ca)
    rest = client(server, ca, user)
    assert rest.get("/version") == {"ok": True}
    rotate(context, ca)
    assert rest.get("/version") == {"ok": True}


def test_a_server_that_stays_untrusted_is_tried_twice(
    server: ScriptedServer, context: ssl.SSLContext, tmp_path: Path
) -> None:
    """Another server's certificate is an error with its reason, and no loop."""
    ca = tmp_path / "ca.crt"
    rotate(context, ca)
    rest = client(server, ca, {})
    rotate(context, tmp_path / "other.crt")
    with pytest.raises(ApiUnreachableError, match="certificate is not accepted"):
        rest.get("/version")
    assert server.requests == []
