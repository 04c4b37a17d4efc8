"""GET through pods/proxy: what leads where, what is refused, and what an answer may be."""

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from dra_driver.core.errors import KubernetesApiError, NotFoundError
from dra_driver.sim.apiserver.jsonvalue import utc_now
from dra_driver.sim.apiserver.kinds import PODS
from dra_driver.sim.apiserver.messages import ApiRequest
from dra_driver.sim.apiserver.pod_subresources import ProxyPlan, fetch
from dra_driver.sim.apiserver.router import Router
from dra_driver.sim.apiserver.store import Store
from tests.unit.sim_apiserver.builders import pod

BASE = "/api/v1/namespaces/default/pods"


@pytest.fixture
def store() -> Store:
    """Pod p, whose port 8082 (metrics) answers at port 40000 of this machine, and pod q, which serves nothing."""
    found = Store()
    ports = [{"name": "metrics", "containerPort": 8082}]
    found.create(PODS, pod("p", containers=[{"name": "main", "image": "i", "ports": ports}]))
    found.create(PODS, pod("q"))
    found.ports.serve("default", "p", 8082, 40000)
    return found


def plan(store: Store, path: str, **options: object) -> ProxyPlan:
    request = ApiRequest(**{"method": "GET", "path": path, **options})  # type: ignore[arg-type]
    answer = Router(store, utc_now).answer(request)
    assert isinstance(answer, ProxyPlan)
    return answer


@pytest.mark.parametrize("name", ["p:8082", "p", "p:metrics", "p:", "http:p:8082", ":p:8082"])
def test_a_port_is_given_by_number_or_name_and_is_the_first_without(store: Store, name: str) -> None:
    found = plan(store, f"{BASE}/{name}/proxy/usage", query={"a": "b c"})
    assert (found.port, found.path) == (40000, "/usage?a=b+c")


def test_the_root_and_odd_names_reach_the_pod_as_they_were(store: Store) -> None:
    assert plan(store, f"{BASE}/p:8082/proxy").path == "/"
    assert plan(store, f"{BASE}/p:8082/proxy/a b/\r\n?c").path == "/a%20b/%0D%0A%3Fc"


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
def test_what_cannot_be_reached_is_said(store: Store, name: str, status: int, said: str) -> None:
    with pytest.raises(KubernetesApiError, match=said) as caught:
        plan(store, f"{BASE}/{name}/proxy/usage")
    assert caught.value.status == status


def test_a_pod_that_is_missing_or_gone_is_not_found_and_its_ports_end_with_it(store: Store) -> None:
    with pytest.raises(NotFoundError, match='pods "none" not found'):
        plan(store, f"{BASE}/none:8082/proxy/usage")
    store.delete(PODS, "p", "default")
    assert store.ports.find("default", "p", 8082) is None


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH"])
def test_only_get_is_served(store: Store, method: str) -> None:
    with pytest.raises(KubernetesApiError, match="GET alone") as caught:
        plan(store, f"{BASE}/p:8082/proxy/usage", method=method)
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


def test_an_answer_has_an_end(listening: int) -> None:
    with pytest.raises(KubernetesApiError, match="error trying to reach service: the answer has more than"):
        fetch(asked(listening, "/large"), most_bytes=63)


def test_an_answer_that_does_not_end_in_time_is_given_up(listening: int) -> None:
    with pytest.raises(KubernetesApiError, match="error trying to reach service: the answer took too long"):
        fetch(asked(listening, "/large"), within_s=-1)


def test_a_port_where_nothing_listens_is_unavailable(listening: int) -> None:
    fetch(asked(listening, "/usage"))
    with HTTPServer(("127.0.0.1", 0), _Pod) as closed:
        port = closed.server_address[1]
    with pytest.raises(KubernetesApiError, match="error trying to reach service") as caught:
        fetch(asked(port, "/usage"))
    assert (caught.value.status, caught.value.reason) == (503, "ServiceUnavailable")
