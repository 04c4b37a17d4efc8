"""Asks a Prometheus over its HTTP API, for commands: with limits on time and size, and no redirects.

A Prometheus is no part of the cluster's trust: its answers are read by ``dra_driver/kubectl/usage/history.py``, which
believes nothing. Source: Prometheus "HTTP API", instant queries.
"""

import json
import time
import urllib.error
import urllib.request
from http.client import HTTPException, HTTPResponse
from pathlib import Path
from typing import Final
from urllib.parse import urlencode, urlsplit

from dra_driver.core.errors import ConfigurationError, DraError
from dra_driver.core.text import printable

MAX_ANSWER: Final = 64 << 20
QUERY_S: Final = 30.0
_CHUNK: Final = 1 << 16
_MAX_TOKEN: Final = 16_384


class PrometheusError(DraError):
    """Prometheus did not answer, refused the question, or answered what cannot be read."""


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """A redirect would carry the token to another host."""

    def redirect_request(self, *_: object) -> None:
        return None


class Prometheus:
    """One server. ``url`` is its address with the path before ``/api/v1``. Raises ConfigurationError for others."""

    def __init__(self, url: str, token_file: str | None = None, *, timeout_s: float = QUERY_S) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment:
            raise ConfigurationError(f"--prometheus {url[:80]!r}: expected an address such as http://localhost:9090")
        if parts.username or parts.password:
            raise ConfigurationError("--prometheus: other users of this machine see the password: use a token's file")
        self.url = printable(url.rstrip("/"))
        self._timeout_s = timeout_s
        self._headers = {"Accept": "application/json"}
        if token_file is not None:
            self._headers["Authorization"] = f"Bearer {_token(token_file)}"
        self._opener = urllib.request.build_opener(_NoRedirects)

    def ask(self, query: str) -> object:
        """The parsed answer of an instant query. Raises PrometheusError."""
        body = urlencode({"query": query, "timeout": f"{self._timeout_s:g}s"}).encode()
        request = urllib.request.Request(f"{self.url}/api/v1/query", data=body, headers=self._headers)  # noqa: S310 - http(s), see above
        until = time.monotonic() + self._timeout_s
        try:
            with self._opener.open(request, timeout=self._timeout_s) as answer:
                return json.loads(self._body(answer, until))
        except urllib.error.HTTPError as error:
            with error:
                said = error.read(400).decode("utf-8", "replace")
            raise PrometheusError(f"{self.url} answered {error.code}: {printable(said)[:300]}") from error
        except (OSError, HTTPException) as error:
            reason = getattr(error, "reason", error)
            raise PrometheusError(
                f"no answer from {self.url}: {printable(str(reason))[:200]}; check the address, or leave --prometheus "
                "out: the exporters know their own short window"
            ) from error
        except (ValueError, RecursionError) as error:
            raise PrometheusError(f"{self.url} answered what is not JSON: is it a Prometheus?") from error

    def _body(self, answer: HTTPResponse, until: float) -> bytes:
        found = bytearray()
        while chunk := answer.read1(_CHUNK):
            found += chunk
            if len(found) > MAX_ANSWER:
                raise PrometheusError(f"{self.url}: its answer is larger than {MAX_ANSWER >> 20} MiB; refused")
            if time.monotonic() > until:
                raise PrometheusError(f"{self.url}: its answer did not end within {self._timeout_s:g} s")
        return bytes(found)


def _token(path: str) -> str:
    try:
        with Path(path).open(encoding="ascii") as file:
            found = file.read(_MAX_TOKEN).strip()
    except (OSError, ValueError) as error:
        raise ConfigurationError(f"--prometheus-token-file {path}: cannot be read: {error}") from error
    if not found or not found.isprintable() or " " in found:
        raise ConfigurationError(f"--prometheus-token-file {path}: expected one token")
    return found
