"""Subcommands, exit statuses, and the modules loaded for them."""

import subprocess
import sys

import pytest

from dra_driver import __version__
from dra_driver.config.settings import node_flags
from dra_driver.core.command_line import main
from dra_driver.kubectl.commands import kubectl


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.main(["version"]) == 0
    assert capsys.readouterr().out.startswith(f"dra-driver {__version__} ")
    assert kubectl.main(["version"]) == 0


@pytest.mark.parametrize("arguments", [[], ["nope"], ["kubelet-plugin", "--nope"], ["kubelet-plugin", "--node", "n"]])
def test_wrong_use_is_status_2(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """Abbreviated flags are refused, too: their meaning would change when a flag is added."""
    with pytest.raises(SystemExit) as ended:
        main.main(arguments)
    assert ended.value.code == 2
    assert "usage: dra-driver" in capsys.readouterr().err


def test_an_unknown_flag_names_the_help_of_its_command(capsys: pytest.CaptureFixture[str]) -> None:
    """The program's own help has no flags of commands."""
    with pytest.raises(SystemExit):
        main.main(["version", "--loud"])
    assert "unrecognized arguments: --loud; see dra-driver version --help" in capsys.readouterr().err


def test_wrong_setting_is_status_2_with_one_sentence(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("NODE_NAME", raising=False)
    assert main.main(["kubelet-plugin"]) == 2
    assert capsys.readouterr().err == "dra-driver: --node-name (NODE_NAME) is missing\n"


def test_help_names_every_setting_with_its_variable(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main.main(["kubelet-plugin", "--help"])
    assert ended.value.code == 0
    text = " ".join(capsys.readouterr().out.split())
    for flag in node_flags():
        assert flag.flag in text
        assert f"[{flag.option.env}]" in text


def test_overview_lists_all_subcommands(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main.main(["--help"])
    text = capsys.readouterr().out
    assert all(name in text for name in main.SUBCOMMANDS)


def test_overview_imports_no_other_package() -> None:
    """Help has to be fast, and the node process must stay small."""
    script = "import sys; from dra_driver.core.command_line import main\n"
    script += "try: main.main(['version'])\nexcept SystemExit: pass\n"
    script += "print(*[name for name in sys.modules if name.startswith('dra_driver.')])"
    out = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=20).stdout
    loaded = {".".join(name.split(".")[1:3]) for name in out.split() if name.startswith("dra_driver.")}
    assert loaded == {"core", "core.command_line", "core.errors"}
