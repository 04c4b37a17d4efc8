"""Connections to an API server, with its CA and this process' credentials. `DirectSession` serves service accounts and
plain kubeconfigs; `kube.library` serves the rest and is imported only then, because it takes 6 MiB."""

import logging
import os
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Protocol, TypeVar
from urllib.parse import urlsplit

from msgspec.structs import replace

from dra_driver.core.errors import ConfigurationError
from dra_driver.kube.access import Access, plain_kubeconfig, read_token, service_account, uses_proxy
from dra_driver.kube.http import HttpAnswer, HttpPool, HttpServer, RequestLimits
from dra_driver.kube.kubeconfig import kubeconfig_path

_TOKEN_FOR_S = 60.0
"""A token file is read again after this time, because the kubelet rotates it (BoundServiceAccountTokenVolume)."""


class DirectSession:
    """Requests with one `Access`. Thread-safe. Raises ConfigurationError when the token cannot be read."""

    def __init__(self, access: Access) -> None:
        self._access = access
        self._pool = HttpPool(_server(access))
        self._lock = threading.Lock()  # guards _token
        self._token = self._read_token()  # until when (monotonic clock), and which

    @property
    def server(self) -> str:
        return self._access.server

    def headers(self) -> dict[str, str]:
        token = self._fresh_token()
        return {"authorization": f"Bearer {token}"} if token else {}

    def send(
        self, verb: str, target: str, headers: Mapping[str, str], body: bytes | None, limits: RequestLimits
    ) -> Callable[[], HttpAnswer]:
        """Send a request; the result waits for its answer. Both raise `TransportError`."""
        return self._pool.send(verb, target, headers, body, limits)

    def clear(self, *, for_good: bool = False) -> None:
        """Close idle connections; ``for_good``, those in use too, once they are free."""
        self._pool.clear(for_good=for_good)

    def _fresh_token(self) -> str | None:
        if self._access.token_file is None:
            return self._access.token
        with self._lock:
            if time.monotonic() >= self._token[0]:
                self._token = self._read_token()
            return self._token[1]

    def _read_token(self) -> tuple[float, str | None]:
        file = self._access.token_file
        return time.monotonic() + _TOKEN_FOR_S, read_token(file) if file else self._access.token


def _server(access: Access) -> HttpServer:
    url = urlsplit(access.server)
    secure = url.scheme == "https"
    return HttpServer(
        host=url.hostname or "",
        port=url.port or (443 if secure else 80),
        path=url.path.rstrip("/"),
        make_tls=access.tls if secure else None,
        server_name=access.server_name,
    )


log = logging.getLogger(__name__)

Result = TypeVar("Result")
Receive = Callable[[], HttpAnswer]  # waits for the answer of a request that was sent

SERVICE_ACCOUNT_DIR = Path("/var/run/secrets/kubernetes.io/serviceaccount")


class ApiSession(Protocol):
    """One reading of the configuration, and the connections made with it. Thread-safe."""

    @property
    def server(self) -> str: ...
    def headers(self) -> dict[str, str]: ...
    def send(
        self, verb: str, target: str, headers: Mapping[str, str], body: bytes | None, limits: RequestLimits
    ) -> Receive: ...
    def clear(self, *, for_good: bool = False) -> None: ...


