"""ASGI middleware that admits only the browser that opened the printed address, and no page of another origin. The
checks of Host and Origin, and the headers, also serve `sessions.py`.

Other users of the machine reach the port, so all pages need a cookie. The printed address contains a one-time code.
Hosts other than loopback are rejected (DNS rebinding). All paths are in a random directory: browsers send a host's
cookies to all its ports, but only for paths below the cookie's (RFC 6265 8.5). Cookies of other ports can have the
same name: one valid value is enough.

Sources: Fetch standard ("Origin" of navigations), CSP level 3.
"""

import secrets
from collections.abc import Callable, Iterable
from hmac import compare_digest
from typing import Final
from urllib.parse import parse_qs

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import HTMLResponse, PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

COOKIE: Final = "dra_ui"
ADMITTED: Final = "dra_ui.admitted"
"""Key of the scope: the request has the cookie."""
_MAX_COOKIES: Final = 32
"""Maximum of compared cookies. Browsers send the longest paths first (RFC 6265 5.4)."""
_SAFE: Final = ("GET", "HEAD")
_POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; form-action 'self'; "
    "base-uri 'none'; frame-ancestors 'none'"
)
HEADERS: Final = {
    "content-security-policy": _POLICY,
    "x-content-type-options": "nosniff",
    # Not no-referrer: browsers would then send "Origin: null" with this page's own forms.
    "referrer-policy": "same-origin",
    "cache-control": "no-store",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "x-frame-options": "DENY",
}


class Keys:
    """Secrets of one run: directory of all pages, one-time code, cookie."""

    def __init__(self) -> None:
        self.folder = secrets.token_urlsafe(12)
        self._code: str | None = secrets.token_urlsafe(24)
        self._cookie = secrets.token_urlsafe(32)

    @property
    def code(self) -> str:
        """The one-time code, "" after its use."""
        return self._code or ""

    def take(self, code: str) -> str | None:
        """Return the cookie for the valid code, once."""
        if self._code is None or not compare_digest(code.encode(), self._code.encode()):
            return None
        self._code = None
        return self._cookie

    def opens(self, cookies: Iterable[str]) -> bool:
        return any(compare_digest(each.encode(), self._cookie.encode()) for each in cookies)


class AccessControl:
    """Pass requests with the cookie to ``app`` and reject all others."""

    def __init__(self, app: ASGIApp, keys: Keys, hosts: Iterable[str]) -> None:
        self._app = app
        self._keys = keys
        self._hosts = frozenset(hosts)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
        elif scope["type"] == "http":
            await (self._answer(scope) or self._app)(scope, receive, sealed(send))

    def _answer(self, scope: Scope) -> Response | None:
        """Return the response to a rejected request, None to pass it to the app."""
        rejected = check(
            scope, lambda host: f"http://{host}" if host in self._hosts else None, "open the printed address"
        )
        if rejected is not None:
            return rejected
        if scope["path"] == "/favicon.ico":  # browsers request it automatically
            return Response(status_code=204)
        admitted = self._keys.opens(cookies_of(scope, COOKIE))
        if compare_digest(scope["path"].encode(), f"/{self._keys.folder}/open".encode()):
            return self._open(scope, admitted)
        if not admitted:
            return refused(
                403,
                "Access denied. Open the address that the command printed; its code works once. For another browser, "
                "restart the command.",
            )
        scope[ADMITTED] = True
        return None

    def _open(self, scope: Scope, admitted: bool) -> Response:
        if scope["method"] != "GET":
            return refused(405, "Only GET.")
        cookie = self._keys.take(_code(scope))
        if cookie is None and admitted:
            return RedirectResponse(f"/{self._keys.folder}/", status_code=303)
        if cookie is None:
            return refused(
                403,
                "This code is wrong or already used. It works once: in that browser, paste the address into the "
                "address bar. For another browser, restart the command and open the new address.",
            )
        # Not a redirect: after a cross-site navigation the browser would not send a SameSite=Strict cookie.
        page = HTMLResponse(
            f'<!doctype html><html lang="en"><title>GPUs</title><meta http-equiv="refresh" '
            f'content="0;url=/{self._keys.folder}/"><a href="/{self._keys.folder}/">Continue</a></html>'
        )
        page.set_cookie(COOKIE, cookie, path=f"/{self._keys.folder}/", httponly=True, samesite="strict")
        return page


def check(scope: Scope, origin_of: Callable[[str], str | None], help_text: str) -> Response | None:
    """Return the response to a request of an unknown host, or of a page of another origin; None for others.

    ``origin_of`` returns the origin of the pages below a Host header, None for an unknown host.
    """
    headers = Headers(scope=scope)
    hosts, origins = headers.getlist("host"), headers.getlist("origin")
    own = origin_of(hosts[0]) if len(hosts) == 1 else None
    if own is None:
        return refused(421, f"Unknown host: {help_text}.")
    if origins != [own] and (origins or scope["method"] not in _SAFE):
        return refused(403, "Requests from other pages are rejected. A proxy must pass the Host header unchanged.")
    return None


def refused(status: int, sentence: str) -> Response:
    return PlainTextResponse(f"{sentence}\n", status_code=status)


def _code(scope: Scope) -> str:
    try:
        fields = parse_qs(str(scope["query_string"], "latin-1"), max_num_fields=4)
    except ValueError:  # more fields
        return ""
    return fields.get("code", [""])[0]


def cookies_of(scope: Scope, wanted: str) -> list[str]:
    """Return the values of this cookie name; other cookies can have any format."""
    headers = Headers(scope=scope).getlist("cookie")
    pairs = (pair.partition("=") for header in headers for pair in header.split(";"))
    return [value.strip() for name, _, value in pairs if name.strip() == wanted][:_MAX_COOKIES]


def sealed(send: Send) -> Send:
    """Return ``send`` with the security headers."""

    async def with_headers(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = MutableHeaders(scope=message)
            for name, value in HEADERS.items():
                headers[name] = value
        await send(message)

    return with_headers
