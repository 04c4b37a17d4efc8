"""Finding the API server, and failing with a sentence where there is none."""

import json
from pathlib import Path

import pytest

from dra_driver.core.errors import ConfigurationError
from dra_driver.kube.connection import Connection


def kubeconfig(path: Path, server: str = "http://127.0.0.1:1", user: dict[str, str] | None = None) -> Path:
    document = {
        "current-context": "c",
        "contexts": [{"name": "c", "context": {"cluster": "s", "user": "u"}}],
        "clusters": [{"name": "s", "cluster": {"server": server}}],
        "users": [{"name": "u", "user": user if user is not None else {"token": "t"}}],
    }
    path.write_text(json.dumps(document))
    return path


def service_account(folder: Path) -> dict[str, str]:
    (folder / "token").write_text("abc")
    (folder / "ca.crt").write_text("x")
    return {"KUBERNETES_SERVICE_HOST": "10.0.0.1", "KUBERNETES_SERVICE_PORT": "443"}


def test_the_service_account_wins_over_the_environment(tmp_path: Path) -> None:
    """A KUBECONFIG variable of the image must not replace the pod's service account."""
    environ = {**service_account(tmp_path), "KUBECONFIG": str(kubeconfig(tmp_path / "k"))}
    connection = Connection.load(environ=environ, service_account_dir=tmp_path)
    assert connection.base_url == "https://10.0.0.1:443"
    assert connection.auth_headers() == {"authorization": "Bearer abc"}


def test_a_kubeconfig_that_was_asked_for_wins_over_everything(tmp_path: Path) -> None:
    """--kubeconfig means what it says, in a pod as well."""
    path = kubeconfig(tmp_path / "k")
    connection = Connection.load(str(path), environ=service_account(tmp_path), service_account_dir=tmp_path)
    assert connection.base_url == "http://127.0.0.1:1"


@pytest.mark.parametrize("variable", ["KUBECONFIG", "HOME"])
def test_outside_a_pod_the_usual_files_are_read(tmp_path: Path, variable: str) -> None:
    """As kubectl does: the variable, then ~/.kube/config."""
    (tmp_path / ".kube").mkdir()
    path = kubeconfig(tmp_path / ".kube" / "config")
    environ = {variable: str(path if variable == "KUBECONFIG" else tmp_path)}
    assert Connection.load(environ=environ, service_account_dir=tmp_path / "none").base_url == "http://127.0.0.1:1"


def test_a_token_file_is_read_and_read_again_when_credentials_are_renewed(tmp_path: Path) -> None:
    """A kubeconfig may name a token file that is rotated."""
    (tmp_path / "tok").write_text("one\n")
    connection = Connection.load(str(kubeconfig(tmp_path / "k", user={"tokenFile": "tok"})))
    assert connection.auth_headers() == {"authorization": "Bearer one"}
    (tmp_path / "tok").write_text("two\n")
    connection.renew()
    assert connection.auth_headers() == {"authorization": "Bearer two"}


def test_without_any_configuration_the_sentence_says_what_to_do(tmp_path: Path) -> None:
    """The most common first mistake on a laptop."""
    with pytest.raises(ConfigurationError, match="pass --kubeconfig, set KUBECONFIG, or run in a pod"):
        Connection.load(environ={"HOME": str(tmp_path)}, service_account_dir=tmp_path)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[1, 2]",
        "{{{",
        "a: v1",
        '{"current-context": "x", "contexts": []}',
        "\x00",
        "current-context: c\ncontexts: 7",
    ],
)
def test_a_damaged_kubeconfig_is_a_configuration_error(tmp_path: Path, text: str) -> None:
    """Never a traceback: exit status 2 and the file's name."""
    path = tmp_path / "broken"
    path.write_text(text)
    with pytest.raises(ConfigurationError, match="broken"):
        Connection.load(str(path))


def test_an_empty_token_is_a_configuration_error(tmp_path: Path) -> None:
    """Requests without a token would be made as system:anonymous."""
    environ = service_account(tmp_path)
    (tmp_path / "token").write_text("")
    with pytest.raises(ConfigurationError, match=r"token file .* is empty"):
        Connection.load(environ=environ, service_account_dir=tmp_path)


@pytest.mark.parametrize("text", ["[1, 2]", ":::", "current-context: c\ncontexts: 7", "a: v1"])
def test_a_file_of_another_shape_is_called_no_kubeconfig_or_its_fault_is_named(tmp_path: Path, text: str) -> None:
    """The client's own error, "'str' object does not support item assignment", does not name the wrong file."""
    path = tmp_path / "broken"
    path.write_text(text)
    with pytest.raises(ConfigurationError, match=r"is not a kubeconfig, expected the YAML|Invalid kube-config"):
        Connection.load(str(path))


@pytest.mark.parametrize(
    "server", ["not a url", "https://not a url", "10.0.0.1:6443", "https://", "ftp://10.0.0.1", "https://a:99999999"]
)
def test_a_server_that_is_no_address_is_a_configuration_error(tmp_path: Path, server: str) -> None:
    """Otherwise the process would wait for ever for an address that cannot exist."""
    with pytest.raises(ConfigurationError, match=r"its server is .* expected an address such as https://"):
        Connection.load(str(kubeconfig(tmp_path / "k", server=server)))


@pytest.mark.parametrize(
    "server", ["https://[fd00::1]:6443", "https://api.example.com", "https://10.0.0.1/k8s/clusters/c"]
)
def test_addresses_of_every_usual_form_are_taken(tmp_path: Path, server: str) -> None:
    """IPv6, the default port, and the path that a cluster manager's proxy puts behind the host."""
    assert Connection.load(str(kubeconfig(tmp_path / "k", server=server))).base_url == server
