"""Names at a prompt come from the cluster that the line names."""

from pathlib import Path

import pytest

from dra_driver.kubectl.commands import complete
from tests.fakes.scripted_http import Exchange, ScriptedServer


def test_the_cluster_of_the_line_is_asked_and_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """``--kubeconfig`` is stronger than KUBECONFIG, as in the command that is being written."""

    def nodes(exchange: Exchange) -> None:
        exchange.json({"items": [{"metadata": {"name": "far-away"}}]})

    monkeypatch.setenv("KUBECONFIG", "/nonexistent")
    with ScriptedServer(nodes) as server:
        file = tmp_path / "other.conf"
        file.write_text(server.kubeconfig())
        assert complete.main(["drain", "--kubeconfig", str(file), ""]) == 0
    assert capsys.readouterr().out == "far-away\n:4\n"
    assert [seen.path for seen in server.requests] == ["/api/v1/nodes"]
