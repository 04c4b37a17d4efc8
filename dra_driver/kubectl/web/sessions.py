"""ASGI application for several visitors: each signs in with a token of the cluster, and sees what the token may read.

The process has no permissions. It validates a token with a SelfSubjectReview, which the API server answers to every
authenticated user, and reads with the token. A session has its own readers and results: nothing that one token
read is shown with another. Cookies have a random number of the session. Starlette's SessionMiddleware does not fit: it
stores the session, and so the token, in the cookie.

A proxy can authenticate visitors: a header ``Authorization: Bearer TOKEN`` is a session without a cookie. Paths of
sessions on loopback begin with a random folder, because browsers send a host's cookies to all its ports.
"""

import asyncio
import hashlib
import logging
import re
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from msgspec.structs import replace
from starlette.applications import Starlette
from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

from dra_driver.core.errors import ConfigurationError, DraError, UnauthorizedError
from dra_driver.core.text import cut, printable
from dra_driver.kubectl.web.access_control import ADMITTED, COOKIE, check, cookies_of, refused, sealed
from dra_driver.kubectl.web.app import STATIC, PageSources, pages_below, read_form, templates

log = logging.getLogger(__name__)

IDLE_S: Final = 900.0
"""A session ends after this time without a request, one of a proxy after `PROXY_IDLE_S`: it needs no sign-in."""
PROXY_IDLE_S: Final = 120.0
LONGEST_S: Final = 12 * 3600.0
MAX_OF_ONE_USER: Final = 4
MAX_NAMESPACES: Final = 10
MAX_TOKEN: Final = 16 << 10
CHECKS_AT_ONCE: Final = 16
FAILURES: Final = 10
"""Refused tokens of one address in `FAILURES_S`; the same token again does not count."""
FAILURES_S: Final = 60.0
_MAX_ADDRESSES: Final = 1024
_SWEEP_S: Final = 15.0
_FORM: Final = (MAX_TOKEN + (4 << 10)) // 4  # `read_form` allows for encoding
_TOKEN: Final = re.compile(r"[A-Za-z0-9._~+/-]+=*")  # RFC 6750, 2.1
_NAMESPACE: Final = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
_ORIGIN: Final = re.compile(r"https://([a-z0-9.-]+(?::(?!443/?$)[0-9]{1,5})?)(?::443)?/?")
_LOOPBACK: Final = re.compile(r"(localhost|127\.0\.0\.1|\[::1\])(:[0-9]{1,5})?")
_OWNED: Final = "dra_ui_namespaces"
"""Cookie with the namespaces of a proxy's visitor, whose token changes often. Not secret."""


ReadsWithToken = Callable[[str, Sequence[str], Callable[[], None]], PageSources]
"""Start to read with a token and namespaces; the function is called from a thread when the token is no longer valid.
Raises UnauthorizedError for an invalid token, and DraError."""


class Session:
    """One visitor. ``app`` is None after its end, for ``reason``."""

    def __init__(self, base: str, clock: Callable[[], float], idle_s: float) -> None:
        self.base, self.idle_s, self._clock = base, idle_s, clock
        self.begun = self.used = clock()
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
        if sources := self._sources:
            self._sources = None
            sources.stop(0.0)

    def end_if_due(self) -> bool:
        """End the session if it is unused or old. Return whether it has ended."""
        if self.app and (self._clock() - self.used > self.idle_s or self._clock() - self.begun > LONGEST_S):
            self.end("Your session has ended: sign in again.")
        return self.app is None


def origins_of(addresses: Sequence[str]) -> dict[str, str]:
    """Return origins by Host header. Raises ConfigurationError for an address that is not an https origin."""
    found = [_ORIGIN.fullmatch(address.lower()) for address in addresses]
    for address, match in zip(addresses, found, strict=True):
        if match is None:
            raise ConfigurationError(f"--origin {address[:80]!r}: expected an address such as https://gpus.example.com")
    return {match[1]: f"https://{match[1]}" for match in found if match}


