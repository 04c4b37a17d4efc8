"""ASGI application for several visitors, each of whom signs in with a token of the cluster and reads with it.

A session has its own readers: nothing that one token read is shown with another. Cookies have a random number of the
session; Starlette's SessionMiddleware would store the token in the cookie. Behind a proxy that authenticates visitors,
the header ``Authorization: Bearer TOKEN`` is a session without a cookie. Paths of sessions on loopback begin with a
random folder, because browsers send a host's cookies to all its ports.
"""

import asyncio
import hashlib
import logging
import re
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Final

from msgspec.structs import replace
from starlette.applications import Starlette
from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

from dra_driver.core.errors import ConfigurationError, DraError, UnauthorizedError
from dra_driver.core.text import printable
from dra_driver.kubectl.web.access_control import ADMITTED, COOKIE, check, cookies_of, sealed
from dra_driver.kubectl.web.app import STATIC, PageSources, pages_below, read_form, templates
from dra_driver.kubectl.web.reading import VIEWED_S

log = logging.getLogger(__name__)

IDLE_S: Final = 900.0
"""A session ends after this time without a request, one of a proxy after `PROXY_IDLE_S`: it needs no sign-in."""
PROXY_IDLE_S: Final = 120.0
LONGEST_S: Final = 12 * 3600.0
MAX_OF_ONE_USER: Final = 4
MAX_ENDED: Final = 256
"""Ended sessions that can still say why."""
MAX_NAMESPACES: Final = 10
MAX_TOKEN: Final = 16 << 10
CHECKS_AT_ONCE: Final = 16
FAILURES: Final = 10
"""Refused tokens of one address in `FAILURES_S`; the same token again does not count."""
FAILURES_S: Final = 60.0
_MAX_ADDRESSES: Final = 1024
_SWEEP_S: Final = 15.0
_FORM: Final = (MAX_TOKEN + (4 << 10)) // 4  # `read_form` allows for encoding
_TOKEN: Final = re.compile(rf"(?=.{{1,{MAX_TOKEN}}}$)[A-Za-z0-9._~+/-]+=*")  # RFC 6750, 2.1
_NAMESPACE: Final = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
_ORIGIN: Final = re.compile(r"https://([a-z0-9.-]+(?::(?!443/?$)[0-9]{1,5})?)(?::443)?/?")
_LOOPBACK: Final = re.compile(r"(localhost|127\.0\.0\.1|\[::1\])(:[0-9]{1,5})?")
_NAMESPACES: Final = "dra_ui_namespaces"
"""Cookie with the namespaces of a proxy's visitor, whose token changes often. Not secret."""

ReadsWithToken = Callable[[str, Sequence[str], Callable[[], None]], PageSources]
"""Start to read with a token and namespaces; a thread calls the function when the token is no longer valid. Raises
UnauthorizedError for an invalid token, and DraError."""


class VisitorSession:
    """One visitor. ``app`` is None after its end, for ``reason``."""

    def __init__(self, base: str, clock: Callable[[], float], idle_s: float) -> None:
        self.base, self._clock, self._idle_s = base, clock, idle_s
        self._begun = self.used = clock()
        self.user = self.reason = ""
        self.app: Starlette | None = None
        self._sources: PageSources | None = None

    def begin(self, sources: PageSources) -> None:
        self.user, self._sources = sources.about, sources
        self.app = pages_below(self.base, replace(sources, is_over=self._is_over))
        if self.reason:  # the token expired in between
            self.end(self.reason)

    def _is_over(self) -> bool:
        """Streams of visible pages call this twice a second."""
        self.used = self._clock()
        return self.app is None

    def end(self, reason: str) -> None:
        """Drop everything that was read. Thread-safe and idempotent."""
        self.reason, self.app = self.reason or reason, None
        sources, self._sources = self._sources, None
        if sources:
            sources.stop(0.0)

    def has_ended(self) -> bool:
        if self.app and (self.is_unused_for(self._idle_s) or self._clock() - self._begun > LONGEST_S):
            self.end("Your session has ended: sign in again.")
        return self.app is None

    def is_unused_for(self, seconds: float) -> bool:
        return self._clock() - self.used > seconds


def origins_of(addresses: Sequence[str]) -> dict[str, str]:
    """Return origins by Host header. Raises ConfigurationError for an address that is not an https origin."""
    found = {}
    for address in addresses:
        if (match := _ORIGIN.fullmatch(address.lower())) is None:
            raise ConfigurationError(f"--origin {address[:80]!r}: expected an address such as https://gpus.example.com")
        found[match[1]] = f"https://{match[1]}"
    return found


