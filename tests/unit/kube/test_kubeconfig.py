"""Which context and namespace a command has, as kubectl chooses them."""

from pathlib import Path

import pytest
import yaml

from dra_driver.core.errors import ConfigurationError
from dra_driver.kube.connection import Connection
from dra_driver.kube.kubeconfig import Kubeconfig

NO_POD: dict[str, str] = {}


def written(path: Path, current: str, **namespaces: str | None) -> str:
    """A kubeconfig with one cluster per context."""
    contexts = [
        {"name": name, "context": {"cluster": name, "user": "me", **({"namespace": at} if at else {})}}
        for name, at in namespaces.items()
    ]
    clusters = [{"name": name, "cluster": {"server": f"https://{name}.example:6443"}} for name in namespaces]
    document = {"current-context": current, "contexts": contexts, "clusters": clusters}
    path.write_text(yaml.safe_dump(document | {"users": [{"name": "me", "user": {"token": "t"}}]}))
    return str(path)


def test_the_namespace_is_that_of_the_context(tmp_path: Path) -> None:
    """Of the current one, of one that was chosen, and default where it names none."""
    path = written(tmp_path / "config", "west", west="team-a", east="team-b", north=None)
    assert Kubeconfig(path=path).namespace(NO_POD, tmp_path) == "team-a"
    assert Kubeconfig(path=path, context="east").namespace(NO_POD, tmp_path) == "team-b"
    assert Kubeconfig(path=path, context="north").namespace(NO_POD, tmp_path) == "default"
    assert Kubeconfig().namespace({"KUBECONFIG": path}, tmp_path) == "team-a"


def test_of_several_files_the_first_that_names_something_counts(tmp_path: Path) -> None:
    """As client-go merges the files of KUBECONFIG; one that does not exist is passed over."""
    first = written(tmp_path / "first", "", west="team-a")
    second = written(tmp_path / "second", "west", west="team-c", east="team-b")
    environ = {"KUBECONFIG": f"{tmp_path / 'none'}:{first}:{second}"}
    assert Kubeconfig().namespace(environ, tmp_path) == "team-a"
    assert Kubeconfig(context="east").namespace(environ, tmp_path) == "team-b"
    assert Kubeconfig().names(environ) == ["east", "west"]


def test_in_a_pod_it_is_that_of_the_service_account(tmp_path: Path) -> None:
    """Unless a kubeconfig or a context was chosen."""
    (tmp_path / "namespace").write_text("tools\n")
    path = written(tmp_path / "config", "west", west="team-a")
    pod = {"KUBERNETES_SERVICE_HOST": "10.0.0.1", "KUBECONFIG": path}
    assert Kubeconfig().namespace(pod, tmp_path) == "tools"
    assert Kubeconfig(context="west").namespace(pod, tmp_path) == "team-a"
    assert Kubeconfig().namespace({"KUBERNETES_SERVICE_HOST": "10.0.0.1"}, tmp_path / "none") == "default"


@pytest.mark.parametrize("text", ["", "[1, 2]", "contexts: 7", "contexts: [7, {name: 3}]", "\0", "a: [", "a: &a [*a]"])
def test_a_damaged_file_gives_the_default(tmp_path: Path, text: str) -> None:
    """The connection says what is wrong with it."""
    (tmp_path / "config").write_text(text)
    assert Kubeconfig(path=str(tmp_path / "config"), context=None).namespace(NO_POD, tmp_path) == "default"


def test_a_context_that_does_not_exist_is_refused_with_those_that_do(tmp_path: Path) -> None:
    """A typing mistake must not reach another cluster."""
    path = written(tmp_path / "config", "west", west=None, east=None)
    Kubeconfig(path=path, context="east").check(NO_POD)
    with pytest.raises(ConfigurationError, match=r"--context eats: .* has no such context; it has east, west"):
        Kubeconfig(path=path, context="eats").check(NO_POD)


def test_requests_go_to_the_cluster_of_the_context(tmp_path: Path) -> None:
    """Read by the project's own reader, and by the client's where the file needs more."""
    path = written(tmp_path / "config", "west", west=None, east=None)
    for environ in (NO_POD, {"HTTPS_PROXY": "http://proxy.example:3128"}):
        chosen = Connection.load(path, context="east", environ=environ)
        assert chosen.base_url == "https://east.example:6443"
        assert chosen.source == f"context east of kubeconfig {path}"
        assert Connection.load(path, environ=environ).base_url == "https://west.example:6443"


def test_a_context_is_taken_from_a_kubeconfig_in_a_pod_too(tmp_path: Path) -> None:
    """The service account has none."""
    (tmp_path / "token").write_text("t")
    path = written(tmp_path / "config", "west", west=None, east=None)
    environ = {"KUBERNETES_SERVICE_HOST": "10.0.0.1", "KUBERNETES_SERVICE_PORT": "443", "KUBECONFIG": path}
    found = Connection.load(context="east", environ=environ, service_account_dir=tmp_path)
    assert found.base_url == "https://east.example:6443"
