"""Access control of the web UI: answered requests, and pages without permissions in the cluster."""

import asyncio
import re
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

import pytest

from dra_driver.core.errors import ForbiddenError
from dra_driver.kube.state import KINDS
from dra_driver.kubectl.web.access_control import ADMITTED
from dra_driver.kubectl.web.reading import LiveSource, read_from
from tests.contract.kubectl.web.conftest import HOST, Site
from tests.unit.kubectl.web.objects import claim, share, small_state, waiting_pod

if TYPE_CHECKING:
    from starlette.testclient import TestClient
if TYPE_CHECKING:
    from starlette.testclient import TestClient


OTHER = "http://127.0.0.1:9999"


def test_without_the_cookie_everything_is_refused(site: Site) -> None:
    """Another user of the machine reaches the port."""
    for path in ("/", f"{site.base}/", f"{site.base}/claims", f"{site.base}/static/style.css", f"{site.base}/live"):
        assert site.browser().get(path).status_code == 403, path


def test_the_code_works_once(site: Site) -> None:
    first = site.opened()
    used = site.browser().get(f"{site.base}/open?code={site.code}")
    assert used.status_code == 403
    assert "For another browser, restart the command" in used.text
    assert first.get(f"{site.base}/").status_code == 200
    assert site.keys.code == ""


def test_a_wrong_code_opens_nothing_and_does_not_use_the_right_one_up(site: Site) -> None:
    for code in ("", "wrong", "%ff%00", site.code[:-1], "ä", "x&a=1&b=2&c=3&d=4"):
        assert site.browser().get(f"{site.base}/open?code={code}").status_code == 403
    assert site.browser().head(f"{site.base}/open?code={site.code}").status_code == 405
    assert site.opened().get(f"{site.base}/").status_code == 200


