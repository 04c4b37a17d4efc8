"""The file with the GPUs that were found last: JSON, one entry per GPU; a wrong entry is left out with a log line.

``{"version": 1, "gpus": [{"goneSince": 1763805600.0, "gpu": {fields of model.gpu.Gpu}}]}``
"""

import json
import logging
import types
import typing
from collections.abc import Iterable, Mapping
from dataclasses import is_dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final

from msgspec import Struct
from msgspec.structs import asdict, fields

from dra_driver.core.model.gpu import Gpu
from dra_driver.kube.published import limits

log = logging.getLogger(__name__)

VERSION: Final = 1
MAX_BYTES: Final = 4 * 2**20
MAX_GPUS: Final = 256
_MINORS: Final = range(1024)
_LATEST: Final = 4e9
"""Seconds of the Unix epoch, in 2096. A time that no calendar has would keep every slice from being published."""


class _Entry(Struct, frozen=True, kw_only=True):
    gpu: Gpu
    goneSince: float | None = None  # noqa: N815 - the name in the file

    def __post_init__(self) -> None:
        if self.gpu.minor not in _MINORS or not limits.fits(self.gpu.uuid):
            raise ValueError(f"minor {self.gpu.minor} or UUID {self.gpu.uuid[:80]!r} would make a slice invalid")
        if self.goneSince is not None and not 0 <= self.goneSince <= _LATEST:  # false for NaN, too
            raise ValueError(f"goneSince is {self.goneSince}, expected seconds of the Unix epoch up to {_LATEST:.0f}")


def encode(known: Iterable[tuple[Gpu, float | None]]) -> bytes:
    """The file's content."""
    gpus = [{"goneSince": since, "gpu": asdict(gpu)} for gpu, since in known]
    return json.dumps({"version": VERSION, "gpus": gpus}, separators=(",", ":")).encode()


def read(path: Path) -> list[tuple[Gpu, float | None]]:
    """The GPUs in the file; none when it does not exist or cannot be used."""
    try:
        with path.open("rb") as file:
            data = file.read(MAX_BYTES + 1)
        document = json.loads(data) if len(data) <= MAX_BYTES else None
        entries = document["gpus"] if isinstance(document, dict) and document.get("version") == VERSION else None
    except FileNotFoundError:
        return []
    except (OSError, ValueError, KeyError, RecursionError) as error:
        log.warning("the file of known GPUs cannot be read; it is written anew", extra={"file": path, "reason": error})
        return []
    if not isinstance(entries, list):
        log.warning("the file of known GPUs has another form; it is written anew", extra={"file": path})
        return []
    return [found for entry in entries[:MAX_GPUS] if (found := _entry(entry, path)) is not None]


def _entry(entry: object, path: Path) -> tuple[Gpu, float | None] | None:
    try:
        found: _Entry = decoded(_Entry, entry)
    except (KeyError, TypeError, ValueError) as error:
        log.warning("a known GPU in the file cannot be used", extra={"file": path, "reason": error})
        return None
    return found.gpu, found.goneSince


def decoded(kind: Any, value: Any) -> Any:
    """``value`` (JSON) as ``kind``: a dataclass, a tuple, a union with None, or a plain type. Raises TypeError,
    ValueError for an enum's value, and KeyError for a field that is missing and has no default."""
    kind = getattr(kind, "__supertype__", kind)
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin in (types.UnionType, typing.Union):
        return None if value is None else decoded(arguments[0], value)
    if origin is tuple:
        return _tuple(arguments, value)
    if is_dataclass(kind):
        return _object(kind, value)
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if isinstance(value, str) and issubclass(kind, str):
        return kind(value)
    if type(value) is not kind:
        raise TypeError(f"expected {kind.__name__}, found {type(value).__name__}")
    return value


def _tuple(arguments: tuple[Any, ...], value: Any) -> tuple[Any, ...]:
    if not isinstance(value, list):
        raise TypeError(f"expected a list, found {type(value).__name__}")
    kinds = [arguments[0]] * len(value) if arguments[-1] is Ellipsis else arguments
    if len(kinds) != len(value):
        raise TypeError(f"expected {len(kinds)} values, found {len(value)}")
    return tuple(decoded(kind, each) for kind, each in zip(kinds, value, strict=True))


def _object(kind: Any, value: Any) -> Any:
    if not isinstance(value, Mapping):
        raise TypeError(f"expected an object, found {type(value).__name__}")
    hints = _hints(kind)
    given = {field.name: decoded(hints[field.name], value[field.name]) for field in fields(kind) if field.name in value}
    return kind(**given)


@cache
def _hints(kind: Any) -> dict[str, Any]:
    return typing.get_type_hints(kind)
