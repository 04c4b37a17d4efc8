"""Requests to the embedded API server: routes, refusals, and the proxy of pods."""

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import pytest

from dra_driver.core.errors import KubernetesApiError, NotFoundError
from dra_driver.sim.apiserver.jsonvalue import utc_now
from dra_driver.sim.apiserver.kinds import ALL_KINDS, CONFIG_MAPS, PODS
from dra_driver.sim.apiserver.messages import ApiRequest, Reply, target_of
from dra_driver.sim.apiserver.pod_subresources import LogPlan, ProxyPlan, fetch, log_text
from dra_driver.sim.apiserver.router import Router
from dra_driver.sim.apiserver.store import Store
from tests.unit.sim_apiserver.builders import config_map, pod

TABLE = "application/json;as=Table;v=v1;g=meta.k8s.io,application/json"


def _ask(store: Store, method: str, path: str, body: Any = None, **options: Any) -> Any:
    data = b"" if body is None else json.dumps(body).encode()
    request = ApiRequest(method=method, path=path, body=data, **options)
    return Router(store, utc_now).answer(request)


def _refusal(*asked: Any, **options: Any) -> int | None:
    with pytest.raises(KubernetesApiError) as refused:
        _ask(*asked, **options)
    return refused.value.status


def _json(reply: Any) -> Any:
    assert isinstance(reply, Reply)
    return json.loads(reply.body)


@pytest.mark.parametrize(
    "path",
    [
        "/",
        "/api",
        "/api/v2/pods",
        "/api/v1/pods/p",
        "/api/v1/namespaces/a/nodes",
        "/api/v1/namespaces/a/pods/p/exec",
        "/api/v1/namespaces/a/pods/p/log/x",
        "/apis/resource.k8s.io/v1beta1/resourceslices",
    ],
)
def test_paths_that_name_nothing(path: str) -> None:
    assert target_of(path) is None


def test_discovery_and_openapi_cover_every_kind(store: Store) -> None:
    index = _json(_ask(store, "GET", "/openapi/v3"))["paths"]
    for kind in ALL_KINDS:
        root = f"apis/{kind.group}/{kind.version}" if kind.group else "api/v1"
        assert kind.plural in {item["name"] for item in _json(_ask(store, "GET", f"/{root}"))["resources"]}
        document = _json(_ask(store, "GET", index[root]["serverRelativeURL"].partition("?")[0]))
        patches = [path["patch"] for path in document["paths"].values()]
        mine = [item for item in patches if item["x-kubernetes-group-version-kind"]["kind"] == kind.kind]
        assert "fieldValidation" in {parameter["name"] for parameter in mine[0]["parameters"]}


def test_references_in_openapi_resolve() -> None:
    text = json.dumps(_json(_ask(Store(), "GET", "/openapi/v3/api/v1")))
    schemas = set(json.loads(text)["components"]["schemas"])
    refs = {part.partition('"')[0] for part in text.split("#/components/schemas/")[1:]}
    assert refs <= schemas


def test_lists_are_always_complete(store: Store) -> None:
    store.create(CONFIG_MAPS, config_map("a"))
    listed = _json(_ask(store, "GET", "/api/v1/configmaps", query={"limit": "1"}))
    assert "continue" not in listed["metadata"]
    assert _refusal(store, "GET", "/api/v1/configmaps", query={"continue": "abc"}) == 410


def test_logs_are_cut_as_asked(store: Store) -> None:
    store.create(PODS, pod(containers=[{"name": "a", "image": "i"}, {"name": "b", "image": "i"}]))
    store.logs.append("default", "p", "a", "one\ntwo\nthree\n")
    path = "/api/v1/namespaces/default/pods/p/log"
    plan = _ask(store, "GET", path, query={"container": "a", "tailLines": "2", "limitBytes": "6"})
    assert isinstance(plan, LogPlan)
    assert log_text(store.logs.read("default", "p", "a"), plan, utc_now) == b"two\nth"
    for query, text in (
        ({}, "a container name must be specified for pod p, choose one of: [a b]"),
        ({"container": "c"}, "container c is not valid for pod p"),
        ({"container": "a", "tailLines": "-1"}, "tailLines must be a number"),
    ):
        with pytest.raises(KubernetesApiError, match=text.replace("[", r"\[")):
            _ask(store, "GET", path, query=query)


