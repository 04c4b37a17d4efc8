"""Which kubeconfigs this project reads itself, and what it finds in them."""

import base64
import json
from pathlib import Path
from typing import Any

import certifi
import pytest

from dra_driver.core.errors import ConfigurationError
from dra_driver.kube.access import Access, plain_kubeconfig, service_account, uses_proxy


def written(folder: Path, cluster: dict[str, Any], user: dict[str, Any]) -> Path:
    document = {
        "current-context": "c",
        "contexts": [{"name": "other"}, {"name": "c", "context": {"cluster": "s", "user": "u"}}],
        "clusters": [{"name": "s", "cluster": {"server": "https://a:6443/", **cluster}}],
        "users": [{"name": "u", "user": user}],
    }
    (folder / "config").write_text(json.dumps(document))
    return folder / "config"


def test_certificates_and_tokens_are_found_inline_and_in_files_beside_the_kubeconfig(tmp_path: Path) -> None:
    """Paths in a kubeconfig are relative to its folder (client-go's clientcmd, ResolveLocalPaths)."""
    (tmp_path / "ca.pem").write_bytes(b"the CA")
    data = base64.b64encode(b"mine").decode()
    found = plain_kubeconfig(
        written(
            tmp_path,
            {"certificate-authority": "ca.pem", "tls-server-name": "kubernetes"},
            {"client-certificate-data": data, "client-key-data": data, "tokenFile": "tok"},
        )
    )
    assert found is not None
    assert (found.server, found.ca, found.server_name) == ("https://a:6443", b"the CA", "kubernetes")
    assert (found.certificate, found.key, found.token_file) == (b"mine", b"mine", tmp_path / "tok")
    assert found.verify


def test_a_token_file_wins_over_a_token(tmp_path: Path) -> None:
    """Source: client-go's clientcmd/api/v1/types.go, "TokenFile takes precedence over Token"."""
    found = plain_kubeconfig(written(tmp_path, {}, {"token": "a", "tokenFile": "tok"}))
    assert found is not None
    assert (found.token, found.token_file) == (None, tmp_path / "tok")


@pytest.mark.parametrize(
    ("cluster", "user"),
    [
        ({}, {"exec": {"command": "x"}}),
        ({}, {"auth-provider": {"name": "oidc"}}),
        ({}, {"username": "a", "password": "b"}),
        ({}, {"token": "t", "as": "admin"}),
        ({"proxy-url": "http://p"}, {"token": "t"}),
        ({"server": 7}, {"token": "t"}),
        ({}, {"token": 7}),
    ],
)
def test_what_needs_more_is_left_to_the_client_library(
    cluster: dict[str, Any], user: dict[str, Any], tmp_path: Path
) -> None:
    """A field that is not known here must never be ignored: it may be the impersonation or the proxy that matters."""
    assert plain_kubeconfig(written(tmp_path, cluster, user)) is None


def test_a_named_file_that_is_missing_is_named(tmp_path: Path) -> None:
    """The first mistake with a copied kubeconfig."""
    with pytest.raises(ConfigurationError, match=r"gone\.pem cannot be read"):
        plain_kubeconfig(written(tmp_path, {"certificate-authority": "gone.pem"}, {"token": "t"}))


def test_base64_that_is_none_is_named(tmp_path: Path) -> None:
    """Never a traceback."""
    with pytest.raises(ConfigurationError, match="field certificate-authority cannot be read"):
        plain_kubeconfig(written(tmp_path, {"certificate-authority-data": "a"}, {"token": "t"}))


def test_an_ipv6_service_address_is_put_in_brackets(tmp_path: Path) -> None:
    """A cluster of IPv6 alone."""
    (tmp_path / "ca.crt").write_text("x")
    environ = {"KUBERNETES_SERVICE_HOST": "fd00::1", "KUBERNETES_SERVICE_PORT": "443"}
    assert service_account(environ, tmp_path).server == "https://[fd00::1]:443"


@pytest.mark.parametrize(
    ("environ", "expected"), [({}, False), ({"HTTPS_PROXY": "x"}, True), ({"http_proxy": ""}, False)]
)
def test_a_proxy_in_the_environment_is_noticed(environ: dict[str, str], expected: bool) -> None:
    """This project's HTTP goes through none, so the client library takes over."""
    assert uses_proxy(environ) is expected


def test_comments_of_a_ca_bundle_may_be_in_any_language() -> None:
    """The bundles of distributions name authorities as they call themselves."""
    ca_pem = (certifi.contents().partition("-----END CERTIFICATE-----")[0] + "-----END CERTIFICATE-----\n").encode()
    access = Access(server="https://a:6443", ca="# F\u0151tan\u00fas\u00edtv\u00e1ny\n".encode() + ca_pem)
    assert access.tls().cert_store_stats()["x509"] == 1


def test_a_service_account_without_an_authority_is_refused(tmp_path: Path) -> None:
    """Otherwise the system's authorities would count, none of which vouches for a cluster's API server."""
    (tmp_path / "ca.crt").write_text("")
    environ = {"KUBERNETES_SERVICE_HOST": "10.0.0.1", "KUBERNETES_SERVICE_PORT": "443"}
    with pytest.raises(ConfigurationError, match=r"ca\.crt is empty"):
        service_account(environ, tmp_path)
