"""How one setting appears to people: a flag, an environment variable, a group and a sentence.

Owns the mapping between a settings model and its flags and variables, and the wording of errors about them. Refuses to
know argparse (``cli/``) and what a setting is for (``settings.py``). Order of precedence: flag, environment, default.
An environment variable that is set but empty counts as not set, because manifests often carry empty ones.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from dra_driver.errors import ConfigurationError

Model = TypeVar("Model", bound=BaseModel)


@dataclass(frozen=True, slots=True)
class Option:
    """Metadata of a model's field. ``group`` is the heading in ``--help``, ``env`` the environment twin of the flag."""

    group: str
    env: str
    metavar: str
    help: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Flag:
    """One setting as a command line offers it."""

    field: str
    flag: str
    option: Option
    default: str
    required: bool


def flags_of(model: type[BaseModel]) -> list[Flag]:
    """The model's settings in the order of their definition."""
    found = []
    for name, field in model.model_fields.items():
        option = next(item for item in field.metadata if isinstance(item, Option))
        default = "" if field.is_required() or field.default is None else str(field.default)
        found.append(
            Flag(field=name, flag=flag_name(name), option=option, default=default, required=field.is_required())
        )
    return found


def flag_name(field: str) -> str:
    """``node_name`` as ``--node-name``."""
    return "--" + field.replace("_", "-")


def load(model: type[Model], given: Mapping[str, str | None], environ: Mapping[str, str]) -> Model:
    """Builds ``model`` from flags (``given``, by field name, None when absent) and ``environ``.

    Raises ConfigurationError with one sentence for each wrong setting, naming flag and variable.
    """
    values: dict[str, str] = {}
    for flag in flags_of(model):
        value = given.get(flag.field)
        if value is None:
            value = environ.get(flag.option.env) or None
        if value is not None:
            values[flag.field] = value
    try:
        return model.model_validate(values)
    except ValidationError as error:
        known = {flag.field: flag for flag in flags_of(model)}
        raise ConfigurationError("; ".join(_sentence(dict(item), known) for item in error.errors())) from error


def _sentence(item: Mapping[str, Any], known: Mapping[str, Flag]) -> str:
    """One pydantic error in our words, without its type and documentation address."""
    flag = known.get(str(item["loc"][0])) if item["loc"] else None
    message = str(item["msg"]).removeprefix("Value error, ")
    if flag is None:
        return message
    name = f"{flag.flag} ({flag.option.env})"
    return f"{name} is missing" if item["type"] == "missing" else f"{name}: {_seen(item['input'])}: {message}"


def _seen(value: Any) -> str:
    text = str(value)
    return repr(text if len(text) <= 200 else text[:200] + "…")
