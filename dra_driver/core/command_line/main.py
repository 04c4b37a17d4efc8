"""Run a subcommand of ``dra-driver``; each is imported only when it is used, so that the node process stays small. Exit
statuses: 0 done, 1 failed, 2 wrong usage or configuration (one sentence on stderr), 130 interrupted, 141 the reader
closed the output."""

import argparse
import contextlib
import difflib
import importlib
import os
import re
import signal
import sys
from collections.abc import Container, Mapping, Sequence
from io import TextIOWrapper
from types import FrameType, ModuleType
from typing import Any, Final, NoReturn

from dra_driver.core.errors import ConfigurationError, DraError, ForbiddenError

ABOUT: Final = "A Kubernetes DRA driver for NVIDIA GPUs."
# Name -> its module, and its help line. A module has `add_arguments(parser)`, `run(args) -> int`, and for the help
# DESCRIPTION and EPILOG where it has something to say.
SUBCOMMANDS: Final = {
    "kubelet-plugin": ("dra_driver.node.process.main", "run the driver on a node"),
    "mps-host": ("dra_driver.hardware.sharing.main", "run this node's MPS daemons"),
    "exporter": ("dra_driver.node.exporter.main", "run the usage exporter of a node"),
    "controller": ("dra_driver.controller.main", "run the cluster-wide controller"),
    "sim": ("dra_driver.kubectl.commands.sim", "run an embedded cluster with simulated GPUs on this machine"),
    "hardware-check": (
        "dra_driver.diagnose.hardware.main",
        "compare this machine's GPUs with the driver's assumptions",
    ),
    "conformance": ("dra_driver.kubectl.commands.conformance", "test a DRA driver as a kubelet uses it"),
    "doctor": ("dra_driver.diagnose.doctor.main", "say which layer is broken on this node"),
    "state": ("dra_driver.diagnose.node_state.main", "show and check the driver's state on this node"),
    "cleanup": ("dra_driver.diagnose.node_state.cleanup_main", "remove every trace of the driver from this node"),
    "policy": ("dra_driver.diagnose.policy_check", "check GpuPolicy files"),
    "version": ("dra_driver.core.command_line.version", "print the version"),
}

Subcommands = Mapping[str, tuple[str, str]]
Groups = Mapping[str, Sequence[str]]
"""Titles of the help, and the commands below each."""
GROUPS: Final = {
    "Processes": ("kubelet-plugin", "mps-host", "exporter", "controller"),
    "Check this node": ("doctor", "state", "cleanup", "hardware-check", "policy", "conformance"),
    "Try": ("sim", "version"),
}

# Optional top-level packages (pyproject.toml) -> the extra that installs them. A node image has the extra "node" only.
# Packages of user commands belong to no extra.
EXTRAS: Final = {
    **dict.fromkeys(("kubernetes", "urllib3", "re2", "jinja2", "starlette", "uvicorn"), ""),
    **dict.fromkeys(("grpc", "google", "pynvml"), "node"),
    **dict.fromkeys(("trustme", "dra_driver"), "sim"),  # the image lacks rooms (scripts/compile_image.py)
}


def main(argv: Sequence[str] | None = None) -> int:
    arguments = list(sys.argv[1:] if argv is None else argv)
    return execute("dra-driver", ABOUT, SUBCOMMANDS, arguments, GROUPS)


def execute(program: str, about: str, subcommands: Subcommands, arguments: list[str], groups: Groups) -> int:
    """Parses ``arguments`` with the parser of the subcommand that they name, and runs it."""
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # names can have characters that the locale lacks
    arguments = _without_help_and_version(arguments)
    wanted = next((argument for argument in arguments if not argument.startswith("-")), None)
    try:
        parser, loaded = parser_of(program, about, subcommands, {wanted}, groups)
        if wanted is None and not set(arguments) - {"-h", "--help"}:
            print(parser.format_help(), end="")
            return 0
        if wanted is not None and wanted not in subcommands:
            near = difflib.get_close_matches(wanted, subcommands, 1)
            hint = f"did you mean {near[0]!r}?" if near else f"see {program} --help"
            parser.error(f"unknown command {wanted[:40]!r} for {program!r}; {hint}")
        args, unknown = parser.parse_known_args(arguments)
        if unknown:
            parser.error(
                f"unrecognized arguments: {' '.join(unknown)}{_near_option(loaded[args.command], unknown)}; see"
                f" {program} {args.command} --help"
            )
        status = int(loaded[args.command].run(args))
        sys.stdout.flush()
    except ConfigurationError as error:
        return _failed(program, str(error), 2)
    except ForbiddenError as error:
        from dra_driver.core.request_rights import missing_right

        return _failed(program, f"{error}\n{program}: {missing_right(error)}", 1)
    except DraError as error:
        return _failed(program, str(error), 1)
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package not in EXTRAS:
            raise
        return _failed(program, missing(str(wanted), str(error.name)), 1)
    except KeyboardInterrupt:
        _leave_at_interrupt()
        return INTERRUPTED
    except BrokenPipeError:
        # The reader has closed the output, as `head` does. Python would flush again at exit and print an error.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    return status


