"""Kubeconfigs that the ``kubernetes`` client reads: the same errors, repeats and limits over urllib3."""

import json
import ssl
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import trustme
import yaml

from dra_driver.core.errors import ApiUnreachableError, NotFoundError
from dra_driver.kube.connection import Connection
from dra_driver.kube.rest import RestClient, Timeouts
from tests.fakes.scripted_http import Exchange, ScriptedServer

EXEC = {"apiVersion": "client.authentication.k8s.io/v1"}
CREDENTIAL = EXEC | {"kind": "ExecCredential", "status": {"token": "from-plugin"}}


def client(server: ScriptedServer, tmp_path: Path) -> RestClient:
    plugin = {"command": sys.executable, "args": ["-c", f"print({json.dumps(CREDENTIAL)!r})"]}
    document = yaml.safe_load(server.kubeconfig())
    document["users"][0]["user"] = {"exec": EXEC | {"interactiveMode": "Never"} | plugin}
    (tmp_path / "kubeconfig").write_text(json.dumps(document))
    fast = Timeouts(connect_s=1.0, read_s=0.3, total_s=0.6)
    return RestClient(Connection.load(str(tmp_path / "kubeconfig")), timeouts=fast)


def test_an_exec_plugins_token_is_sent_and_errors_are_translated(tmp_path: Path) -> None:
    """Which of the two readers a kubeconfig needs must not be noticed by anyone who uses the client."""

    def script(x: Exchange) -> None:
        x.json({"ok": True}) if x.seen.path == "/version" else x.json({"kind": "Status", "code": 404}, 404)

    with ScriptedServer(script) as server:
        rest = client(server, tmp_path)
        assert rest.get("/version") == {"ok": True}
        with pytest.raises(NotFoundError):
            rest.get("/other")
    assert server.requests[0].headers["authorization"] == "Bearer from-plugin"


def test_broken_connections_are_repeated_and_silence_is_bounded(tmp_path: Path) -> None:
    def script(x: Exchange) -> None:
        if x.number == 1:
            x.drop()
        elif x.number == 2:
            x.json({"ok": True})
        else:
            x.hang()

    with ScriptedServer(script) as server:
        rest = client(server, tmp_path)
        assert rest.get("/version") == {"ok": True}
        began = time.monotonic()
        with pytest.raises(ApiUnreachableError) as caught:
            rest.get("/version", within_s=0.2)
        assert "timeout=" not in str(caught.value)
        assert time.monotonic() - began < 5.0, "the client's own limits are longer"


def test_a_watch_is_ended_from_another_thread(tmp_path: Path) -> None:
    with ScriptedServer(lambda x: x.stream([b'{"type": "ADDED", "object": {}}\n'], end="hang")) as server:
        rest = client(server, tmp_path)
        watch = rest.watch("/x", {}, 30.0)
        events = iter(watch)
        assert next(events).type == "ADDED"
        threading.Timer(0.05, watch.close).start()
        assert list(events) == []


@pytest.fixture
def context() -> ssl.SSLContext:
    """The server's TLS; a certificate that is loaded later counts for the next connection."""
    return ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)


@pytest.fixture
def server(context: ssl.SSLContext) -> Iterator[ScriptedServer]:
    found = ScriptedServer(lambda x: x.json({"ok": True}, headers={"Connection": "close"}))
    found.serve_tls(context)
    with found:
        yield found


def rotate(context: ssl.SSLContext, ca: Path) -> None:
    authority = trustme.CA()
    authority.issue_cert("127.0.0.1").configure_cert(context)
    ca.write_bytes(authority.cert_pem.bytes())


def trusting(server: ScriptedServer, ca: Path, user: dict[str, object]) -> RestClient:
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
    rest = trusting(server, ca, user)
    assert rest.get("/version") == {"ok": True}
    rotate(context, ca)
    assert rest.get("/version") == {"ok": True}


def test_a_server_that_stays_untrusted_is_tried_twice(
    server: ScriptedServer, context: ssl.SSLContext, tmp_path: Path
) -> None:
    ca = tmp_path / "ca.crt"
    rotate(context, ca)
    rest = trusting(server, ca, {})
    rotate(context, tmp_path / "other.crt")
    with pytest.raises(ApiUnreachableError, match="certificate is not accepted"):
        rest.get("/version")
    assert server.requests == []
