"""Sessions of the web UI's visitors: sign-in, pages, end, and refused attacks."""

import asyncio
import logging
import re
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pytest

from dra_driver.core.errors import ApiUnreachableError, ConfigurationError, UnauthorizedError
from dra_driver.kubectl.usage.device_use import UseReport
from dra_driver.kubectl.web.app import PageSources
from dra_driver.kubectl.web.reading import VIEWED_S, BackgroundResults, Periodic, same_cluster
from dra_driver.kubectl.web.sessions import (
    FAILURES,
    FAILURES_S,
    IDLE_S,
    LONGEST_S,
    MAX_ENDED,
    MAX_OF_ONE_USER,
    MAX_TOKEN,
    PROXY_IDLE_S,
    Visitors,
    origins_of,
)
from tests.unit.kubectl.web.objects import claim, seen, share, small_state

if TYPE_CHECKING:
    from starlette.testclient import TestClient

HOST = "gpus.example.com"
ORIGIN = f"https://{HOST}"
LOCAL = "localhost:8090"
PUBLIC_COOKIE = "__Host-dra_ui"
Browser = Any


class Door:
    """A page in a cluster that knows some tokens. Readers are driven by the test."""

    def __init__(self, max_sessions: int = 8) -> None:
        self.users = {f"token-{name}": name for name in ("ann", "ben", "cem", "dan")}
        self.seconds = 0.0
        self.asked: list[tuple[str, tuple[str, ...]]] = []
        self.opened: list[PageSources] = []
        self.stopped: list[PageSources] = []
        self.expire: list[Callable[[], None]] = []
        self.failure: Exception | None = None
        self.app = Visitors(self._read, origins_of([ORIGIN]), max_sessions, lambda: self.seconds)

    def _read(self, token: str, namespaces: Sequence[str], expired: Callable[[], None]) -> PageSources:
        self.asked.append((token, tuple(namespaces)))
        if self.failure:
            raise self.failure
        if token not in self.users:
            raise UnauthorizedError(f"POST /selfsubjectreviews failed: 401 Unauthorized: {token}")
        own = seen(small_state(claim(f"of-{self.users[token]}", "n", share("gpu-0", "20Gi"))))
        door = self

        class Sources(PageSources, frozen=True, kw_only=True):
            def stop(self, timeout_s: float) -> None:
                door.stopped.append(self)

        cluster = Periodic("cluster", lambda: own, 1.0, same=same_cluster, now=lambda: datetime.now(UTC))
        sources = Sources(
            cluster=cluster, background_results=BackgroundResults(), about=self.users[token], is_visitor=True
        )
        cluster.once()
        self.opened.append(sources)
        self.expire.append(expired)
        return sources

    def browser(self, base: str = ORIGIN, **headers: str) -> "TestClient":
        from starlette.testclient import TestClient

        return TestClient(self.app, base_url=base, follow_redirects=False, headers=headers)

    def sign_in(self, name: str, browser: Browser = None, **fields: str) -> Browser:
        browser = browser or self.browser()
        answer = self.post(browser, token=f"token-{name}", **fields)
        assert answer.status_code == 303, answer.text
        browser.home = answer.headers["location"]
        return browser

    @staticmethod
    def post(browser: Browser, path: str = "/sign-in", **fields: str) -> Any:
        origin = str(browser.base_url).rstrip("/")
        return browser.post(path, data=fields, headers={"origin": origin})


@pytest.fixture
def door() -> Door:
    for package in ("jinja2", "httpx2"):
        pytest.importorskip(package, reason=f"{package} is in requirements/dev.txt and not installed: run make")
    return Door()


def test_sessions_share_compiled_templates(door: Door, monkeypatch: pytest.MonkeyPatch) -> None:
    from jinja2 import Environment

    compiled: list[str | None] = []
    compile_template = Environment.compile

    def record(self: Any, source: Any, name: str | None = None, *more: Any) -> Any:
        compiled.append(name)
        return compile_template(self, source, name, *more)

    monkeypatch.setattr(Environment, "compile", record)
    for name in ("ann", "ben"):
        door.sign_in(name).get("/claims")
    assert len(compiled) == len(set(compiled))


