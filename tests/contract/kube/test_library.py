"""Kubeconfigs that the ``kubernetes`` client reads: the same errors, repeats and limits over urllib3."""

import json
import sys
import threading
import time
from pathlib import Path

import pytest

from dra_driver.core.errors import ApiUnreachableError, NotFoundError
from dra_driver.kube.connection import Connection
from dra_driver.kube.rest import RestClient, Timeouts
from tests.fakes.scripted_http import Exchange, ScriptedServer

CREDENTIAL = {
    "apiVersion": "client.authentication.k8s.io/v1",
    "kind": "ExecCredential",
    "status": {"token": "from-plugin"},
}


def client(server: ScriptedServer, tmp_path: Path) -> RestClient:
    """A kubeconfig with an exec plugin, as clouds write them."""
    plugin = {
        "apiVersion": "client.authentication.k8s.io/v1",
        "interactiveMode": "Never",
        "command": sys.executable,
        "args": ["-c", f"print({json.dumps(CREDENTIAL)!r})"],
    }
    document = {
        "current-context": "c",
        "contexts": [{"name": "c", "context": {"cluster": "s", "user": "u"}}],
        "clusters": [{"name": "s", "cluster": {"server": server.url}}],
        "users": [{"name": "u", "user": {"exec": plugin}}],
    }
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
    """As with this project's own connections."""

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
    """A stopping process does not wait for the next event."""
    with ScriptedServer(lambda x: x.stream([b'{"type": "ADDED", "object": {}}\n'], end="hang")) as server:
        rest = client(server, tmp_path)
        watch = rest.watch("/x", {}, 30.0)
        events = iter(watch)
        assert next(events).type == "ADDED"
        threading.Timer(0.05, watch.close).start()
        assert list(events) == []
