"""Map a settings class to command line flags and environment variables, with errors that name both.

Order of precedence: flag, environment, default. An environment variable that is set but empty counts as not set,
because manifests often have empty ones.

Settings are plain dataclasses. pydantic, which describes claims and policies, would cost 9 MiB and 80 ms in every node
process.
"""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from msgspec import Struct

from dra_driver.core.errors import ConfigurationError
from dra_driver.core.text import quoted

Settings = TypeVar("Settings")
T = TypeVar("T")

_KEY = "option"


class Option(Struct, frozen=True):
    """``group`` is the heading in ``--help``, ``env`` the environment variable of the flag.

    ``parse`` converts the text to the value, or raises ValueError with the expected form.
    """

    group: str
    env: str
    metavar: str
    help: str
    parse: Callable[[str], Any] = str


class Flag(Struct, frozen=True, kw_only=True):
    """One setting as a command line flag."""

    field: str
    flag: str
    option: Option
    default: str
    required: bool


def setting(option: Option, default: Any = dataclasses.MISSING) -> Any:
    """A field of a settings class; without a default the setting is required."""
    if default is dataclasses.MISSING:
        return dataclasses.field(metadata={_KEY: option})
    return dataclasses.field(default=default, metadata={_KEY: option})


def flags_of(settings: type[Any]) -> list[Flag]:
    """The settings in the order of their definition."""
    return [_flag(field) for field in dataclasses.fields(settings)]


def flag_name(field: str) -> str:
    """``node_name`` as ``--node-name``."""
    return "--" + field.replace("_", "-")


def load(settings: type[Settings], given: Mapping[str, str | None], environ: Mapping[str, str]) -> Settings:
    """Build ``settings`` from flags (``given``, by field name, None when absent) and ``environ``.

    Raises ConfigurationError with one sentence for each wrong setting, naming flag and variable. A ValueError of the
    class's ``__post_init__`` is translated, too.
    """
    values: dict[str, Any] = {}
    wrong: list[str] = []
    for flag in flags_of(settings):
        text = given.get(flag.field)
        if text is None:
            text = environ.get(flag.option.env) or None
        try:
            if text is not None:
                values[flag.field] = flag.option.parse(text)
            elif flag.required:
                wrong.append(f"{_name(flag)} is missing")
        except ValueError as error:
            wrong.append(f"{_name(flag)}: {quoted(str(text), 200)}: {error}")
    if wrong:
        raise ConfigurationError("; ".join(wrong))
    try:
        return settings(**values)
    except ValueError as error:
        raise ConfigurationError(str(error)) from error


def _flag(field: "dataclasses.Field[Any]") -> Flag:
    required = field.default is dataclasses.MISSING
    default = "" if required or field.default in (None, False) else str(field.default)
    return Flag(
        field=field.name, flag=flag_name(field.name), option=field.metadata[_KEY], default=default, required=required
    )


def _name(flag: Flag) -> str:
    return f"{flag.flag} ({flag.option.env})"