def test_a_visitor_sees_what_the_token_reads_and_guest_elses(door: Door) -> None:
    ann, ben = door.sign_in("ann"), door.sign_in("ben")
    for browser, own, other in ((ann, "ann", "ben"), (ben, "ben", "ann")):
        page = browser.get("/claims").text
        assert f"of-{own}" in page
        assert other not in page
        assert "with your permissions" in page
    assert door.opened[0].cluster is not door.opened[1].cluster
    assert door.opened[0].background_results is not door.opened[1].background_results


@pytest.mark.parametrize("path", ["/", "/claims", "/live", "/nodes/n", "/what-if", "/nope"])
def test_without_a_session_only_the_sign_in_page_is_answered(door: Door, path: str) -> None:
    door.sign_in("ann")
    answer = door.browser().get(path)
    assert answer.status_code == 401
    assert 'action="/sign-in"' in answer.text
    assert "of-ann" not in answer.text
    assert door.browser().get("/static/style.css").status_code == 200
    assert door.browser().get("/healthz").status_code == 204
    assert door.browser().delete(path).status_code == 403  # without Origin


def test_cookie_of_the_public_address_is_for_this_host_and_https_only(door: Door) -> None:
    cookie = door.post(door.browser(), token="token-ann").headers["set-cookie"]
    assert cookie.startswith(f"{PUBLIC_COOKIE}=")
    for part in ("HttpOnly", "SameSite=strict", "Secure", "Path=/;"):
        assert part in f"{cookie};", part
    assert "Domain" not in cookie
    assert "token-ann" not in cookie


def test_cookie_on_loopback_is_for_a_random_folder(door: Door) -> None:
    """Behind `kubectl port-forward`. Browsers send the cookies of a host to all of its ports."""
    answer = door.post(door.browser(f"http://{LOCAL}"), token="token-ann")
    folder = re.fullmatch(r"/([\w-]{16})/", answer.headers["location"])
    assert folder
    cookie = answer.headers["set-cookie"]
    assert f"Path=/{folder[1]}/" in cookie
    assert "HttpOnly" in cookie
    assert "SameSite=strict" in cookie
    browser = door.browser(f"http://{LOCAL}")
    for home in (door.sign_in("ben", browser).home,):
        assert "of-ben" in browser.get(f"{home}claims").text
        assert f'href="{home}claims"' in browser.get(home).text
        assert browser.get("/claims").status_code == 401


@pytest.mark.parametrize(
    "host", ["evil.example", f"{HOST}.evil.example", "localhost.evil.example", "10.0.0.7:8085", ""]
)
def test_other_names_of_the_host_are_refused(door: Door, host: str) -> None:
    """DNS rebinding, and addresses that no administrator listed."""
    ann = door.sign_in("ann")
    answer = ann.get("/claims", headers={"host": host})
    assert answer.status_code == 421
    assert "of-ann" not in answer.text
    assert door.browser().post("/sign-in", data={"token": "token-ann"}, headers={"host": host}).status_code == 421


@pytest.mark.parametrize("origin", ["https://evil.example", "null", f"http://{HOST}", f"https://{LOCAL}", None])
def test_requests_of_other_origins_are_refused(door: Door, origin: str | None) -> None:
    ann = door.sign_in("ann")
    headers = {"origin": origin} if origin else {}
    for path, fields in (("/sign-in", {"token": "token-ben"}), ("/sign-out", {}), ("/what-if", {"manifest": "x"})):
        assert ann.post(path, data=fields, headers=headers).status_code == 403, path
    assert len(door.opened) == 1
    assert ann.get("/claims").status_code == 200
    assert ann.get("/claims", headers=headers).status_code == (403 if origin else 200)


def test_number_of_a_session_is_never_the_browsers(door: Door) -> None:
    """Session fixation: an attacker sets a cookie before the victim signs in, or has the number of a former session."""
    planted = door.browser()
    planted.cookies.set(PUBLIC_COOKIE, "planted")
    door.sign_in("ann", planted)
    for value in ("planted", ""):
        assert door.browser(cookie=f"{PUBLIC_COOKIE}={value}").get("/claims").status_code == 401
    former = planted.cookies.get(PUBLIC_COOKIE, domain=HOST) or list(planted.cookies.values())[-1]
    door.sign_in("ann", planted)
    answer = door.browser(cookie=f"{PUBLIC_COOKIE}={former}").get("/claims")
    assert answer.status_code == 401
    assert door.stopped == door.opened[:1]