class Connection:
    """The API server's address, a connection pool and fresh credentials. Thread-safe."""

    def __init__(self, source: str, make_session: Callable[[], ApiSession]) -> None:
        self.source = source
        self._make_session = make_session
        self._session = self._new_session()  # replaced by `renew`; requests take the reference once

    @classmethod
    def load(
        cls,
        kubeconfig: str | None = None,
        *,
        context: str | None = None,
        environ: Mapping[str, str] = os.environ,
        service_account_dir: Path = SERVICE_ACCOUNT_DIR,
    ) -> "Connection":
        """The connection described by ``kubeconfig``, else by the pod's service account, else by KUBECONFIG or
        ``~/.kube/config``. ``context`` None is the current one. Opens no connection yet. Raises ConfigurationError if
        none exists or one is unreadable."""
        if kubeconfig is None and context is None and _in_cluster(environ, service_account_dir):
            return cls._of_service_account(environ, service_account_dir)
        path = kubeconfig_path(kubeconfig, environ)
        if not any(Path(part).is_file() for part in path.split(os.pathsep) if part):
            raise ConfigurationError(
                f"no way to reach the API server: kubeconfig {path} does not exist and no service account is mounted "
                f"at {service_account_dir}; pass --kubeconfig, set KUBECONFIG, or run in a pod with a service account",
                reason="NoConnection",
            )
        return cls._of_kubeconfig(path, context, environ)

    @classmethod
    def _of_service_account(cls, environ: Mapping[str, str], folder: Path) -> "Connection":
        source = f"the service account in {folder}"
        if not uses_proxy(environ):
            return cls(source, lambda: _direct(service_account(environ, folder), source))
        library = _client_library(f"{source} through the proxy that HTTPS_PROXY or HTTP_PROXY names")
        return cls(source, library.from_service_account(environ, folder))

    @classmethod
    def _of_kubeconfig(cls, path: str, context: str | None, environ: Mapping[str, str]) -> "Connection":
        source = f"kubeconfig {path}" if context is None else f"context {context} of kubeconfig {path}"

        def make() -> ApiSession:
            is_plain = Path(path).is_file() and not uses_proxy(environ)
            access = plain_kubeconfig(Path(path), context) if is_plain else None
            if access is not None:
                return _direct(access, source)
            session: ApiSession = _client_library(source).from_kubeconfig(path, context)()
            return session

        return cls(source, make)

    @property
    def base_url(self) -> str:
        """``https://host:port``, without a slash at the end."""
        return self._session.server.rstrip("/")

    def auth_headers(self) -> dict[str, str]:
        """The headers with the credentials, read again when they expire; empty with a client certificate. Raises
        ConfigurationError when the token file is unreadable."""
        return self._guarded(self._session.headers)

    def send(
        self, verb: str, target: str, headers: Mapping[str, str], body: bytes | None, limits: RequestLimits
    ) -> Receive:
        """Send a request for ``target`` (a path with its query); ``headers`` include the credentials. The caller must
        call the result, which waits for the head of the answer. Both raise `TransportError`."""
        return self._session.send(verb, target, headers, body, limits)

    def renew(self) -> None:
        """Read token, CA and exec plugin again, after a 401 or an unaccepted server certificate. Requests in flight
        finish on the old connections. Raises ConfigurationError on failure; the old credentials stay in use."""
        self._session, former = self._new_session(), self._session
        former.clear(for_good=True)
        log.info("credentials read again", extra={"source": self.source})

    def close(self) -> None:
        """Closes idle connections. Idempotent; the connection can be used again."""
        self._session.clear()

    def _new_session(self) -> ApiSession:
        session = self._guarded(self._make_session)
        if not _is_server(session.server):
            raise ConfigurationError(
                f"cannot use {self.source} to reach the API server: its server is {session.server[:200]!r}, "
                "expected an address such as https://10.0.0.1:6443"
            )
        return session

    def _guarded(self, read: Callable[[], Result]) -> Result:
        """Run code that reads configuration, with any exception as ConfigurationError: the ``kubernetes`` client raises
        YAML errors, KeyError, TypeError and binascii errors for a damaged file."""
        try:
            return read()
        except Exception as error:  # a fence: translated, with the cause kept
            what = str(error) or type(error).__name__
            raise ConfigurationError(
                f"cannot use {self.source} to reach the API server: {what}", reason="ConnectionUnusable"
            ) from error


def token_connection(
    kubeconfig: str | None = None,
    *,
    context: str | None = None,
    environ: Mapping[str, str] = os.environ,
    service_account_dir: Path = SERVICE_ACCOUNT_DIR,
) -> Callable[[str], Connection]:
    """Connections with given tokens to the API server of `Connection.load`; of a pod, only the CA is needed. No other
    credentials are used. Raises ConfigurationError, also for a kubeconfig that is not plain."""
    path = kubeconfig_path(kubeconfig, environ)
    if kubeconfig is None and context is None and environ.get("KUBERNETES_SERVICE_HOST"):
        found, source = service_account(environ, service_account_dir), "the pod"
    elif (plain := plain_kubeconfig(Path(path), context)) is not None:
        found, source = plain, f"kubeconfig {path}"
    else:
        raise ConfigurationError(f"cannot use kubeconfig {path}: expected one file with a server, and a token or key")
    server = Access(server=found.server, ca=found.ca, verify=found.verify, server_name=found.server_name)
    return lambda token: Connection(source, lambda: _direct(replace(server, token=token), source))


def _direct(access: Access, source: str) -> DirectSession:
    if not _is_server(access.server):
        raise ConfigurationError(
            f"its server is {access.server[:200]!r}, expected an address such as https://10.0.0.1:6443"
        )
    if not access.verify:
        log.warning("the API server's certificate is not verified", extra={"source": source})
    return DirectSession(access)


def _client_library(who: str) -> ModuleType:
    """`kube.library`, which is large and rarely needed. Raises ConfigurationError where a package of it is missing."""
    try:
        from dra_driver.kube import library  # noqa: PLC0415 - see above
    except ModuleNotFoundError as error:
        raise ConfigurationError(
            f"to reach the API server with {who}, the package {error.name} is needed, which is not installed here (the "
            "image for nodes has no exec plugins, OIDC, passwords and proxies): run this where pip or pipx installed "
            "this project, or unset HTTPS_PROXY and HTTP_PROXY if the API server can be reached without them"
        ) from error
    return library


def _is_server(address: str) -> bool:
    """Return whether the URL is usable; otherwise a typing mistake looks like an unreachable server."""
    try:
        url = urlsplit(address)
        url.port  # noqa: B018 - raises for an invalid port number
    except ValueError:
        return False
    return url.scheme in {"http", "https"} and bool(url.hostname) and address.isprintable() and " " not in address


def _in_cluster(environ: Mapping[str, str], directory: Path) -> bool:
    return bool(environ.get("KUBERNETES_SERVICE_HOST")) and (directory / "token").is_file()