def test_a_container_that_waits_has_no_log_yet(store: Store) -> None:
    store.create(PODS, pod())
    waiting = [{"name": "main", "state": {"waiting": {"reason": "ContainerCreating"}}}]
    status = {"metadata": {"name": "p", "namespace": "default"}, "status": {"containerStatuses": waiting}}
    store.update_status(PODS, status)
    with pytest.raises(KubernetesApiError, match="is waiting to start: ContainerCreating"):
        _ask(store, "GET", "/api/v1/namespaces/default/pods/p/log")


def test_bodies_are_read_by_their_media_type() -> None:
    yaml_body = ApiRequest(method="POST", path="/", headers={"content-type": "application/yaml"}, body=b"a: {b: 1}")
    assert yaml_body.object() == {"a": {"b": 1}}
    for headers, body, status in (
        ({"content-type": "text/plain"}, b"x", 415),
        ({}, b"[1]", 400),
        ({"content-type": "application/yaml"}, b"a: [", 400),
    ):
        with pytest.raises(KubernetesApiError) as refused:
            ApiRequest(method="POST", path="/", headers=headers, body=body).object()
        assert refused.value.status == status


def test_an_eviction_deletes_the_pod_that_was_meant(store: Store) -> None:
    """The UID among the preconditions keeps a later pod of the same name from harm."""
    uid = store.create(PODS, pod("a"))["metadata"]["uid"]
    path = "/api/v1/namespaces/default/pods/a/eviction"
    body = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": "a", "namespace": "default"}}
    for wrong in ({**body, "kind": "Binding"}, {**body, "metadata": {"name": "b"}}):
        assert _refusal(store, "POST", path, wrong) == 400
    assert _refusal(store, "POST", path, {**body, "deleteOptions": {"preconditions": {"uid": "another"}}}) == 409
    assert store.find(PODS, "a", "default") is not None
    reply = _ask(store, "POST", path, {**body, "deleteOptions": {"preconditions": {"uid": uid}}})
    assert (reply.status, _json(reply)["status"]) == (201, "Success")
    assert store.find(PODS, "a", "default") is None
    assert _refusal(store, "POST", path, body) == 404


BASE = "/api/v1/namespaces/default/pods"


@pytest.fixture
def proxied() -> Store:
    """Pod p, whose port 8082 (metrics) answers at port 40000 of this machine, and pod q, which serves nothing."""
    found = Store()
    ports = [{"name": "metrics", "containerPort": 8082}]
    found.create(PODS, pod("p", containers=[{"name": "main", "image": "i", "ports": ports}]))
    found.create(PODS, pod("q"))
    found.ports.serve("default", "p", 8082, 40000)
    return found


def plan(proxied: Store, path: str, method: str = "GET", **options: Any) -> ProxyPlan:
    answer = _ask(proxied, method, path, **options)
    assert isinstance(answer, ProxyPlan)
    return answer


@pytest.mark.parametrize("name", ["p:8082", "p", "p:metrics", "p:", "http:p:8082", ":p:8082"])
def test_a_port_is_given_by_number_or_name_and_is_the_first_without(proxied: Store, name: str) -> None:
    found = plan(proxied, f"{BASE}/{name}/proxy/usage", query={"a": "b c"})
    assert (found.port, found.path) == (40000, "/usage?a=b+c")
    assert plan(proxied, f"{BASE}/p:8082/proxy").path == "/"
    assert plan(proxied, f"{BASE}/p:8082/proxy/a b/\r\n?c").path == "/a%20b/%0D%0A%3Fc"