class Visitors:
    """Methods run in the event loop; the API server is asked in threads."""

    def __init__(
        self,
        read: ReadsWithToken,
        origins: Mapping[str, str],
        max_sessions: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._read, self._origins, self._max, self._clock = read, origins, max_sessions, clock
        self._sessions: dict[bytes, Session] = {}  # by hash of the cookie, or of the proxy's token and its namespaces
        self._failures: dict[str, dict[bytes, float]] = {}  # refused tokens' hashes and times, by address
        self._checking = 0
        self._public = Starlette(routes=[STATIC])
        self._sign_in = templates().get_template("sign_in.html")
        self._is_sweeping = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            answer = await self._answer(scope, Request(scope, receive))
            await answer(scope, receive, sealed(send))

    def close(self) -> None:
        for session in self._sessions.values():
            session.end("The server stops.")

    async def _answer(self, scope: Scope, request: Request) -> ASGIApp:
        hint = "an administrator lists the address of this page in ui.origins of the chart (--origin)"
        rejected = check(scope, self._origin_of, hint)
        path, is_post = request.url.path, request.method == "POST"
        if rejected is not None:
            return rejected
        if path in ("/healthz", "/favicon.ico"):
            return Response(status_code=204)
        if path.startswith("/static/"):
            return self._public
        bearer = _bearer(scope)
        if path == "/sign-in":
            return await self._open(request, bearer) if is_post else self._page(request, 200, "")
        key = self._key_of(request, bearer)
        found: Session | Response | None = self._sessions.get(key)
        if isinstance(found, Session) and found.end_if_due():
            del self._sessions[key]
            if not bearer:
                return self._page(request, 401, found.reason)
            found = None
        if found is None and bearer:
            found = await self._begin(request, bearer, _namespaces(request.cookies.get(_OWNED, "")), "")
        if not isinstance(found, Session):
            return found or self._page(request, 401, "")
        if is_post and path == f"{found.base}/sign-out":
            found.end("You have signed out.")
        if (app := found.app) is None:
            return self._page(request, 401, found.reason)
        found.used = self._clock()
        scope[ADMITTED] = True
        return app

    def _origin_of(self, host: str) -> str | None:
        """Names of loopback are those of `kubectl port-forward` and of probes; no other site can have them."""
        is_local = _LOOPBACK.fullmatch(host.lower()) is not None
        return self._origins.get(host.lower().removesuffix(":443")) or (f"http://{host}" if is_local else None)

    def _is_https(self, request: Request) -> bool:
        return (self._origin_of(request.headers["host"]) or "").startswith("https:")

    def _key_of(self, request: Request, bearer: str) -> bytes:
        if bearer:
            return _hash(f"{bearer} {','.join(_namespaces(request.cookies.get(_OWNED, '')))}")
        values = cookies_of(request.scope, _cookie_name(self._is_https(request)))
        return next((key for key in map(_hash, values) if key in self._sessions), b"")

    async def _open(self, request: Request, bearer: str) -> Response:
        """Answer the form of the sign-in page. The number of a session is always new, and never the browser's."""
        try:
            fields = await read_form(request, _FORM)
        except ValueError as error:
            return self._page(request, 413, str(error))
        token, given = bearer or fields.get("token", "").strip(), fields.get("namespaces", "")
        namespaces = _namespaces(given)
        if len(namespaces) != len({*re.split(r"[\s,]+", given)} - {""}):
            return self._page(
                request, 400, f"Write at most {MAX_NAMESPACES} names of namespaces, such as team-a, team-b."
            )
        if bearer:
            answer = RedirectResponse("/", status_code=303)
            answer.set_cookie(
                _OWNED, " ".join(namespaces), httponly=True, samesite="strict", secure=self._is_https(request)
            )
            return answer
        if not _TOKEN.fullmatch(token) or len(token) > MAX_TOKEN:
            return self._page(request, 400, "This is not a token. A token is one line without spaces.")
        cookie = secrets.token_urlsafe(32)
        former = self._key_of(request, "")
        session = await self._begin(request, token, namespaces, cookie)
        if isinstance(session, Response):
            return session
        if former:
            self._sessions.pop(former).end("You have signed in again.")
        answer = RedirectResponse(f"{session.base}/", status_code=303)
        is_https = self._is_https(request)
        answer.set_cookie(
            _cookie_name(is_https), cookie, path=f"{session.base}/", httponly=True, samesite="strict", secure=is_https
        )
        return answer

    async def _begin(self, request: Request, token: str, namespaces: Sequence[str], cookie: str) -> Session | Response:
        """Return a new session, or the response that refuses it. Without ``cookie`` the token is the key."""
        now, peer, digest = self._clock(), request.client.host if request.client else "", _hash(token)
        failed = self._failures.get(peer, {})
        failed = {each: at for each, at in failed.items() if now - at < FAILURES_S}
        if digest in failed:
            return self._page(request, 401, _INVALID)
        if len(failed) >= FAILURES or self._checking >= CHECKS_AT_ONCE:
            return self._page(request, 429, "Too many attempts: wait a minute, then sign in again.")
        base = "" if self._is_https(request) or not cookie else f"/{secrets.token_urlsafe(12)}"
        session = Session(base, self._clock, IDLE_S if cookie else PROXY_IDLE_S)
        self._checking += 1
        try:
            sources = await asyncio.to_thread(
                self._read, token, namespaces, lambda: session.end("Your token expired or was revoked: sign in again.")
            )
        except UnauthorizedError:
            self._failures.pop(peer, None)
            self._failures[peer] = {**failed, digest: now}
            while len(self._failures) > _MAX_ADDRESSES:
                self._failures.pop(next(iter(self._failures)))
            log.warning("sign-in refused: the API server does not accept the token", extra={"address": peer})
            return self._page(request, 401, _INVALID)
        except DraError as error:
            return self._page(request, 502, f"Cannot check the token: {printable(str(error))[:500]}")
        finally:
            self._checking -= 1
        session.begin(sources)
        key = _hash(cookie or f"{token} {','.join(namespaces)}")
        if key in self._sessions and self._sessions[key].app:  # a second request of the same proxy's visitor
            session.end("")
            return self._sessions[key]
        self._make_room(session.user)
        if sum(each.app is not None for each in self._sessions.values()) >= self._max:
            session.end("")
            return self._page(request, 503, f"All {self._max} sessions are in use: try again in some minutes.")
        self._sessions[key] = session
        log.info("visitor signed in", extra={"user": session.user, "address": peer})
        if not self._is_sweeping:
            self._is_sweeping = True
            asyncio.get_running_loop().call_later(_SWEEP_S, self.sweep)
        return session

    def _make_room(self, user: str) -> None:
        """End the user's longest unused session if there are too many, so that one user cannot take all."""
        own = [each for each in self._sessions.values() if each.app and each.user == user]
        if len(own) >= MAX_OF_ONE_USER:
            min(own, key=lambda each: each.used).end("You have signed in elsewhere.")

    def sweep(self) -> None:
        """End unused sessions; keep why they ended for as long again."""
        now = self._clock()
        for key, session in list(self._sessions.items()):
            if session.end_if_due() and now - session.used > 2 * session.idle_s:
                del self._sessions[key]
        self._is_sweeping = bool(self._sessions)
        if self._is_sweeping:
            asyncio.get_running_loop().call_later(_SWEEP_S, self.sweep)

    def _page(self, request: Request, status: int, message: str) -> Response:
        if request.method not in ("GET", "HEAD", "POST"):
            return refused(405, "Only GET and POST.")
        bearer = bool(_bearer(request.scope))
        return HTMLResponse(self._sign_in.render(message=message, is_proxy=bearer), status_code=status)


_INVALID: Final = "The cluster does not accept this token: it expired, was revoked, or belongs to another cluster."


def user_and_namespace(name: str) -> tuple[str, str]:
    """Return a user's name for people, and the namespace of a ServiceAccount ("" for others)."""
    parts = name.split(":")
    return printable(cut(name, 253)), parts[2] if parts[:2] == ["system", "serviceaccount"] and len(parts) == 4 else ""


def _cookie_name(is_https: bool) -> str:
    """Browsers take ``__Host-`` only with Secure and for this host, so that no sibling domain can set it."""
    return f"__Host-{COOKIE}" if is_https else COOKIE


def _hash(text: str) -> bytes:
    """Keys are hashes: how long a comparison takes tells nothing about the secret, and the table has no secrets."""
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).digest()


def _bearer(scope: Scope) -> str:
    """Return the token of a proxy; "" without one, and for several or malformed ones."""
    values = Headers(scope=scope).getlist("authorization")
    scheme, _, token = values[0].partition(" ") if len(values) == 1 else ("", "", "")
    token = token.strip()
    return token if scheme.lower() == "bearer" and len(token) <= MAX_TOKEN and _TOKEN.fullmatch(token) else ""


def _namespaces(text: str) -> list[str]:
    found = [each for each in dict.fromkeys(re.split(r"[\s,]+", text[:1024])) if _NAMESPACE.fullmatch(each)]
    return found[:MAX_NAMESPACES]