class Visitors:
    """Methods run in the event loop; threads ask the API server."""

    def __init__(
        self,
        read: ReadsWithToken,
        origins: Mapping[str, str],
        max_sessions: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._read, self._origins, self._max, self._clock = read, origins, max_sessions, clock
        self._sessions: dict[
            bytes, VisitorSession
        ] = {}  # by hash of the cookie, or of the proxy's token and its namespaces
        self._failures: dict[str, dict[bytes, float]] = {}  # refused tokens' hashes and times, by address
        self._checking = 0
        self._public = Starlette(routes=[STATIC])
        self._sign_in = templates().get_template("sign_in.html")
        self._is_sweeping = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            await (await self._answer(Request(scope, receive)))(scope, receive, sealed(send))

    def close(self) -> None:
        for session in self._sessions.values():
            session.end("The server stops.")

    async def _answer(self, request: Request) -> ASGIApp:
        path, is_post, bearer = request.url.path, request.method == "POST", _bearer(request)
        hint = "list the address of this page in ui.origins of the chart (--origin); a proxy must pass the Host header"
        if (rejected := check(request.scope, self._origin_of, hint)) is not None:
            return rejected
        if path in ("/healthz", "/favicon.ico"):
            return Response(status_code=204)
        if path.startswith("/static/"):
            return self._public
        if path == "/sign-in":
            return await self._open(request, bearer) if is_post else self._page(request, 200, "")
        key = self._key_of(request, bearer)
        found: VisitorSession | Response | None = self._sessions.get(key)
        if isinstance(found, VisitorSession) and found.has_ended():
            found = None if bearer else self._page(request, 401, found.reason)
        if found is None:
            namespaces = _namespaces(request.cookies.get(_NAMESPACES, ""))
            found = await self._begin(request, bearer, namespaces, "") if bearer else self._page(request, 401, "")
        if isinstance(found, Response):
            return found
        if is_post and path == f"{found.base}/sign-out":
            found.end("You have signed out.")
        found.used = self._clock()
        request.scope[ADMITTED] = True
        return found.app or self._page(request, 401, found.reason)

    def _origin_of(self, host: str) -> str | None:
        """`kubectl port-forward` and probes send names of loopback; no other site can have them."""
        is_local = _LOOPBACK.fullmatch(host.lower()) is not None
        return self._origins.get(host.lower().removesuffix(":443")) or (f"http://{host}" if is_local else None)

    def _is_https(self, request: Request) -> bool:
        return (self._origin_of(request.headers["host"]) or "").startswith("https:")

    def _cookie(self, request: Request) -> str:
        """Browsers take ``__Host-`` only with Secure and for this host, so that no sibling domain can set it."""
        return f"__Host-{COOKIE}" if self._is_https(request) else COOKIE

    def _key_of(self, request: Request, bearer: str) -> bytes:
        """Return the key of the request's session; b"" if there is none with its cookie."""
        if bearer:
            return _hash(bearer, _namespaces(request.cookies.get(_NAMESPACES, "")))
        keys = map(_hash, cookies_of(request.scope, self._cookie(request)))
        return next((key for key in keys if key in self._sessions), b"")

    async def _open(self, request: Request, bearer: str) -> Response:
        """Answer the form of the sign-in page. The number of a session is always new, and never the browser's."""
        try:
            fields = await read_form(request, _FORM)
        except ValueError as error:
            return self._page(request, 413, str(error))
        token, given, is_https = fields.get("token", "").strip(), fields.get("namespaces", ""), self._is_https(request)
        namespaces = _namespaces(given)
        if set(namespaces) != {*re.split(r"[\s,]+", given)} - {""}:
            return self._page(request, 400, f"Write at most {MAX_NAMESPACES} names of namespaces: team-a, team-b.")
        name, value, base = _NAMESPACES, " ".join(namespaces), ""
        if not bearer:
            if not _TOKEN.fullmatch(token):
                return self._page(request, 400, "This is not a token. A token is one line without spaces.")
            name, value, former = self._cookie(request), secrets.token_urlsafe(32), self._key_of(request, "")
            session = await self._begin(request, token, namespaces, value)
            if isinstance(session, Response):
                return session
            base = session.base
            if former:
                self._sessions.pop(former).end("You have signed in again.")
        answer = RedirectResponse(f"{base}/", status_code=303)
        answer.set_cookie(name, value, path=f"{base}/", httponly=True, samesite="strict", secure=is_https)
        return answer

    async def _begin(
        self, request: Request, token: str, namespaces: Sequence[str], cookie: str
    ) -> VisitorSession | Response:
        """Return a new session, or the response that refuses it. Without ``cookie``, the token is the key."""
        now, peer, digest = self._clock(), request.client.host if request.client else "", _hash(token)
        failed = {each: at for each, at in self._failures.get(peer, {}).items() if now - at < FAILURES_S}
        if digest in failed:
            return self._page(request, 401, _INVALID)
        if len(failed) >= FAILURES or self._checking >= CHECKS_AT_ONCE:
            return self._page(request, 429, "Too many attempts: wait a minute, then sign in again.")
        base = "" if self._is_https(request) or not cookie else f"/{secrets.token_urlsafe(12)}"
        session = VisitorSession(base, self._clock, IDLE_S if cookie else PROXY_IDLE_S)
        expired = partial(session.end, "Your token expired or was revoked: sign in again.")
        self._checking += 1
        try:
            session.begin(await asyncio.to_thread(self._read, token, namespaces, expired))
        except UnauthorizedError:
            self._failures.pop(peer, None)
            self._failures[peer] = {**failed, digest: now}
            if len(self._failures) > _MAX_ADDRESSES:
                self._failures.pop(next(iter(self._failures)))
            log.warning("sign-in refused: the API server does not accept the token", extra={"address": peer})
            return self._page(request, 401, _INVALID)
        except DraError as error:
            return self._page(request, 502, f"Cannot check the token: {printable(str(error))[:500]}")
        finally:
            self._checking -= 1
        key, open_ones = _hash(cookie) if cookie else _hash(token, namespaces), self._open_sessions()
        if key in self._sessions and self._sessions[key] in open_ones:  # a second request of the same proxy's visitor
            session.end("")
            return self._sessions[key]
        own = [each for each in open_ones if each.user == session.user]
        if len(own) >= MAX_OF_ONE_USER:
            min(own, key=lambda each: each.used).end("You have signed in elsewhere.")
        elif len(open_ones) >= self._max:
            oldest = min(open_ones, key=lambda each: each.used)
            if not oldest.is_unused_for(VIEWED_S):
                session.end("")
                return self._page(request, 503, f"All {self._max} sessions are in use: try again in some minutes.")
            oldest.end("Your session ended, because all sessions were in use: sign in again.")
        for ended in [each for each, former in self._sessions.items() if former.app is None][:-MAX_ENDED]:
            del self._sessions[ended]
        self._sessions[key] = session
        log.info("visitor signed in", extra={"user": session.user, "address": peer})
        if not self._is_sweeping:
            self.sweep()
        return session

    def _open_sessions(self) -> list[VisitorSession]:
        return [each for each in self._sessions.values() if each.app]

    def sweep(self) -> None:
        """End unused sessions, again and again; keep why they ended for as long."""
        for key, session in list(self._sessions.items()):
            if session.has_ended() and session.is_unused_for(2 * IDLE_S):
                del self._sessions[key]
        if self._sessions:
            asyncio.get_running_loop().call_later(_SWEEP_S, self.sweep)
        self._is_sweeping = bool(self._sessions)

    def _page(self, request: Request, status: int, message: str) -> Response:
        shown = self._sign_in.render(message=message, is_proxy=bool(_bearer(request)))
        return HTMLResponse(shown, status_code=status)


_INVALID: Final = "The cluster does not accept this token: it expired, was revoked, or belongs to another cluster."


def _hash(secret: str, namespaces: Sequence[str] = ()) -> bytes:
    """Keys are hashes: the time of a comparison does not depend on the secret, and the table has no secrets."""
    return hashlib.sha256(" ".join((secret, *namespaces)).encode("utf-8", "surrogateescape")).digest()


def _bearer(request: Request) -> str:
    """Return the token of a proxy; "" without one, and for several or malformed ones."""
    values = Headers(scope=request.scope).getlist("authorization")
    scheme, _, token = values[0].partition(" ") if len(values) == 1 else ("", "", "")
    return token.strip() if scheme.lower() == "bearer" and _TOKEN.fullmatch(token.strip()) else ""


def _namespaces(text: str) -> list[str]:
    found = [each for each in dict.fromkeys(re.split(r"[\s,]+", text[:1024])) if _NAMESPACE.fullmatch(each)]
    return found[:MAX_NAMESPACES]
