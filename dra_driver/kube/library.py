"""Sessions of the ``kubernetes`` client and urllib3, for exec plugins, OIDC, passwords, merged files and proxies."""

import re
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import urllib3
from kubernetes.client import Configuration
from kubernetes.client.rest import RESTClientObject
from kubernetes.config import load_kube_config
from kubernetes.config.incluster_config import InClusterConfigLoader
from kubernetes.utils.keepalive import tcp_keepalive_socket_options
from urllib3.exceptions import HTTPError, InsecureRequestWarning, ProtocolError, SSLError

from dra_driver.core.errors import ConfigurationError
from dra_driver.kube.http import HttpAnswer, RequestLimits, TransportError

# For this long the same headers are sent without asking the client, which with a kubeconfig builds its whole
# configuration again for each request (a quarter of the CPU time of a GET). A token that expires in this time costs one
# 401, after which everything is read again.
_HEADERS_FOR_S = 5.0
_KEPT = 4
# Dead peers are found after 15 + 3 x 5 s, not only at the end of a watch's read timeout.
_KEEPALIVE_IDLE_S, _KEEPALIVE_INTERVAL_S, _KEEPALIVE_PROBES = 15, 5, 3


class LibrarySession:
    """One reading of the client's configuration, and the connections made with it. Thread-safe."""

    def __init__(self, configuration: Any) -> None:
        configuration.socket_options = tcp_keepalive_socket_options(
            idle=_KEEPALIVE_IDLE_S, interval=_KEEPALIVE_INTERVAL_S, count=_KEEPALIVE_PROBES
        )
        configuration.connection_pool_maxsize = _KEPT
        if not configuration.verify_ssl:
            urllib3.disable_warnings(InsecureRequestWarning)  # on every request; one line in the log is enough
        self._configuration = configuration
        self._pool = RESTClientObject(configuration).pool_manager
        self._lock = threading.Lock()  # guards _headers, and lets one thread at a time read credentials
        self._headers: tuple[float, dict[str, str]] = (0.0, {})  # until when (monotonic clock), and which

    @property
    def server(self) -> str:
        return str(self._configuration.host)

    def headers(self) -> dict[str, str]:
        with self._lock:
            until, headers = self._headers
            if time.monotonic() >= until:
                settings = self._configuration.auth_settings().values()
                headers = {s["key"]: s["value"].strip() for s in settings if s["in"] == "header" and s["value"]}
                self._headers = (time.monotonic() + _HEADERS_FOR_S, headers)
            return dict(headers)

    def send(
        self, verb: str, target: str, headers: Mapping[str, str], body: bytes | None, limits: RequestLimits
    ) -> Callable[[], HttpAnswer]:
        """Nothing is sent before the result is called, which raises `TransportError`."""
        return lambda: self._request(verb, target, headers, body, limits)

    def _request(
        self, verb: str, target: str, headers: Mapping[str, str], body: bytes | None, limits: RequestLimits
    ) -> HttpAnswer:
        left_s = limits.left_s(limits.connect_s + limits.read_s)
        total_s = left_s if limits.deadline is not None else None
        timeout = urllib3.Timeout(
            connect=limits.left_s(limits.connect_s), read=limits.left_s(limits.read_s), total=total_s
        )
        try:
            response = self._pool.request(
                verb,
                self.server.rstrip("/") + target,
                body=body,
                headers=dict(headers),
                timeout=timeout,
                retries=False,
                redirect=False,
                preload_content=False,
            )
        except (HTTPError, OSError, ValueError) as error:
            raise _translated(error) from error
        return _LibraryAnswer(response, limits)

    def clear(self, *, for_good: bool = False) -> None:  # noqa: ARG002 - a pool that is not used again is collected
        self._pool.clear()


class _LibraryAnswer:
    def __init__(self, response: Any, limits: RequestLimits) -> None:
        self._response = response
        self._limits = limits
        self.status = int(response.status)
        self.headers = {name.lower(): value for name, value in response.headers.items()}
        self._ended = False

    def read_some(self, limit: int) -> bytes:
        """As `HttpAnswer.read_some`. (A socket's timeout begins again with each wait, so it is shortened.)"""
        socket = getattr(self._response.connection, "sock", None)
        if self._limits.deadline is not None and socket is not None:
            socket.settimeout(self._limits.left_s(self._limits.read_s))
        try:
            data: bytes = self._response.read1(limit)
        except (HTTPError, OSError, AttributeError) as error:  # AttributeError: `interrupt` removed the socket
            raise _translated(error) from error
        self._ended = not data
        return data

    def close(self) -> None:
        if self._ended:
            self._response.release_conn()
        else:
            self._response.close()

    def interrupt(self) -> None:
        # ValueError, RuntimeError: the response has ended and returned its socket; OSError: the peer was faster.
        try:
            self._response.shutdown()
        except (OSError, ValueError, RuntimeError):
            return


def _translated(error: Exception) -> TransportError:
    hint = "check the CA certificate" if isinstance(error, SSLError) else ""
    # urllib3 puts its own object in front, "HTTPSConnectionPool(host=…, port=…): Read timed out."
    what = re.sub(r"^<?\w+\(host=[^)]*\)[^:]*: ", "", str(error)) or type(error).__name__
    what = re.sub(r"\.? \(\w+ timeout=[^)]*\)", "", what)  # a changing number would make each event a new one
    untrusted = isinstance(error, SSLError) and "CERTIFICATE_VERIFY_FAILED" in str(error)
    return TransportError(what, broke=isinstance(error, ProtocolError), untrusted=untrusted, hint=hint)


def from_kubeconfig(path: str, context: str | None = None) -> Callable[[], LibrarySession]:
    """A function that reads the kubeconfig (files separated by ``:`` are merged)."""

    def make() -> LibrarySession:
        configuration = Configuration()
        try:
            load_kube_config(  # type: ignore[no-untyped-call]  # the client has no types
                config_file=path, context=context, client_configuration=configuration, persist_config=False
            )
        except (AttributeError, LookupError, TypeError, UnicodeError) as error:
            # The client's reader fails like that on a file of another shape; its own message does not help.
            raise ConfigurationError(
                f"{path} is not a kubeconfig, expected the YAML that kubectl config view --raw prints "
                f"({type(error).__name__}: {error})"
            ) from error
        return LibrarySession(configuration)

    return make


def from_service_account(environ: Mapping[str, str], folder: Path) -> Callable[[], LibrarySession]:

    def make() -> LibrarySession:
        configuration = Configuration()
        token, ca = str(folder / "token"), str(folder / "ca.crt")
        loader = InClusterConfigLoader(token, ca, environ=environ)  # type: ignore[no-untyped-call]  # as above
        loader.load_and_set(configuration)  # type: ignore[no-untyped-call]  # as above
        return LibrarySession(configuration)

    return make
