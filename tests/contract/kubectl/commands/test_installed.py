"""`kubectl dra` from what `pipx install` of the wheel brings: the packages of pyproject.toml without an extra."""

import importlib.metadata
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterable
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from dra_driver.core.command_line.main import EXTRAS
from dra_driver.kubectl.commands import complete, kubectl
from dra_driver.kubectl.commands.kubectl import SUBCOMMANDS
from tests.fakes.node_image import ROOT, normal, packages_folder
from tests.fakes.scripted_http import Exchange, ScriptedServer
from tests.ui.terminal import COMMANDS, PICTURES

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
NODE_ONLY = ("grpcio", "protobuf", "nvidia-ml-py", "trustme")


def with_their_own(wanted: Iterable[str]) -> set[str]:
    found: set[str] = set()
    todo = [Requirement(line) for line in wanted]
    while todo:
        requirement = todo.pop()
        name = normal(requirement.name)
        if name in found or (requirement.marker and not requirement.marker.evaluate({"extra": ""})):
            continue
        found.add(name)
        todo += [Requirement(line) for line in importlib.metadata.requires(name) or ()]
    return found


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    names = with_their_own(PROJECT["project"]["dependencies"])
    assert names.isdisjoint(NODE_ONLY)
    return packages_folder(tmp_path_factory.mktemp("installed") / "packages", names)


def run(packages: Path, module: str, *arguments: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-S", "-m", module, *arguments],
        env={"PYTHONPATH": str(packages), "KUBECONFIG": "/nonexistent", "HOME": "/nonexistent"},
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_every_command_loads(packages: Path) -> None:
    script = f"from dra_driver.kubectl.commands.kubectl import main\nfor name in {list(kubectl.SUBCOMMANDS)}:\n"
    script += "    try: main([name, '--help'])\n    except SystemExit as ended: assert ended.code == 0, name\n"
    (packages / "all_commands.py").write_text(script)
    answer = run(packages, "all_commands")
    assert (answer.returncode, answer.stderr) == (0, "")


def test_manifests_are_checked_and_completed(packages: Path) -> None:
    checked = run(packages, "dra_driver.kubectl.commands.kubectl", "lint", "examples")
    assert (checked.returncode, checked.stderr) == (0, "")
    asked = run(packages, "dra_driver.kubectl.commands.kubectl", "devices")
    assert asked.returncode == 2
    assert "/nonexistent" in asked.stderr
    completed = run(packages, "dra_driver.kubectl.commands.complete", "ex")
    assert completed.stdout == "explain\texplain why a pod or claim has no devices\n:4\n"


@pytest.mark.parametrize(("arguments", "extra"), [(["sim", "demo"], "sim"), (["conformance", "--list"], "node")])
def test_command_without_modules_names_the_extra(packages: Path, arguments: list[str], extra: str) -> None:
    answer = run(packages, "dra_driver.core.command_line.main", *arguments)
    assert answer.returncode == 1
    assert f"pip install '.[{extra}]'" in answer.stderr


def test_image_and_extras_have_the_required_modules() -> None:
    project = PROJECT["project"]
    shared = {"msgspec", "prometheus-client", "pyyaml", "google-re2"}
    group = {normal(Requirement(line).name): line for line in PROJECT["dependency-groups"]["node"]}
    brought = {normal(Requirement(line).name): line for line in project["dependencies"]}
    brought = {name: line for name, line in brought.items() if name in shared}
    brought |= {normal(Requirement(line).name): line for line in project["optional-dependencies"]["node"]}
    assert group == brought
    assert set(EXTRAS.values()) - {""} == set(project["optional-dependencies"])


def test_completion_queries_cluster_of_the_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:

    def nodes(exchange: Exchange) -> None:
        exchange.json({"items": [{"metadata": {"name": "far-away"}}]})

    monkeypatch.setenv("KUBECONFIG", "/nonexistent")
    with ScriptedServer(nodes) as server:
        file = tmp_path / "other.conf"
        file.write_text(server.kubeconfig())
        assert complete.main(["drain", "--kubeconfig", str(file), ""]) == 0
    assert capsys.readouterr().out == "far-away\n:4\n"
    assert [seen.path for seen in server.requests] == ["/api/v1/nodes"]


@pytest.mark.parametrize("name", COMMANDS)
def test_each_command_has_its_picture(name: str) -> None:
    assert COMMANDS[name][0] in SUBCOMMANDS
    picture = Path(PICTURES, f"terminal-{name}.svg").read_text(encoding="utf-8")
    assert f"kubectl&#160;dra&#160;{name}" in picture
    assert not re.findall(r"(?:url\(|href=\")https?:", picture)