@pytest.mark.parametrize(
    ("name", "status", "said"),
    [
        ("p:9", 503, "nothing listens on port 9 of pod p"),
        ("q:8082", 503, "nothing listens on port 8082 of pod q"),
        ("q", 400, "no port was given"),
        ("p:other", 400, "pod p has no port 'other'"),
        ("https:p:8082", 400, "expected NAME, NAME:PORT or http:NAME:PORT"),
        ("a:b:c:d", 400, "expected NAME, NAME:PORT or http:NAME:PORT"),
    ],
)
def test_what_cannot_be_reached_is_said(proxied: Store, name: str, status: int, said: str) -> None:
    with pytest.raises(KubernetesApiError, match=said) as caught:
        plan(proxied, f"{BASE}/{name}/proxy/usage")
    assert caught.value.status == status


def test_a_pod_that_is_missing_or_gone_is_not_found_and_its_ports_end_with_it(proxied: Store) -> None:
    with pytest.raises(NotFoundError, match='pods "none" not found'):
        plan(proxied, f"{BASE}/none:8082/proxy/usage")
    proxied.delete(PODS, "p", "default")
    assert proxied.ports.find("default", "p", 8082) is None


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH"])
def test_only_get_is_served(proxied: Store, method: str) -> None:
    with pytest.raises(KubernetesApiError, match="GET alone") as caught:
        plan(proxied, f"{BASE}/p:8082/proxy/usage", method)
    assert caught.value.status == 405


class _Pod(BaseHTTPRequestHandler):
    """Answers with the headers that it was sent, a redirect for /away, and too much for /large."""

    def do_GET(self) -> None:
        self.send_response(302 if self.path == "/away" else 200)
        self.send_header("Location", "http://127.0.0.1:1/")
        self.send_header("Content-Type", "text/x-test")
        self.end_headers()
        self.wfile.write(b"x" * 64 if self.path == "/large" else str(self.headers).encode())

    def log_message(self, *args: object) -> None:
        """Says nothing."""


@pytest.fixture
def listening() -> Iterator[int]:
    with HTTPServer(("127.0.0.1", 0), _Pod) as server:
        server.timeout = 5
        thread = threading.Thread(target=server.handle_request, daemon=True)
        thread.start()
        yield server.server_address[1]
        thread.join(10)


def asked(port: int, path: str) -> ProxyPlan:
    return ProxyPlan(pod="p", port=port, path=path, accept="application/json")


def test_the_answer_is_passed_on_and_credentials_are_not(listening: int) -> None:
    reply = fetch(asked(listening, "/usage"))
    assert (reply.status, reply.media_type) == (200, "text/x-test")
    assert b"Accept: application/json" in reply.body
    assert b"uthorization" not in reply.body


def test_a_redirect_is_passed_on_and_not_followed(listening: int) -> None:
    assert fetch(asked(listening, "/away")).status == 302


@pytest.mark.parametrize(
    ("limit", "said"),
    [({"most_bytes": 63}, "the answer has more than"), ({"within_s": -1}, "the answer took too long")],
)
def test_an_answer_ends_within_its_size_and_time(listening: int, limit: dict[str, int], said: str) -> None:
    with pytest.raises(KubernetesApiError, match=f"error trying to reach service: {said}"):
        fetch(asked(listening, "/large"), **limit)


def test_a_port_where_nothing_listens_is_unavailable(listening: int) -> None:
    fetch(asked(listening, "/usage"))
    with HTTPServer(("127.0.0.1", 0), _Pod) as closed:
        port = closed.server_address[1]
    with pytest.raises(KubernetesApiError, match="error trying to reach service") as caught:
        fetch(asked(port, "/usage"))
    assert (caught.value.status, caught.value.reason) == (503, "ServiceUnavailable")