def test_cookie_is_scoped_to_this_page(site: Site) -> None:
    """Not for scripts, not with requests from other sites, and not for servers at other ports of this host."""
    cookie = site.browser().get(f"{site.base}/open?code={site.code}").headers["set-cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=strict" in cookie
    assert f"Path={site.base}/" in cookie
    assert len(site.keys.folder) >= 16


def test_used_link_redirects_browser_with_cookie(site: Site, browser: "TestClient") -> None:
    answer = browser.get(f"{site.base}/open?code={site.code}")
    assert (answer.status_code, answer.headers["location"]) == (303, f"{site.base}/")
    assert browser.head(f"{site.base}/open").status_code == 405


@pytest.mark.parametrize(
    ("before", "status"),
    [("dra_ui=other; ", 200), ('other={"a": [1]}; ,=;', 200), ("dra_ui=; " * 31, 200), ("dra_ui=x; " * 32, 403)],
)
def test_cookies_of_other_ports_do_not_lock_the_page(site: Site, before: str, status: int) -> None:
    """Cookies of other ports arrive here, too. A limited number is compared, longest paths first."""
    own = site.browser().get(f"/{site.keys.folder}/open?code={site.code}").headers["set-cookie"].partition(";")[0]
    answer = site.browser().get(f"{site.base}/", headers={"cookie": f"{before}{own}; dra_ui=last"})
    assert answer.status_code == status


def test_a_wrong_cookie_is_refused(site: Site) -> None:
    for cookie in ("dra_ui=wrong", "dra_ui=", "dra_ui=\xe4", ";;=;", "x" * 5000):
        answer = site.browser().get(f"{site.base}/", headers={b"cookie": cookie.encode("latin-1")})
        assert answer.status_code == 403


def test_other_names_of_the_host_are_refused(site: Site, browser: "TestClient") -> None:
    """A name of an attacker that resolves to loopback has the browser's cookie for that name at most."""
    for host in ("evil.example:8090", "127.0.0.1", "127.0.0.1:8091", "", f"{HOST}.evil.example"):
        assert browser.get(f"{site.base}/", headers={"host": host}).status_code == 421, host


def test_requests_of_other_origins_are_refused(site: Site, browser: "TestClient") -> None:
    assert browser.get(f"{site.base}/", headers={"origin": OTHER}).status_code == 403
    for headers in ({}, {"origin": "null"}, {"origin": OTHER}, {"origin": f"https://{HOST}"}):
        assert browser.post(f"{site.base}/what-if", headers=headers).status_code == 403, headers
    assert browser.post(f"{site.base}/what-if", headers={"origin": f"http://{HOST}"}).status_code == 200


def test_every_answer_has_the_headers(site: Site, browser: "TestClient") -> None:
    answers = [browser.get(f"{site.base}{path}") for path in ("/", "/nope", "/static/live.js")]
    for answer in (*answers, site.browser().get("/"), site.browser().get(f"{site.base}/open?code=x")):
        policy = answer.headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        assert "frame-ancestors 'none'" in policy
        assert answer.headers["cache-control"] == "no-store"
        assert answer.headers["x-content-type-options"] == "nosniff"


def test_post_is_accepted_only_from_forms(site: Site, browser: "TestClient") -> None:
    headers = {"origin": f"http://{HOST}"}
    for path in ("/", "/claims", "/capacity", "/nodes/n"):
        assert browser.post(f"{site.base}{path}", headers=headers).status_code == 405
    assert browser.request("DELETE", f"{site.base}/claims/a/b", headers=headers).status_code == 405


REQUEST = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"
Connect = Callable[[bytes], Awaitable[tuple[asyncio.StreamReader, asyncio.StreamWriter]]]


async def app(scope: Any, receive: Any, send: Any) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
    await send({"type": "http.response.body", "body": b"ok"})


def serving(story: Callable[[Connect], Awaitable[Any]], application: Any = app, **changed: Any) -> Any:
    """Return the result of ``story`` with a server whose connections have these limits, by real sockets."""
    from uvicorn.server import ServerState

    from dra_driver.kubectl.web.serve import BoundedConnection, server_config

    async def run() -> Any:
        state, limited = ServerState(), type("Limited", (BoundedConnection,), changed)
        config, writers = server_config(application), list[asyncio.StreamWriter]()
        loop = asyncio.get_running_loop()
        server = await loop.create_server(lambda: limited(config, state, {}), "127.0.0.1", 0)

        async def connect(sent: bytes) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
            reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
            writers.append(writer)
            writer.write(sent)
            return reader, writer

        async with server:
            try:
                return await asyncio.wait_for(story(connect), 10)
            finally:
                for writer in writers:
                    writer.close()
                for each in [*state.connections]:
                    each.transport.abort()

    return asyncio.run(run())


def talk(sent: bytes, application: Any = app, at_look: Callable[[], None] = lambda: None) -> bytes:
    """Return the response to these bytes until the server closes the connection."""
    from dra_driver.kubectl.web.serve import BoundedConnection

    def look(self: Any, former: Any) -> None:
        at_look()
        BoundedConnection.look(self, former)

    async def story(connect: Connect) -> bytes:
        return await (await connect(sent))[0].read()

    found = serving(story, application, first_s=0.02, idle_s=0.02, look=look)
    assert isinstance(found, bytes)
    return found


@pytest.mark.parametrize("sent", [b"", b"GET / HTTP/1.1\r\nHo", REQUEST[:-2]])
def test_connection_without_request_is_closed(sent: bytes) -> None:
    assert talk(sent) == b""


def test_a_request_of_which_a_byte_comes_at_a_time_ends() -> None:
    """Long before its head has the largest size."""
    heard = asyncio.Event()

    def data_received(self: Any, data: bytes) -> None:
        super(type(self), self).data_received(data)
        heard.set()

    async def story(connect: Connect) -> int:
        reader, writer = await connect(b"GET / HTTP/1.1\r\nX: ")
        ended, sent = asyncio.ensure_future(reader.read()), 0
        while not ended.done():
            writer.write(b"x")
            sent += 1
            await asyncio.wait([ended, asyncio.ensure_future(heard.wait())], return_when=asyncio.FIRST_COMPLETED)
            heard.clear()
        ended.exception()
        return sent

    assert serving(story, first_s=0.02, idle_s=3600.0, data_received=data_received) < 10_000


def test_unread_response_keeps_only_owner_connection() -> None:
    """Clients that send requests but do not read block the rest of the response."""

    async def large(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        while True:
            await send({"type": "http.response.body", "body": b"x" * (1 << 20), "more_body": True})

    async def story(connect: Connect) -> None:
        await connect(REQUEST)
        await lost.wait()

    lost = asyncio.Event()

    def connection_lost(self: Any, exc: Any) -> None:
        lost.set()

    serving(story, large, first_s=0.02, idle_s=0.02, connection_lost=connection_lost)


def test_strangers_do_not_keep_the_owner_out(site: Site) -> None:
    """260 silent ones, then as many that were refused and stay, then as many in the middle of a request."""
    cookie = site.browser().get(f"{site.base}/open?code={site.code}").headers["set-cookie"].partition(";")[0]
    own = f"GET {site.base}/%s HTTP/1.1\r\nHost: {HOST}\r\nCookie: {cookie}\r\n\r\n"
    refused = f"GET {site.base}/ HTTP/1.1\r\nHost: {HOST}\r\n\r\n".encode()

    async def story(connect: Connect) -> list[bytes]:
        live, _ = await connect((own % "live").encode())
        answers = [await live.readuntil(b"\n\n")]
        for sent in (b"", refused, b"GET / HTTP/1.1\r\nX:"):
            strangers = [(await connect(sent))[0] for _ in range(260)]
            page, _ = await connect((own % "claims").encode())
            answers.append(await page.readline())
            await asyncio.gather(*(each.read() for each in strangers[:62]), return_exceptions=True)  # closed
        site.read(small_state())
        answers.append(await live.readuntil(b"event: "))
        return answers

    first, *pages, last = serving(story, site.app, first_s=3600.0)
    assert first.startswith(b"HTTP/1.1 200")
    assert pages == [b"HTTP/1.1 200 OK\r\n"] * 3
    assert last.endswith(b"event: ")


@pytest.mark.parametrize("more", [b"", b"G"])
def test_a_connection_ends_some_time_after_its_answer(more: bytes) -> None:
    assert talk(REQUEST + more).endswith(b"ok")


def test_connection_limit_spares_owner_connections() -> None:
    async def story(connect: Connect) -> tuple[bytes, bytes]:
        live, _ = await connect(REQUEST)
        await asked.wait()
        refused = await (await connect(b""))[0].read()
        answer.set()
        return refused, await live.readuntil(b"ok")

    asked, answer = asyncio.Event(), asyncio.Event()

    async def waits(scope: Any, receive: Any, send: Any) -> None:
        scope[ADMITTED] = True
        asked.set()
        await answer.wait()
        await app(scope, receive, send)

    refused, answered = serving(story, waits, first_s=3600.0, most=1)
    assert (refused, answered[-2:]) == (b"", b"ok")


def test_an_answer_that_takes_long_is_not_cut_off() -> None:
    """The stream of a page lasts for hours."""
    looks: list[int] = []

    async def slow(scope: Any, receive: Any, send: Any) -> None:
        scope[ADMITTED] = True
        while len(looks) < 4:
            await asyncio.sleep(0)
        await app(scope, receive, send)

    assert talk(REQUEST, slow, lambda: looks.append(1)).endswith(b"ok")


OWN = "team"
LISTS = {"/": "resourceslices", "/claims": "resourceclaims", "/pending": "pods", "/capacity": "resourceslices"}


class OneNamespace:
    """An API server on which the user can only list objects of one namespace."""

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
    site.source = LiveSource(OneNamespace(), OWN)
    found = pages(site, browser)
    assert "team/mine" in found["/claims"]
    assert "team/waits" in found["/pending"]
    assert "Cannot read the published GPUs" in found["/"]
    assert "Cannot read the published devices" in found["/capacity"]
    for page in found.values():
        assert "list resourceslices.resource.k8s.io (403)" in page
        assert "kubectl auth can-i list nodes" in page
        assert "list pods in all namespaces (403)" in page
        assert page.count("; only namespace team is shown") >= 2


def test_without_any_right_every_page_says_which(site: Site, browser: "TestClient") -> None:
    site.source = LiveSource(OneNamespace(allowed=False), OWN)
    for path, page in pages(site, browser).items():
        assert f"may not list {LISTS[path]}" in page, path
        assert re.search("Cannot read|unknown|No pod", page)
        assert "is shown" not in page


def test_the_right_to_ask_exporters_is_named(site: Site, browser: "TestClient") -> None:
    path = "/api/v1/namespaces/dra-driver/pods/exporter-a:8082/proxy/usage"
    site.use_failure = ForbiddenError(f"GET {path} failed: 403 Forbidden: no")
    site.read(small_state(claim("a", "n", share("gpu-0", "20Gi"))))
    for page in ("/claims", "/nodes/n/gpu-0"):
        text = browser.get(f"{site.base}{page}").text
        assert "get pods/proxy exporter-a:8082" in text


@pytest.mark.parametrize("has_volume", [True, False])
def test_volumes_that_cannot_be_read_matter_to_pods_that_have_some(has_volume: bool) -> None:
    pod = waiting_pod("waits")
    pod["spec"]["volumes"] = [{"name": "v", "persistentVolumeClaim": {"claimName": "v"}}] if has_volume else []

    class Api(OneNamespace):
        def list(self, path: str, query: Any = None) -> dict[str, Any]:
            if "persistentvolumeclaims" in path or "storageclasses" in path:
                raise ForbiddenError(f"GET {path} failed: 403 Forbidden: no")
            return {"items": [pod] if path.endswith("/pods") else []}

    gaps = read_from(LiveSource(Api())).gaps
    assert len(gaps) == (2 if has_volume else 0), gaps
