"""The API server's address, its CA and this process' credentials, from a service account or a kubeconfig.

The ``kubernetes`` client reads kubeconfig, TLS settings, proxies, exec plugins and the service account's token. It
reads the token file again once a minute, because the kubelet rotates projected tokens (BoundServiceAccountTokenVolume;
a token is valid for about an hour).
"""

import logging
import os
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import urllib3
from urllib3.exceptions import InsecureRequestWarning, LocationParseError
from urllib3.util import parse_url

from dra_driver.errors import ConfigurationError
from dra_driver.kube.transport import ClientParts, client_parts

log = logging.getLogger(__name__)

SERVICE_ACCOUNT_DIR = Path("/var/run/secrets/kubernetes.io/serviceaccount")

# Dead peers are found after 15 + 3 x 5 s, not only at the end of a watch's read timeout.
_KEEPALIVE_IDLE_S, _KEEPALIVE_INTERVAL_S, _KEEPALIVE_PROBES = 15, 5, 3

# For this long the same headers are sent without asking the client, which with a kubeconfig builds its whole
# configuration again for each request (a quarter of the CPU time of a GET). A token that expires in this time costs one
# 401, after which everything is read again.
_HEADERS_FOR_S = 5.0

# One reflector, four workers of the plugin, the publisher and the event recorder; more are opened and closed as needed.
_POOL_CONNECTIONS = 4


@dataclass(frozen=True, slots=True)
class _Session:
    """One reading of the configuration, and the connections made with it."""

    configuration: Any
    pool: Any  # urllib3.PoolManager


class Connection:
    """The API server's address, a connection pool and fresh credentials. Thread-safe."""

    def __init__(self, source: str, make_configuration: Callable[[], Any], parts: ClientParts) -> None:
        self.source = source
        self._make_configuration = make_configuration
        self._parts = parts
        self._lock = threading.Lock()  # guards the fields below, and lets one thread at a time read credentials
        self._headers: tuple[float, dict[str, str]] = (0.0, {})  # until when (monotonic clock), and which
        self._session = self._new_session()

    @classmethod
    def load(
        cls,
        kubeconfig: str | None = None,
        *,
        environ: Mapping[str, str] = os.environ,
        service_account_dir: Path = SERVICE_ACCOUNT_DIR,
    ) -> "Connection":
        """The connection described by ``kubeconfig``; else the pod's service account; else KUBECONFIG or
        ``~/.kube/config``.

        Opens no connection yet. Raises ConfigurationError when none of them exists or one is unreadable.
        """
        if kubeconfig is None and _in_cluster(environ, service_account_dir):
            return cls._in_cluster(environ, service_account_dir)
        path = (
            kubeconfig or environ.get("KUBECONFIG") or str(Path(environ.get("HOME", "~"), ".kube/config").expanduser())
        )
        if not any(Path(part).is_file() for part in path.split(os.pathsep) if part):
            raise ConfigurationError(
                f"no way to reach the API server: kubeconfig {path} does not exist and no service account is mounted "
                f"at {service_account_dir}; pass --kubeconfig, set KUBECONFIG, or run in a pod with a service account"
            )
        return cls._from_kubeconfig(path)

    @classmethod
    def _in_cluster(cls, environ: Mapping[str, str], directory: Path) -> "Connection":
        parts = client_parts("in-cluster")

        def make() -> Any:
            configuration = parts.configuration()
            loader = parts.load_config(str(directory / "token"), str(directory / "ca.crt"), environ=environ)
            loader.load_and_set(configuration)
            return configuration

        return cls(f"the service account in {directory}", make, parts)

    @classmethod
    def _from_kubeconfig(cls, path: str) -> "Connection":
        parts = client_parts("kubeconfig")

        def make() -> Any:
            configuration = parts.configuration()
            try:
                parts.load_config(config_file=path, client_configuration=configuration, persist_config=False)
            except (AttributeError, LookupError, TypeError, UnicodeError) as error:
                # The client's reader fails like that on a file of another shape; its own message does not help.
                raise ConfigurationError(
                    f"{path} is not a kubeconfig, expected the YAML that kubectl config view --raw prints "
                    f"({type(error).__name__}: {error})"
                ) from error
            return configuration

        return cls(f"kubeconfig {path}", make, parts)

    @property
    def base_url(self) -> str:
        """``https://host:port``, without a slash at the end."""
        return str(self._session.configuration.host).rstrip("/")

    @property
    def pool(self) -> Any:
        """The ``urllib3.PoolManager`` with the TLS and proxy settings; thread-safe."""
        return self._session.pool

    def auth_headers(self) -> dict[str, str]:
        """The headers with the credentials, read again when they expire; empty with a client certificate.

        Raises ConfigurationError when the token file has become unreadable.
        """
        with self._lock:
            until, headers = self._headers
            if time.monotonic() >= until:
                settings = self._guarded(self._session.configuration.auth_settings).values()
                headers = {s["key"]: s["value"].strip() for s in settings if s["in"] == "header" and s["value"]}
                self._headers = (time.monotonic() + _HEADERS_FOR_S, headers)
            return dict(headers)

    def renew(self) -> None:
        """Reads everything again (token, CA, exec plugin) after a 401; requests in flight finish on the old
        connections.

        Raises ConfigurationError when that fails; the old credentials then stay in use.
        """
        session = self._new_session()
        with self._lock:
            self._session = session
            self._headers = (0.0, {})
        log.info("credentials read again", extra={"source": self.source})

    def close(self) -> None:
        """Closes idle connections. Idempotent; the connection can be used again."""
        self._session.pool.clear()

    def _new_session(self) -> _Session:
        configuration = self._guarded(self._make_configuration)
        if not _is_server(str(configuration.host)):
            raise ConfigurationError(
                f"cannot use {self.source} to reach the API server: its server is {str(configuration.host)[:200]!r}, "
                "expected an address such as https://10.0.0.1:6443"
            )
        configuration.socket_options = self._parts.keepalive_options(
            idle=_KEEPALIVE_IDLE_S, interval=_KEEPALIVE_INTERVAL_S, count=_KEEPALIVE_PROBES
        )
        configuration.connection_pool_maxsize = _POOL_CONNECTIONS
        if not configuration.verify_ssl:
            # urllib3 warns on every request; one line in the log is enough.
            urllib3.disable_warnings(InsecureRequestWarning)
            log.warning("the API server's certificate is not verified", extra={"source": self.source})
        return _Session(configuration, self._guarded(lambda: self._parts.rest_client(configuration).pool_manager))

    def _guarded(self, read: Callable[[], Any]) -> Any:
        """Runs code of the client that reads configuration, and turns any exception into ConfigurationError.

        The client raises YAML errors, KeyError, TypeError and binascii errors for a damaged file.
        """
        try:
            return read()
        except ConfigurationError:
            raise
        except Exception as error:  # a fence: translated, with the cause kept
            what = str(error) or type(error).__name__
            raise ConfigurationError(f"cannot use {self.source} to reach the API server: {what}") from error


def _is_server(address: str) -> bool:
    """Whether requests can be sent there; a typing mistake would otherwise look like a server that is down."""
    try:
        url = parse_url(address)
    except LocationParseError:
        return False
    return url.scheme in {"http", "https"} and bool(url.host) and not any(char.isspace() for char in address)


def _in_cluster(environ: Mapping[str, str], directory: Path) -> bool:
    return bool(environ.get("KUBERNETES_SERVICE_HOST")) and (directory / "token").is_file()