def test_cookie_of_loopback_does_not_open_the_public_address(door: Door) -> None:
    """A sibling domain or another port can set cookies without the prefix."""
    answer = door.post(door.browser(f"http://{LOCAL}"), token="token-ann")
    own = answer.headers["set-cookie"].partition(";")[0]
    assert own.startswith("dra_ui=")
    assert door.browser(cookie=own).get(f"{answer.headers['location']}claims").status_code == 401


@pytest.mark.parametrize(
    ("token", "status"),
    [("", 400), ("a b", 400), ("a\nb", 400), ("a\x00", 400), ("ä" * 20, 400), ("x" * (MAX_TOKEN + 1), 400),
     ("x" * (MAX_TOKEN + 8192), 413), ("x" * 2_000_000, 413), ("unknown", 401)],
)  # fmt: skip
def test_an_invalid_token_gets_no_session(door: Door, token: str, status: int) -> None:
    answer = door.post(door.browser(), token=token)
    assert answer.status_code == status
    assert "set-cookie" not in answer.headers
    assert not door.opened
    assert len(door.asked) == (status == 401)
    assert len(token) < 5 or token not in answer.text


def test_refused_tokens_are_limited_for_each_address(door: Door) -> None:
    from starlette.testclient import TestClient

    guess = door.browser()
    statuses = [door.post(guess, token=f"guess-{index}").status_code for index in range(FAILURES + 3)]
    assert statuses == [401] * FAILURES + [429] * 3
    assert door.post(guess, token="token-ann").status_code == 429
    assert len(door.asked) == FAILURES
    other = TestClient(door.app, base_url=ORIGIN, follow_redirects=False, client=("10.0.0.9", 1))
    door.sign_in("ann", other)
    door.seconds += FAILURES_S
    door.sign_in("ann", guess)


def test_the_same_refused_token_is_not_checked_again(door: Door) -> None:
    """A proxy repeats an expired token with each request; this must not keep its visitors out."""
    proxied = door.browser(authorization="Bearer old")
    assert [proxied.get("/").status_code for _ in range(3 * FAILURES)] == [401] * 3 * FAILURES
    assert len(door.asked) == 1
    assert door.browser(authorization="Bearer token-ann").get("/claims").status_code == 200


def test_a_proxys_token_is_a_session_of_its_own(door: Door) -> None:
    for name in ("ann", "ben", "ann"):
        page = door.browser(authorization=f"Bearer token-{name}").get("/claims")
        assert f"of-{name}" in page.text
        assert "set-cookie" not in page.headers
    assert [token for token, _ in door.asked] == ["token-ann", "token-ben"]
    ann = door.sign_in("ann")
    assert "of-ben" in ann.get("/claims", headers={"authorization": "Bearer token-ben"}).text
    door.seconds += PROXY_IDLE_S + 1
    assert door.browser(authorization="Bearer token-ann").get("/claims").status_code == 200


@pytest.mark.parametrize(
    "value", ["Basic eDp5", "Bearer", "Bearer a b", "bearer \xff", "Bearer " + "x" * (MAX_TOKEN + 1)]
)
def test_malformed_authorization_is_no_session(door: Door, value: str) -> None:
    headers = {b"authorization": value.encode("latin-1")}
    assert door.browser().get("/claims", headers=headers).status_code == 401
    assert door.asked == []


def test_namespaces_are_given_once_and_checked(door: Door) -> None:
    door.sign_in("ann", namespaces="team-a, team-b\nteam-a")
    assert door.asked[-1][1] == ("team-a", "team-b")
    for wrong in ("../kube-system", "a?watch=true", "A", "x" * 64, " ".join(f"n{index}" for index in range(11))):
        assert door.post(door.browser(), token="token-ann", namespaces=wrong).status_code == 400, wrong
    proxied = door.browser(authorization="Bearer token-ben")
    assert door.post(proxied, namespaces="team-b").headers["location"] == "/"
    assert proxied.get("/claims").status_code == 200
    assert door.asked[-1] == ("token-ben", ("team-b",))
    count = len(door.asked)
    assert proxied.get("/claims").status_code == 200
    assert len(door.asked) == count
    assert (
        door.browser(authorization="Bearer token-ben", cookie='dra_ui_namespaces="../x y"').get("/").status_code == 200
    )
    assert door.asked[-1] == ("token-ben", ("y",))


