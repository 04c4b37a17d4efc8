"""The server: its certificate, token, kubeconfig, limits and stop, and replies as a real one gave them."""

import http.client
import json
import socket
import ssl
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from dra_driver.core.errors import RetryableError
from dra_driver.sim.apiserver.kinds import CONFIG_MAPS, PODS
from dra_driver.sim.apiserver.server import ApiServer
from dra_driver.sim.apiserver.store import Store
from tests.contract.apiserver.conversation import RECORDED, STEPS, Server, hold
from tests.unit.sim_apiserver.builders import config_map, pod


@pytest.fixture
def api() -> Iterator[ApiServer]:
    server = ApiServer()
    server.start()
    yield server
    server.stop()


def _connect(api: ApiServer) -> http.client.HTTPSConnection:
    url = urlsplit(api.url)
    context = ssl.create_default_context(cadata=api.certificate)
    return http.client.HTTPSConnection(url.hostname or "", url.port, timeout=5, context=context)


def _request(api: ApiServer, method: str, path: str, body: bytes = b"", token: str = "") -> tuple[int, bytes]:
    connection = _connect(api)
    headers = {"Authorization": f"Bearer {token or api.token}", "Content-Type": "application/json"}
    connection.request(method, path, body, headers)
    response = connection.getresponse()
    answer = response.status, response.read()
    connection.close()
    return answer


def test_the_certificate_verifies_strictly(api: ApiServer) -> None:
    """A client with all checks, also the strict ones of newer Pythons, accepts it for this address only."""
    url = urlsplit(api.url)
    context = ssl.create_default_context(cadata=api.certificate)
    context.verify_flags |= ssl.VERIFY_X509_STRICT
    with (
        socket.create_connection((url.hostname, url.port), timeout=5) as raw,
        context.wrap_socket(raw, server_hostname="127.0.0.1") as secure,
    ):
        assert secure.version() in {"TLSv1.2", "TLSv1.3"}
    with (
        socket.create_connection((url.hostname, url.port), timeout=5) as raw,
        pytest.raises(ssl.SSLCertVerificationError),
    ):
        context.wrap_socket(raw, server_hostname="example.com")


def test_it_listens_on_loopback_and_asks_for_the_token(api: ApiServer) -> None:
    assert urlsplit(api.url).hostname == "127.0.0.1"
    assert _request(api, "GET", "/readyz") == (200, b"ok")
    for path in ("/readyz", "/version", "/api/v1/pods"):
        status, body = _request(api, "GET", path, token="wrong")
        assert (status, json.loads(body)["reason"]) == (401, "Unauthorized")


def test_the_kubeconfig_replaces_another_and_is_private(api: ApiServer, tmp_path: Path) -> None:
    path = tmp_path / "config"
    path.write_text("old")
    path.chmod(0o644)
    written = json.loads(api.kubeconfig(path).read_text())
    assert path.stat().st_mode & 0o777 == 0o600
    assert written["clusters"][0]["cluster"]["server"] == api.url
    assert [item.name for item in tmp_path.iterdir()] == ["config"]


def test_bodies_are_limited(api: ApiServer) -> None:
    connection = _connect(api)
    headers = {"Authorization": f"Bearer {api.token}", "Content-Type": "application/json"}
    connection.request("POST", "/api/v1/namespaces/default/configmaps", b"x" * (3 * 1024 * 1024 + 1), headers)
    assert connection.getresponse().status == 413
    connection.close()


def test_a_watch_streams_and_ends_with_the_server(api: ApiServer) -> None:
    connection = _connect(api)
    connection.request("GET", "/api/v1/configmaps?watch=true", headers={"Authorization": f"Bearer {api.token}"})
    response = connection.getresponse()
    api.store.create(CONFIG_MAPS, config_map("a"))
    assert json.loads(response.readline())["object"]["metadata"]["name"] == "a"
    stopper = threading.Thread(target=api.stop)
    stopper.start()
    assert response.readline() == b""
    stopper.join(timeout=5)
    assert not stopper.is_alive()
    connection.close()


def test_a_watch_from_before_the_history_gets_an_error_event() -> None:
    """410 is an event, and the stream ends: the client lists again."""
    api = ApiServer(store=Store(history_length=2))
    api.start()
    for name in "abc":
        api.store.create(CONFIG_MAPS, config_map(name))
    status, body = _request(api, "GET", "/api/v1/configmaps?watch=true&resourceVersion=1")
    api.stop()
    event = json.loads(body)
    assert (status, event["type"], event["object"]["code"], event["object"]["reason"]) == (200, "ERROR", 410, "Expired")


def test_a_port_in_use_is_an_error_with_the_port(api: ApiServer) -> None:
    with pytest.raises(RetryableError, match="choose another port"):
        ApiServer(port=urlsplit(api.url).port or 0).start()


def test_a_successor_takes_over_address_token_and_objects(api: ApiServer) -> None:
    api.store.create(CONFIG_MAPS, config_map("a"))
    api.stop()
    again = ApiServer(successor_of=api)
    again.start()
    try:
        assert (again.url, again.token) == (api.url, api.token)
        assert _request(again, "GET", "/api/v1/namespaces/default/configmaps/a")[0] == 200
    finally:
        again.stop()


def test_stopping_twice_or_before_the_start_is_harmless() -> None:
    server = ApiServer()
    server.stop()
    server.start()
    server.stop()
    server.stop()


def test_a_pods_proxy_asks_for_the_token_and_reaches_its_process(api: ApiServer) -> None:
    ports = [{"containerPort": 8082}]
    api.store.create(PODS, pod("p", containers=[{"name": "main", "image": "i", "ports": ports}]))
    path = "/api/v1/namespaces/default/pods/p:8082/proxy/usage"
    with ThreadingHTTPServer(("127.0.0.1", 0), BaseHTTPRequestHandler) as process:  # which has no methods: 501
        api.store.ports.serve("default", "p", 8082, process.server_address[1])
        process.timeout = 5
        thread = threading.Thread(target=process.handle_request, daemon=True)
        thread.start()
        assert _request(api, "GET", path, token="wrong")[0] == 401
        status, body = _request(api, "GET", path)
        thread.join(10)
    assert (status, b"Unsupported method" in body) == (501, True)
    status, body = _request(api, "GET", path)
    assert (status, json.loads(body)["reason"]) == (503, "ServiceUnavailable")


@pytest.fixture
def server() -> Iterator[Server]:
    api = ApiServer()
    url = urlsplit(api.start())
    yield Server(url.hostname or "", url.port or 0, api.token)
    api.stop()


@pytest.mark.parametrize("name", sorted(path.stem for path in STEPS.glob("*.yaml")))
def test_answers_like_the_recorded_server(server: Server, name: str) -> None:
    """Codes, bodies and warnings equal those of a Kubernetes 1.36.2 API server for the same requests."""
    recorded = json.loads((RECORDED / f"{name}.json").read_text(encoding="utf-8"))
    embedded = json.loads(json.dumps(hold(server, name)))
    assert embedded.keys() <= recorded.keys()
    differing = [step for step in embedded if embedded[step] != recorded[step]]
    assert not differing, "\n\n".join(
        f"{step}\n  embedded: {json.dumps(embedded[step])[:3000]}\n  recorded: {json.dumps(recorded[step])[:3000]}"
        for step in differing
    )