INTERRUPTED: Final = 130


def _failed(program: str, message: str, status: int) -> int:
    with contextlib.suppress(BrokenPipeError):
        sys.stdout.flush()
        print(f"{program}: {message}", file=sys.stderr)
    return status


def _leave_at_interrupt() -> None:
    """End without a traceback at an interrupt during the end of the process."""
    signal.signal(signal.SIGINT, lambda *_: os._exit(INTERRUPTED))


def _without_help_and_version(arguments: list[str]) -> list[str]:
    """Replace ``help COMMAND`` and ``--version`` as kubectl and other programs have them."""
    if arguments[:1] == ["help"]:
        return [*arguments[1:], "--help"]
    return ["version"] if arguments[:1] == ["--version"] else arguments


class Parser(argparse.ArgumentParser):
    """Adds the command's examples to its help. No option can be shortened: a later version could add one with the same
    start."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**{"allow_abbrev": False, **settings})

    overview: Groups | None = None

    def error(self, message: str) -> NoReturn:
        """Add the nearest choice to a message about an invalid one."""
        found = re.search(r"invalid choice: '([^']*)' \(choose from (.*)\)", message)
        near = difflib.get_close_matches(found[1], re.findall(r"[^', ]+", found[2]), 1) if found else ()
        super().error(f"{message}; did you mean {near[0]!r}?" if near else message)

    def format_help(self) -> str:
        if self.overview:
            return self._overview(self.overview)
        from dra_driver.core.command_line.examples import with_examples

        epilog, formatter = self.epilog, self.formatter_class
        self.epilog, self.formatter_class = with_examples(self.prog, epilog), _Formatter
        try:
            return super().format_help()
        finally:
            self.epilog, self.formatter_class = epilog, formatter

    def _overview(self, groups: Groups) -> str:
        """Return the commands in groups."""
        (commands,) = (each for each in self._actions if isinstance(each, argparse._SubParsersAction))
        about = {each.dest: each.help or "" for each in commands._choices_actions}
        width = max(map(len, about))
        grouped = (
            "\n".join([f"{title}:", *(f"  {name:<{width}}  {about[name]}" for name in names)])
            for title, names in groups.items()
        )
        usage = f"{self.prog} COMMAND --help shows the options and examples of a command."
        return "\n\n".join([f"usage: {self.prog} COMMAND ...", str(self.description), *grouped, usage]) + "\n"


class _Formatter(argparse.HelpFormatter):
    """Fills paragraphs of one line to the width of the terminal, and leaves those with lines of their own."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        if "\n" in text.strip():
            return "".join(f"{indent}{line}" for line in text.splitlines(keepends=True))
        return super()._fill_text(text, width, indent)


def parser_of(
    program: str,
    about: str,
    subcommands: Subcommands,
    wanted: Container[str | None],
    groups: Groups = {},  # noqa: B006 - never changed
) -> tuple[argparse.ArgumentParser, dict[str, ModuleType]]:
    """Return the program's parser and the modules of ``wanted``. Other subcommands have only a line of help."""
    parser = Parser(prog=program, description=about)
    parser.overview = groups
    known = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    loaded = {}
    for name, (path, line) in subcommands.items():
        if name not in wanted:
            known.add_parser(name, help=line)
            continue
        module = loaded[name] = importlib.import_module(path)
        description, epilog = (getattr(module, part, None) for part in ("DESCRIPTION", "EPILOG"))
        module.add_arguments(known.add_parser(name, help=line, description=description, epilog=epilog))
    return parser, loaded


def _near_option(module: ModuleType, unknown: Sequence[str]) -> str:
    parser = Parser()
    module.add_arguments(parser)
    option = next((each.partition("=")[0] for each in unknown if each.startswith("-")), "")
    near = difflib.get_close_matches(option, parser._option_string_actions, 1)
    return f"; did you mean {near[0]}?" if near else ""


def missing(command: str, module: str) -> str:
    """The message for a package, or a room of this project, that this installation lacks."""
    package = module.partition(".")[0]
    named = module if package == "dra_driver" else package
    extra = f"'.[{EXTRAS[package]}]'" if EXTRAS[package] else "."
    return (
        f"{command} needs the package {named}, which is not installed here (the image for nodes has only what node "
        "processes and the controller import, and an installation for people only what kubectl dra imports): in a "
        f"checkout of this project, run pip install {extra}"
    )


if __name__ == "__main__":
    sys.exit(main())


def interrupt_once() -> None:
    """The first SIGINT or SIGTERM raises KeyboardInterrupt; later ones must not interrupt cleaning up."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _interrupt)


def _interrupt(_number: int, _frame: FrameType | None) -> None:
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    raise KeyboardInterrupt
