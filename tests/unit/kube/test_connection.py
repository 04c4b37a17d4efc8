"""Finding the API server, and failing with a sentence where there is none."""

import base64
import json
import re
from pathlib import Path
from typing import Any

import certifi
import pytest
import yaml

from dra_driver.core.errors import ConfigurationError
from dra_driver.kube.access import Access, plain_kubeconfig, service_account, uses_proxy
from dra_driver.kube.connection import Connection, token_connection
from dra_driver.kube.kubeconfig import Kubeconfig
from tests.harness.raising import fails


def kubeconfig(path: Path, user: dict[str, Any] | None = None, **cluster: Any) -> Path:
    document = {
        "current-context": "c",
        "contexts": [{"name": "other"}, {"name": "c", "context": {"cluster": "s", "user": "u"}}],
        "clusters": [{"name": "s", "cluster": {"server": "http://127.0.0.1:1", **cluster}}],
        "users": [{"name": "u", "user": user if user is not None else {"token": "t"}}],
    }
    path.write_text(json.dumps(document))
    return path


def pod_environment(folder: Path) -> dict[str, str]:
    (folder / "token").write_text("abc")
    (folder / "ca.crt").write_text("x")
    return {"KUBERNETES_SERVICE_HOST": "10.0.0.1", "KUBERNETES_SERVICE_PORT": "443"}


def test_the_service_account_wins_over_the_environment(tmp_path: Path) -> None:
    """A KUBECONFIG variable of the image must not replace the pod's service account."""
    environ = {**pod_environment(tmp_path), "KUBECONFIG": str(kubeconfig(tmp_path / "k"))}
    connection = Connection.load(environ=environ, service_account_dir=tmp_path)
    assert connection.base_url == "https://10.0.0.1:443"
    assert connection.auth_headers() == {"authorization": "Bearer abc"}


def test_a_kubeconfig_that_was_asked_for_wins_over_everything(tmp_path: Path) -> None:
    path = kubeconfig(tmp_path / "k")
    connection = Connection.load(str(path), environ=pod_environment(tmp_path), service_account_dir=tmp_path)
    assert connection.base_url == "http://127.0.0.1:1"


@pytest.mark.parametrize("variable", ["KUBECONFIG", "HOME"])
def test_outside_a_pod_the_usual_files_are_read(tmp_path: Path, variable: str) -> None:
    """As kubectl does: the variable, then ~/.kube/config."""
    (tmp_path / ".kube").mkdir()
    path = kubeconfig(tmp_path / ".kube" / "config")
    environ = {variable: str(path if variable == "KUBECONFIG" else tmp_path)}
    assert Connection.load(environ=environ, service_account_dir=tmp_path / "none").base_url == "http://127.0.0.1:1"


def test_a_token_file_is_read_and_read_again_when_credentials_are_renewed(tmp_path: Path) -> None:
    (tmp_path / "tok").write_text("one\n")
    connection = Connection.load(str(kubeconfig(tmp_path / "k", user={"tokenFile": "tok"})))
    assert connection.auth_headers() == {"authorization": "Bearer one"}
    (tmp_path / "tok").write_text("two\n")
    connection.renew()
    assert connection.auth_headers() == {"authorization": "Bearer two"}


