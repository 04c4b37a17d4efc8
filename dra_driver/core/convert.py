"""`msgspec.convert` and `msgspec.json.decode` for processes with several threads.

msgspec 0.22 builds the type information of a struct at its first use and does not guard it: a second thread that uses
the struct or a part of it at the same time reads a null pointer, which ends the process (SIGSEGV). All uses are here.
"""

import threading
from typing import Any, Final, TypeVar

import msgspec

T = TypeVar("T")
_built: Final[set[object]] = set()
_building: Final = threading.Lock()


def convert(
    value: object, kind: type[T], *, strict: bool = True, str_keys: bool = False, from_attributes: bool = False
) -> T:
    """As `msgspec.convert`. Raises msgspec.ValidationError."""
    _build(kind)
    return msgspec.convert(value, kind, strict=strict, str_keys=str_keys, from_attributes=from_attributes)  # noqa: TID251


def decode_json(data: bytes | str, kind: type[T]) -> T:
    """As `msgspec.json.decode` with a type. Raises msgspec.DecodeError."""
    _build(kind)
    return msgspec.json.decode(data, type=kind)  # noqa: TID251


def _build(kind: Any) -> None:
    if kind not in _built:
        with _building:
            msgspec.json.Decoder(kind)  # noqa: TID251
            _built.add(kind)
