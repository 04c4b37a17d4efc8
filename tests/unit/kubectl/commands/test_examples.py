"""Every command's help has examples, and each example is one that the parser takes."""

import argparse
import contextlib
import re
import shlex
from collections.abc import Iterator

import pytest

from dra_driver.core.command_line import main
from dra_driver.core.command_line.examples import EXAMPLES
from dra_driver.kubectl.commands import kubectl

PROGRAMS = {"kubectl dra": (kubectl.ABOUT, kubectl.SUBCOMMANDS), "dra-driver": (main.ABOUT, main.SUBCOMMANDS)}
# Nothing to show: the name alone is the whole call.
PLAIN = {"kubectl dra version", "dra-driver version"}


def commands() -> Iterator[tuple[str, argparse.ArgumentParser, argparse.ArgumentParser]]:
    """Name, the program's parser, and the command's own parser; of commands below others too."""
    for program, (about, subcommands) in PROGRAMS.items():
        top, _ = main.parser_of(program, about, subcommands, subcommands)
        yield from leaves(top, top)


def leaves(
    top: argparse.ArgumentParser, parser: argparse.ArgumentParser
) -> Iterator[tuple[str, argparse.ArgumentParser, argparse.ArgumentParser]]:
    below = [action.choices for action in parser._actions if isinstance(action, argparse._SubParsersAction)]
    if not below:
        yield parser.prog, top, parser
    for each in below[0].values() if below else ():
        yield from leaves(top, each)


FOUND = {name: (top, parser) for name, top, parser in commands() if name not in PLAIN}


def examples(name: str, parser: argparse.ArgumentParser) -> list[list[str]]:
    """The words behind the program's name of each example; a remark stands behind three spaces or more."""
    text = parser.format_help()
    found = re.findall(r"^ {2,}(?:\$ )?((?:kubectl dra|dra-driver) .*)$", text, flags=re.M)
    program = next(each for each in PROGRAMS if name.startswith(each))
    lines = [re.split(r" {3,}| [|>] ", line)[0] for line in found if line.startswith(name)]
    return [shlex.split(line.removeprefix(program), comments=True) for line in lines]


def test_no_example_is_of_a_command_that_is_no_more() -> None:
    assert EXAMPLES.keys() - FOUND.keys() == set()


@pytest.mark.parametrize("name", FOUND)
def test_help_has_examples_that_parse(name: str) -> None:
    top, parser = FOUND[name]
    found = examples(name, parser)
    assert found, f"`{name} --help` has no line that begins with two spaces and `{name}`"
    for words in found:
        with contextlib.suppress(SystemExit):
            top.parse_args(words)
            continue
        pytest.fail(f"the example does not parse: {words}")
