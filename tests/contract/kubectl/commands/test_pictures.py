"""The pictures of the command line: their commands exist, and no picture makes a browser ask another host."""

import re
import sys
from pathlib import Path

import pytest

from dra_driver.kubectl.commands.kubectl import SUBCOMMANDS
from tests.ui.terminal import COMMANDS, PICTURES, as_svg, printed


def test_a_picture_has_what_a_terminal_shows_and_loads_nothing() -> None:
    code = "import sys; print('\\x1b[31mred\\x1b[0m', sys.stdout.isatty())"
    svg = as_svg("a command", printed([sys.executable, "-c", code]))
    assert ">red<" in svg
    assert "True" in svg
    assert "@font-face" not in svg
    assert "url(http" not in svg


@pytest.mark.parametrize("name", COMMANDS)
def test_each_command_has_its_picture(name: str) -> None:
    assert COMMANDS[name][0] in SUBCOMMANDS
    picture = Path(PICTURES, f"terminal-{name}.svg").read_text(encoding="utf-8")
    assert f"kubectl&#160;dra&#160;{name}" in picture
    assert not re.findall(r"(?:url\(|href=\")https?:", picture)
