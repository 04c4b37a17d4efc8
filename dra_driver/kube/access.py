"""The API server's address, CA and credentials, from a service account or a plain kubeconfig: one file whose user has a
token or a certificate. `kube.library` reads others (exec plugins, OIDC, passwords, proxies, merged files). Fields:
kubernetes/client-go tools/clientcmd/api/v1/types.go."""

import base64
import binascii
import os
import ssl
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from msgspec import Struct

from dra_driver.core import yaml_text
from dra_driver.core.errors import ConfigurationError

_MOST_BYTES = 4 * 2**20
_CLUSTER = frozenset(
    {
        "server",
        "certificate-authority",
        "certificate-authority-data",
        "insecure-skip-tls-verify",
        "tls-server-name",
        "disable-compression",
        "extensions",
    }
)
_USER = frozenset(
    {
        "token",
        "tokenFile",
        "client-certificate",
        "client-certificate-data",
        "client-key",
        "client-key-data",
        "extensions",
    }
)
_PROXIES = ("https_proxy", "http_proxy", "all_proxy")


class Access(Struct, frozen=True, kw_only=True):
    """One way to reach an API server. Certificates are PEM; without ``ca`` the system's authorities count."""

    server: str
    ca: bytes | None = None
    verify: bool = True
    server_name: str | None = None
    certificate: bytes | None = None
    key: bytes | None = None
    token: str | None = None
    token_file: Path | None = None

    def tls(self) -> ssl.SSLContext:
        """The settings of TLS connections. Raises OSError and ValueError for certificates that cannot be used."""
        # Python takes ASCII alone here; bundles have comments between the certificates.
        context = ssl.create_default_context(cadata=self.ca.decode("ascii", "ignore") if self.ca else None)
        context.set_alpn_protocols(["http/1.1"])
        if not self.verify:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        if self.certificate is not None:
            _load_client_certificate(context, self.certificate + b"\n" + (self.key or b""))
        return context


def uses_proxy(environ: Mapping[str, str]) -> bool:
    return any(environ.get(name) or environ.get(name.upper()) for name in _PROXIES)


def service_account(environ: Mapping[str, str], folder: Path) -> Access:
    """The access of a pod's service account. Raises ConfigurationError."""
    host, port = environ.get("KUBERNETES_SERVICE_HOST", ""), environ.get("KUBERNETES_SERVICE_PORT", "")
    if not host or not port:
        raise ConfigurationError("KUBERNETES_SERVICE_HOST and KUBERNETES_SERVICE_PORT are not both set")
    server = f"https://[{host}]:{port}" if ":" in host else f"https://{host}:{port}"
    ca = _content(folder / "ca.crt")
    if not ca.strip():
        raise ConfigurationError(
            f"{folder / 'ca.crt'} is empty, expected the certificate of the API server's CA", reason="EmptyFile"
        )
    return Access(server=server, ca=ca, token_file=folder / "token")


def read_token(path: Path) -> str:
    token = _content(path).decode("ascii", "replace").strip()
    if not token:
        raise ConfigurationError(f"the token file {path} is empty")
    return token


def plain_kubeconfig(path: Path, context_name: str | None = None) -> Access | None:
    """The access of a kubeconfig's context, by default its current one. None if the ``kubernetes`` client has to read
    the file, also for a damaged one: the client names the problem. Raises ConfigurationError for an unreadable file
    that a plain kubeconfig names."""
    try:
        document: Any = yaml_text.load(_content(path))
    except ValueError:
        return None
    context = _named(document, "contexts", "context", context_name or _get(document, "current-context"))
    cluster = _named(document, "clusters", "cluster", _get(context, "cluster"))
    user = _named(document, "users", "user", _get(context, "user"))
    if cluster is None or user is None or not cluster.keys() <= _CLUSTER or not user.keys() <= _USER:
        return None
    if not isinstance(cluster.get("server"), str):
        return None
    return _access(path.parent, cluster, user)


def _access(folder: Path, cluster: Mapping[str, Any], user: Mapping[str, Any]) -> Access | None:
    certificate = _file_or_data(folder, user, "client-certificate")
    token, token_file, name = user.get("token"), user.get("tokenFile"), cluster.get("tls-server-name")
    if not all(value is None or isinstance(value, str) for value in (token, token_file, name)):
        return None
    return Access(
        server=cluster["server"].rstrip("/"),
        ca=_file_or_data(folder, cluster, "certificate-authority"),
        verify=cluster.get("insecure-skip-tls-verify") is not True,
        server_name=name,
        certificate=certificate,
        key=_file_or_data(folder, user, "client-key") if certificate else None,
        token=token.strip() if token and not token_file else None,
        token_file=folder / token_file if token_file else None,
    )


def _get(value: object, key: str) -> object:
    return value.get(key) if isinstance(value, dict) else None


def _named(document: object, entries: str, kind: str, name: object) -> Mapping[str, object] | None:
    listed = _get(document, entries)
    for entry in listed if isinstance(listed, list) and isinstance(name, str) and name else ():
        if _get(entry, "name") == name:
            found = _get(entry, kind)
            return found if isinstance(found, dict) else None
    return None


def _file_or_data(folder: Path, fields: Mapping[str, Any], name: str) -> bytes | None:
    data, file = fields.get(f"{name}-data"), fields.get(name)
    try:
        if data:
            return base64.b64decode(data, validate=False)
        return _content(folder / file) if file else None
    except (binascii.Error, TypeError, ValueError) as error:
        raise ConfigurationError(f"its field {name} cannot be read: {error}") from error


def _content(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            data = file.read(_MOST_BYTES + 1)
    except OSError as error:
        raise ConfigurationError(f"{path} cannot be read: {(error.strerror or str(error)).lower()}") from error
    if len(data) > _MOST_BYTES:
        raise ConfigurationError(f"{path} is larger than {_MOST_BYTES >> 20} MiB")
    return data


def _load_client_certificate(context: ssl.SSLContext, chain: bytes) -> None:
    """OpenSSL's interface takes a file: it exists, readable by this user alone, only for this call."""
    import tempfile  # noqa: PLC0415 - a pod has a token, and tempfile imports all compressions

    descriptor, name = tempfile.mkstemp()
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(chain)
        context.load_cert_chain(name)
    finally:
        with suppress(OSError):
            Path(name).unlink()