def test_without_any_configuration_the_sentence_says_what_to_do(tmp_path: Path) -> None:
    with fails(ConfigurationError, "NoConnection", match="--kubeconfig"):
        Connection.load(environ={"HOME": str(tmp_path)}, service_account_dir=tmp_path)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "Invalid kube-config. {path} file is empty"),
        ("[1, 2]", "{path} is not a kubeconfig, expected the YAML"),
        ("current-context: c\ncontexts: 7", "{path} is not a kubeconfig, expected the YAML"),
        ("{{{", 'in "{path}", line 1, column 4'),
        ("\x00", 'in "{path}", position 0'),
        (":::", "Expected key current-context in {path}"),
        ("a: v1", "Expected key current-context in {path}"),
        ('{"current-context": "x", "contexts": []}', "Expected object with name x in {path}/contexts list"),
    ],
)
def test_a_damaged_kubeconfig_is_a_configuration_error(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "broken"
    path.write_text(text)
    with pytest.raises(ConfigurationError, match=re.escape(said.format(path=path))):
        Connection.load(str(path))


def test_an_empty_token_is_a_configuration_error(tmp_path: Path) -> None:
    """Requests without a token would be made as system:anonymous."""
    environ = pod_environment(tmp_path)
    (tmp_path / "token").write_text("")
    with fails(ConfigurationError, "ConnectionUnusable", match="token file"):
        Connection.load(environ=environ, service_account_dir=tmp_path)


@pytest.mark.parametrize(
    "server", ["not a url", "https://not a url", "10.0.0.1:6443", "https://", "ftp://10.0.0.1", "https://a:99999999"]
)
def test_a_server_that_is_no_address_is_a_configuration_error(tmp_path: Path, server: str) -> None:
    """Otherwise the process would wait for ever for an address that cannot exist."""
    with fails(ConfigurationError, "ConnectionUnusable", match="https://"):
        Connection.load(str(kubeconfig(tmp_path / "k", server=server)))


@pytest.mark.parametrize(
    "server", ["https://[fd00::1]:6443", "https://api.example.com", "https://10.0.0.1/k8s/clusters/c"]
)
def test_addresses_of_every_usual_form_are_taken(tmp_path: Path, server: str) -> None:
    """IPv6, the default port, and the path that a cluster manager's proxy puts behind the host."""
    assert Connection.load(str(kubeconfig(tmp_path / "k", server=server))).base_url == server


def plain_config(folder: Path, cluster: dict[str, Any], user: dict[str, Any]) -> Path:
    return kubeconfig(folder / "config", user, **{"server": "https://a:6443/", **cluster})


def test_certificates_and_tokens_are_found_inline_and_in_files_beside_the_kubeconfig(tmp_path: Path) -> None:
    """Paths in a kubeconfig are relative to its folder (client-go's clientcmd, ResolveLocalPaths)."""
    (tmp_path / "ca.pem").write_bytes(b"the CA")
    data = base64.b64encode(b"mine").decode()
    cluster = {"certificate-authority": "ca.pem", "tls-server-name": "kubernetes"}
    user = {"client-certificate-data": data, "client-key-data": data, "tokenFile": "tok"}
    found = plain_kubeconfig(plain_config(tmp_path, cluster, user))
    assert found is not None
    assert (found.server, found.ca, found.server_name) == ("https://a:6443", b"the CA", "kubernetes")
    assert (found.certificate, found.key, found.token_file) == (b"mine", b"mine", tmp_path / "tok")
    assert found.verify


def test_a_token_file_wins_over_a_token(tmp_path: Path) -> None:
    """Source: client-go's clientcmd/api/v1/types.go, "TokenFile takes precedence over Token"."""
    found = plain_kubeconfig(plain_config(tmp_path, {}, {"token": "a", "tokenFile": "tok"}))
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
    assert plain_kubeconfig(plain_config(tmp_path, cluster, user)) is None


@pytest.mark.parametrize(
    ("field", "value", "said"),
    [
        ("certificate-authority", "gone.pem", r"gone\.pem cannot be read"),
        ("certificate-authority-data", "a", "field certificate-authority cannot be read"),  # no base64
    ],
)
def test_an_authority_that_cannot_be_read_is_named(tmp_path: Path, field: str, value: str, said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        plain_kubeconfig(plain_config(tmp_path, {field: value}, {"token": "t"}))


def test_an_ipv6_service_address_is_put_in_brackets(tmp_path: Path) -> None:
    environ = pod_environment(tmp_path) | {"KUBERNETES_SERVICE_HOST": "fd00::1"}
    assert service_account(environ, tmp_path).server == "https://[fd00::1]:443"


@pytest.mark.parametrize(
    ("environ", "expected"), [({}, False), ({"HTTPS_PROXY": "x"}, True), ({"http_proxy": ""}, False)]
)
def test_a_proxy_in_the_environment_is_noticed(environ: dict[str, str], expected: bool) -> None:
    """This project's HTTP goes through none, so the client library takes over."""
    assert uses_proxy(environ) is expected


def test_comments_of_a_ca_bundle_may_be_in_any_language() -> None:
    ca_pem = (certifi.contents().partition("-----END CERTIFICATE-----")[0] + "-----END CERTIFICATE-----\n").encode()
    access = Access(server="https://a:6443", ca="# F\u0151tan\u00fas\u00edtv\u00e1ny\n".encode() + ca_pem)
    assert access.tls().cert_store_stats()["x509"] == 1


def test_a_service_account_without_an_authority_is_refused(tmp_path: Path) -> None:
    """Otherwise the system's authorities would count, none of which vouches for a cluster's API server."""
    environ = pod_environment(tmp_path)
    (tmp_path / "ca.crt").write_text("")
    with fails(ConfigurationError, "EmptyFile", match=r"ca\.crt"):
        service_account(environ, tmp_path)


NO_POD: dict[str, str] = {}


def with_contexts(path: Path, current: str, **namespaces: str | None) -> str:
    contexts = [
        {"name": name, "context": {"cluster": name, "user": "me", **({"namespace": at} if at else {})}}
        for name, at in namespaces.items()
    ]
    clusters = [{"name": name, "cluster": {"server": f"https://{name}.example:6443"}} for name in namespaces]
    document = {"current-context": current, "contexts": contexts, "clusters": clusters}
    path.write_text(yaml.safe_dump(document | {"users": [{"name": "me", "user": {"token": "t"}}]}))
    return str(path)


def test_the_namespace_is_that_of_the_context(tmp_path: Path) -> None:
    path = with_contexts(tmp_path / "config", "west", west="team-a", east="team-b", north=None)
    assert Kubeconfig(path=path).namespace(NO_POD, tmp_path) == "team-a"
    assert Kubeconfig(path=path, context="east").namespace(NO_POD, tmp_path) == "team-b"
    assert Kubeconfig(path=path, context="north").namespace(NO_POD, tmp_path) == "default"
    assert Kubeconfig().namespace({"KUBECONFIG": path}, tmp_path) == "team-a"


def test_of_several_files_the_first_that_names_something_counts(tmp_path: Path) -> None:
    """As client-go merges the files of KUBECONFIG; one that does not exist is passed over."""
    first = with_contexts(tmp_path / "first", "", west="team-a")
    second = with_contexts(tmp_path / "second", "west", west="team-c", east="team-b")
    environ = {"KUBECONFIG": f"{tmp_path / 'none'}:{first}:{second}"}
    assert Kubeconfig().namespace(environ, tmp_path) == "team-a"
    assert Kubeconfig(context="east").namespace(environ, tmp_path) == "team-b"
    assert Kubeconfig().names(environ) == ["east", "west"]


def test_in_a_pod_it_is_that_of_the_service_account(tmp_path: Path) -> None:
    (tmp_path / "namespace").write_text("tools\n")
    path = with_contexts(tmp_path / "config", "west", west="team-a")
    pod = {"KUBERNETES_SERVICE_HOST": "10.0.0.1", "KUBECONFIG": path}
    assert Kubeconfig().namespace(pod, tmp_path) == "tools"
    assert Kubeconfig(context="west").namespace(pod, tmp_path) == "team-a"
    assert Kubeconfig().namespace({"KUBERNETES_SERVICE_HOST": "10.0.0.1"}, tmp_path / "none") == "default"


@pytest.mark.parametrize("text", ["", "[1, 2]", "contexts: 7", "contexts: [7, {name: 3}]", "\0", "a: [", "a: &a [*a]"])
def test_a_damaged_file_gives_the_default(tmp_path: Path, text: str) -> None:
    (tmp_path / "config").write_text(text)
    assert Kubeconfig(path=str(tmp_path / "config"), context=None).namespace(NO_POD, tmp_path) == "default"


def test_a_context_that_does_not_exist_is_refused_with_those_that_do(tmp_path: Path) -> None:
    path = with_contexts(tmp_path / "config", "west", west=None, east=None)
    Kubeconfig(path=path, context="east").check(NO_POD)
    with fails(ConfigurationError, "UnknownContext", match="eats: .* east, west"):
        Kubeconfig(path=path, context="eats").check(NO_POD)


def test_requests_go_to_the_cluster_of_the_context(tmp_path: Path) -> None:
    path = with_contexts(tmp_path / "config", "west", west=None, east=None)
    for environ in (NO_POD, {"HTTPS_PROXY": "http://proxy.example:3128"}):
        chosen = Connection.load(path, context="east", environ=environ)
        assert chosen.base_url == "https://east.example:6443"
        assert chosen.source == f"context east of kubeconfig {path}"
        assert Connection.load(path, environ=environ).base_url == "https://west.example:6443"


def test_a_context_is_taken_from_a_kubeconfig_in_a_pod_too(tmp_path: Path) -> None:
    path = with_contexts(tmp_path / "config", "west", west=None, east=None)
    environ = pod_environment(tmp_path) | {"KUBECONFIG": path}
    found = Connection.load(context="east", environ=environ, service_account_dir=tmp_path)
    assert found.base_url == "https://east.example:6443"


def test_a_visitors_connection_has_no_credentials_of_the_kubeconfig(tmp_path: Path) -> None:
    config = kubeconfig(tmp_path / "config", {"token": "of-the-owner"}, **{"insecure-skip-tls-verify": True})
    make = token_connection(str(config))
    connection = make("of-ann")
    assert connection.base_url == "http://127.0.0.1:1"
    assert connection.auth_headers() == {"authorization": "Bearer of-ann"}
    connection.renew()
    assert connection.auth_headers() == {"authorization": "Bearer of-ann"}
    assert "of-ann" not in connection.source
    kubeconfig(config, {"exec": {"command": "x"}})
    with pytest.raises(ConfigurationError, match="expected one file with a server, and a token"):
        token_connection(str(config))


def test_a_pod_without_a_token_serves_visitors(tmp_path: Path) -> None:
    """It has the API server's address and CA only."""
    environ = {"KUBERNETES_SERVICE_HOST": "10.0.0.1", "KUBERNETES_SERVICE_PORT": "443"}
    with pytest.raises(ConfigurationError, match=r"ca\.crt cannot be read"):
        token_connection(environ=environ, service_account_dir=tmp_path)
    (tmp_path / "ca.crt").write_text("# a CA")
    make = token_connection(environ=environ, service_account_dir=tmp_path)
    assert make("of-ann").auth_headers() == {"authorization": "Bearer of-ann"}
