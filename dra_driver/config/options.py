"""Map a settings class to command line flags and environment variables, with errors that name both.

Order of precedence: flag, environment, default. An empty environment variable counts as unset, because manifests often
have empty ones. Settings are plain dataclasses: pydantic would cost 9 MiB and 80 ms in every node process.
"""

import argparse
import dataclasses
import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import PurePosixPath
from typing import Any, TypeVar, get_args

from msgspec import Struct

from dra_driver.core.errors import ConfigurationError
from dra_driver.core.telemetry.logs import LogFormat, LogLevel
from dra_driver.core.text import quoted

Settings = TypeVar("Settings")

_KEY = "option"
_SWITCH = "true|false"
_SUBDOMAIN = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")


class Flag(Struct, frozen=True, kw_only=True):
    """One setting as a command line flag. ``group`` is its heading in ``--help``, ``env`` its environment variable."""

    field: str
    group: str
    metavar: str
    help: str
    parse: Callable[[str], object]
    env: str
    default: str
    required: bool

    @property
    def flag(self) -> str:
        return flag_name(self.field)

    def __str__(self) -> str:
        return f"{self.flag} ({self.env})"


def setting(
    group: str,
    metavar: str,
    about: str,
    default: object = dataclasses.MISSING,
    *,
    parse: Callable[[str], object] = str,
    env: str = "",
) -> Any:
    """A field of a settings class; without a default the setting is required.

    ``parse`` converts the text, or raises ValueError with the expected form. ``env`` is by default the name of the
    field in capitals.
    """
    metadata = {_KEY: {"group": group, "metavar": metavar, "help": about, "parse": parse, "env": env}}
    if default is dataclasses.MISSING:
        return dataclasses.field(metadata=metadata)
    return dataclasses.field(default=default, metadata=metadata)


def switch(group: str, about: str, default: bool) -> Any:
    """``true`` or ``false``, in any case of letters: manifests have both."""
    return setting(group, _SWITCH, about, default, parse=_switch)


def path(group: str, metavar: str, about: str, default: str | None, *, env: str = "") -> Any:
    return setting(group, metavar, about, default, parse=absolute, env=env)


def http_endpoint(group: str) -> Any:
    """The setting HTTP_ADDR; empty by default."""
    about = "address that serves /metrics, /healthz and /readyz; none if empty"
    return setting(group, "HOST:PORT", about, "", parse=http_addr)


def format_of_logs(group: str) -> Any:
    return setting(group, "FORMAT", "text (key=value) or json", "text", parse=one_of(*get_args(LogFormat)))


def level_of_logs(group: str) -> Any:
    return setting(group, "LEVEL", "debug, info, warning or error", "info", parse=one_of(*get_args(LogLevel)))


def absolute(text: str) -> str:
    """An absolute path without repeated slashes."""
    if not text.startswith("/") or "\0" in text:
        raise ValueError("expected an absolute path")
    return str(PurePosixPath(text))


def http_addr(text: str) -> str:
    """HOST:PORT, :PORT, or nothing."""
    host, colon, port = text.rpartition(":")
    if text and not (colon and port.isascii() and port.isdigit() and int(port) < 65536 and "/" not in host):
        raise ValueError("expected HOST:PORT or :PORT, such as :8080 or 127.0.0.1:8080, or nothing to serve no HTTP")
    return text


def one_of(*choices: str) -> Callable[[str], str]:
    """A parser that accepts only these texts."""

    def parse(text: str) -> str:
        if text not in choices:
            raise ValueError(f"expected one of {', '.join(choices)}")
        return text

    return parse


def subdomain(limit: int, example: str) -> Callable[[str], str]:
    """A parser of DNS subdomains of at most ``limit`` characters."""

    def parse(text: str) -> str:
        if len(text) > limit or not _SUBDOMAIN.fullmatch(text):
            raise ValueError(f"expected a DNS subdomain of at most {limit} lower-case characters, such as {example}")
        return text

    return parse


def whole(least: int, most: int) -> Callable[[str], int]:
    """A parser of whole numbers in a range, both ends included."""

    def parse(text: str) -> int:
        number = int(text) if text.isascii() and text.isdigit() and len(text) <= 8 else -1
        if not least <= number <= most:
            raise ValueError(f"expected a whole number from {least} to {most}")
        return number

    return parse


def flags_of(settings: type[Any]) -> list[Flag]:
    """The settings in the order of their definition."""
    return [_flag(field) for field in dataclasses.fields(settings)]


def flag_name(field: str) -> str:
    """``node_name`` as ``--node-name``."""
    return "--" + field.replace("_", "-")


def add_flags(parser: argparse.ArgumentParser, flags: Iterable[Flag], *, bare_switches: bool = False) -> None:
    """Add one flag for each setting, below the heading of its group. With ``bare_switches`` a flag of ``switch`` may
    stand without a value and means true."""
    groups: dict[str, argparse._ArgumentGroup] = {}
    for flag in flags:
        if flag.group not in groups:
            groups[flag.group] = parser.add_argument_group(flag.group)
        default = " (required)" if flag.required else f" (default: {flag.default})" if flag.default else ""
        about = f"{flag.help}{default} [{flag.env}]".replace("%", "%%")
        bare: dict[str, Any] = {"nargs": "?", "const": "true"} if bare_switches and flag.metavar == _SWITCH else {}
        groups[flag.group].add_argument(flag.flag, dest=flag.field, metavar=flag.metavar, help=about, **bare)


def load(settings: type[Settings], given: Mapping[str, str | None], environ: Mapping[str, str]) -> Settings:
    """Build ``settings`` from flags (``given``, by field name, None when absent) and ``environ``.

    Raises ConfigurationError with one sentence for each wrong setting, naming flag and variable, also for a ValueError
    of ``__post_init__``.
    """
    values: dict[str, object] = {}
    wrong: list[str] = []
    for flag in flags_of(settings):
        text = given.get(flag.field)
        if text is None:
            text = environ.get(flag.env) or None
        try:
            if text is not None:
                values[flag.field] = flag.parse(text)
            elif flag.required:
                wrong.append(f"{flag} is missing")
        except ValueError as error:
            wrong.append(f"{flag}: {quoted(str(text), 200)}: {error}")
    if wrong:
        raise ConfigurationError("; ".join(wrong))
    try:
        return settings(**values)
    except ValueError as error:
        raise ConfigurationError(str(error)) from error


def _flag(field: "dataclasses.Field[Any]") -> Flag:
    required = field.default is dataclasses.MISSING
    return Flag(
        field=field.name,
        default="" if required or field.default in (None, False) else str(field.default),
        required=required,
        **{**field.metadata[_KEY], "env": field.metadata[_KEY]["env"] or field.name.upper()},
    )


def _switch(text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise ValueError("expected true or false")
    return text.lower() == "true"