def test_expired_token_ends_the_session_and_drops_what_was_read(door: Door) -> None:
    ann = door.sign_in("ann")
    assert ann.get("/claims").status_code == 200
    door.expire[0]()
    assert door.stopped == door.opened
    for path in ("/live", "/claims", "/claims"):  # a stream connects again before the page is read again
        answer = ann.get(path)
        assert answer.status_code == 401
        assert "Your token expired or was revoked: sign in again." in answer.text
        assert "of-ann" not in answer.text
    door.sign_in("ann", ann)
    assert ann.get("/claims").status_code == 200


def test_a_token_that_expires_during_the_sign_in_leaves_no_session(door: Door) -> None:
    inner = door._read

    def read(token: str, namespaces: Sequence[str], expired: Callable[[], None]) -> PageSources:
        sources = inner(token, namespaces, expired)
        expired()
        return sources

    door.app = Visitors(read, origins_of([ORIGIN]), 8, lambda: door.seconds)
    assert door.sign_in("ann").get("/claims").status_code == 401
    assert door.stopped == door.opened


def test_ended_sessions_are_limited(door: Door) -> None:
    ann = door.sign_in("ann")
    first = list(ann.cookies.values())[-1]
    for _ in range(MAX_ENDED + 1):
        door.sign_in("ann", ann)
    door.expire[0]()
    assert len(door.stopped) == MAX_ENDED + 1
    for _ in range(MAX_ENDED + 3):
        door.post(door.sign_in("ben"), "/sign-out")
    answer = door.browser(cookie=f"{PUBLIC_COOKIE}={first}").get("/")
    assert 'role="alert"' not in answer.text
    assert len(door.app._sessions) <= MAX_ENDED + 2


def test_signing_out_ends_the_session(door: Door) -> None:
    ann = door.sign_in("ann")
    assert "You have signed out." in door.post(ann, "/sign-out").text
    assert ann.get("/claims").status_code == 401
    assert door.stopped == door.opened


@pytest.mark.parametrize(
    ("step_s", "steps", "lives"), [(IDLE_S - 1, 3, True), (IDLE_S + 1, 1, False), (600, 73, False)]
)
def test_unused_and_old_sessions_end(door: Door, step_s: float, steps: int, lives: bool) -> None:
    ann = door.sign_in("ann")
    for _ in range(steps):
        door.seconds += step_s
        status = ann.get("/claims").status_code
    assert (status == 200) is lives
    assert (step_s * steps > LONGEST_S or step_s > IDLE_S) is not lives


def test_an_unused_session_ends_without_a_request(door: Door) -> None:
    async def sweep() -> None:
        door.app.sweep()

    ann = door.sign_in("ann")
    door.seconds += IDLE_S + 1
    asyncio.run(sweep())
    assert door.stopped == door.opened
    assert "sign in again" in ann.get("/claims").text


def test_the_stream_of_a_page_keeps_its_session_and_ends_with_it(door: Door) -> None:
    from tests.contract.kubectl.web.test_access_control import Connect, serving

    cookie = door.post(door.browser(), token="token-ann").headers["set-cookie"].partition(";")[0]

    async def story(connect: Connect) -> bytes:
        request = f"GET /live HTTP/1.1\r\nHost: {HOST}\r\nCookie: {cookie}\r\n\r\n"
        reader, _ = await connect(request.encode())
        await reader.readuntil(b"event: state")
        door.seconds += IDLE_S - 1
        await asyncio.sleep(0.6)  # the stream looks twice a second
        door.seconds += IDLE_S - 1
        door.app.sweep()
        assert not door.stopped
        door.expire[0]()
        return await reader.readuntil(b"0\r\n\r\n")

    assert serving(story, door.app)


