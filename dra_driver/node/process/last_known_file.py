"""The file with the GPUs that were found last: JSON, one entry per GPU; a wrong entry is skipped with a log line.

``{"version": 1, "gpus": [{"goneSince": 1763805600.0, "gpu": {fields of model.gpu.Gpu}}]}``
"""

import logging
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from msgspec import DecodeError, Raw, Struct
from msgspec.json import decode
from msgspec.json import encode as encoded

from dra_driver.core.model.gpu import Gpu
from dra_driver.kube.published import limits

log = logging.getLogger(__name__)

VERSION: Final = 1
MAX_BYTES: Final = 4 * 2**20
MAX_GPUS: Final = 256
_MINORS: Final = range(1024)
_LATEST: Final = 4e9
"""Seconds of the Unix epoch, in 2096. A time that no calendar has would keep every slice from being published."""


class _Entry(Struct, frozen=True, kw_only=True, rename="camel"):
    gone_since: float | None = None
    gpu: Gpu

    def __post_init__(self) -> None:
        if self.gpu.minor not in _MINORS or not limits.fits(self.gpu.uuid):
            raise ValueError(f"minor {self.gpu.minor} or UUID {self.gpu.uuid[:80]!r} would make a slice invalid")
        if self.gone_since is not None and not 0 <= self.gone_since <= _LATEST:
            raise ValueError(f"goneSince is {self.gone_since}, expected seconds of the Unix epoch up to {_LATEST:.0f}")


class _File(Struct):
    version: int
    gpus: list[Raw]


def encode(known: Iterable[tuple[Gpu, float | None]]) -> bytes:
    """The file's content."""
    gpus = [Raw(encoded({"goneSince": since, "gpu": gpu})) for gpu, since in known]
    return encoded(_File(VERSION, gpus))


def read(path: Path) -> list[tuple[Gpu, float | None]]:
    """The GPUs in the file; none when it does not exist or cannot be used."""
    try:
        document = _document(path)
    except FileNotFoundError:
        return []
    except (OSError, ValueError, DecodeError, RecursionError) as error:
        log.warning("cannot read the file of known GPUs; it will be replaced", extra={"file": path, "reason": error})
        return []
    return [found for entry in document.gpus[:MAX_GPUS] if (found := _entry(entry, path)) is not None]


def _document(path: Path) -> _File:
    with path.open("rb") as file:
        data = file.read(MAX_BYTES + 1)
    if len(data) > MAX_BYTES:
        raise ValueError(f"it has more than {MAX_BYTES} bytes")
    document = decode(data, type=_File)
    if document.version != VERSION:
        raise ValueError(f"it has version {document.version}, expected {VERSION}")
    return document


def _entry(entry: Raw, path: Path) -> tuple[Gpu, float | None] | None:
    try:
        found = decode(entry, type=_Entry)
    except (DecodeError, RecursionError) as error:
        log.warning("cannot use a known GPU of the file", extra={"file": path, "reason": error})
        return None
    return found.gpu, found.gone_since