def test_one_user_cannot_take_all_sessions_and_sessions_are_limited(door: Door) -> None:
    door = Door(max_sessions=MAX_OF_ONE_USER + 1)
    browsers = [door.sign_in("ann") for _ in range(MAX_OF_ONE_USER + 2)]
    assert len(door.stopped) == 2
    assert browsers[0].get("/").status_code == 401
    ben = door.sign_in("ben")
    answer = door.post(door.browser(), token="token-cem")
    assert answer.status_code == 503
    assert door.stopped[-1] is door.opened[-1]
    door.post(browsers[-1], "/sign-out")
    door.sign_in("cem")
    door.seconds += VIEWED_S + 1  # guest views a page
    for browser in browsers[2:-1]:
        assert browser.get("/").status_code == 200
    door.sign_in("dan")
    assert "all sessions were in use" in ben.get("/").text


def test_an_api_server_that_does_not_answer_is_named(door: Door) -> None:
    door.failure = ApiUnreachableError("POST /apis failed: no answer from https://10.0.0.1 within 20 s")
    answer = door.post(door.browser(), token="token-ann")
    assert answer.status_code == 502
    assert "Cannot check the token" in answer.text
    door.failure = None
    door.sign_in("ann")


def test_tokens_and_cookies_are_not_logged(door: Door, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    ann = door.sign_in("ann")
    door.post(door.browser(), token="guess-secret")
    ann.get("/claims")
    lines = "\n".join(
        f"{record.getMessage()} {record.__dict__}" for record in caplog.records if "dra_driver" in record.name
    )
    assert "visitor signed in" in lines
    assert "sign-in refused" in lines
    for secret in ("token-ann", "guess-secret", *ann.cookies.values()):
        assert secret not in lines


@pytest.mark.parametrize(
    "path", ["//evil.example/", "/\\evil.example", "/sign-in?next=https://evil.example", "/%2f%2fevil"]
)
def test_no_address_redirects_elsewhere(door: Door, path: str) -> None:
    answer = door.browser().get(f"{ORIGIN}{path}")
    assert answer.status_code in (200, 401)
    assert "evil" not in answer.text
    posted = door.browser().post(f"{ORIGIN}{path}", data={"token": "token-ann"}, headers={"origin": ORIGIN})
    assert posted.headers.get("location", "/") == "/"


def test_every_answer_has_the_headers(door: Door) -> None:
    ann = door.sign_in("ann")
    for answer in (ann.get("/"), ann.get("/nope"), door.browser().get("/"), door.browser().get("/static/style.css")):
        policy = answer.headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        assert "frame-ancestors 'none'" in policy
        assert answer.headers["cache-control"] == "no-store"
        assert answer.headers["x-frame-options"] == "DENY"
    assert "style=" not in door.browser().get("/").text


def test_trials_of_all_visitors_share_one_limit() -> None:
    from dra_driver.kubectl.web.serve import reader_with_tokens
    from tests.contract.kubectl.web.test_access_control import OneNamespace

    class Api(OneNamespace):
        def create(self, path: str, body: Any) -> dict[str, Any]:
            return {"status": {"userInfo": {"username": "system:serviceaccount:team:viewer"}}}

    api: Any = Api()
    report = UseReport(source="", window_s=1, uses=[])
    begin = reader_with_tokens(lambda _: api, lambda _: report)
    read = [begin("token", (), lambda: None) for _ in range(2)]
    try:
        assert read[0].tries is read[1].tries
        assert read[0].about == "system:serviceaccount:team:viewer"
    finally:
        for each in read:
            each.stop(2.0)


@pytest.mark.parametrize(
    "address",
    ["http://gpus.example.com", "gpus.example.com", "https://a/b", "https://u@a", "https://", "https://a b", "*"],
)
def test_only_https_origins_are_accepted(address: str) -> None:
    with pytest.raises(ConfigurationError, match="expected an address such as https://"):
        origins_of([address])


def test_origins_are_as_browsers_write_them() -> None:
    assert origins_of(["https://A.example:443/", "https://b.example:8443"]) == {
        "a.example": "https://a.example",
        "b.example:8443": "https://b.example:8443",
    }
