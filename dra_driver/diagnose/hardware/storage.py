"""Reports as files and as lines of a log: reading, writing (0600), and packing between two markers."""

import base64
import binascii
import gzip
import hashlib
import json
import textwrap
import zlib
from pathlib import Path
from typing import Final

from dra_driver.core.errors import ConfigurationError, StorageError
from dra_driver.core.files import replace_file
from dra_driver.diagnose.hardware.values import HardwareReport

BEGIN: Final = "----- BEGIN HARDWARE CHECK REPORT"
END: Final = "----- END HARDWARE CHECK REPORT -----"
MAX_BYTES: Final = 32 << 20
_COLUMNS: Final = 1000


def write(path: Path, report: HardwareReport) -> None:
    """Write the report as JSON, readable by its owner alone. Raises StorageError."""
    try:
        replace_file(path.absolute(), (json.dumps(report.to_wire(), indent=1) + "\n").encode())
    except OSError as error:
        raise StorageError(f"cannot write the report {path}: {error.strerror}") from error


def load(path: Path) -> HardwareReport:
    """Read a report. Raises ConfigurationError when it is not one."""
    try:
        with path.open("rb") as file:
            data = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise ConfigurationError(f"cannot read the report {path}: {error.strerror}") from error
    if len(data) > MAX_BYTES:
        raise ConfigurationError(f"{path} is larger than {MAX_BYTES >> 20} MiB: this is not a report of hardware-check")
    return parsed(data, str(path))


def parsed(data: bytes, source: str) -> HardwareReport:
    """The report in ``data``. Raises ConfigurationError."""
    try:
        document = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise ConfigurationError(f"{source} is not JSON: {error}") from error
    try:
        return HardwareReport.from_wire(document)
    except ConfigurationError as error:
        raise ConfigurationError(f"{source}: {error}") from error


def pack(report: HardwareReport) -> str:
    """The report as lines of text: compressed, so that it fits into a log, with a checksum on the first line."""
    data = json.dumps(report.to_wire(), separators=(",", ":")).encode()
    text = base64.b64encode(gzip.compress(data, mtime=0)).decode()
    digest = hashlib.sha256(data).hexdigest()
    return "\n".join((f"{BEGIN} {digest} -----", *textwrap.wrap(text, _COLUMNS), END))


def unpack(log: str) -> HardwareReport | None:
    """The last complete report in a log; None without one. Raises ConfigurationError for a damaged one."""
    _, begin, rest = log.rpartition(BEGIN)
    text, end, _ = rest.partition(END)
    if not begin or not end:
        return None
    head, _, body = text.partition("\n")
    try:
        packed = base64.b64decode("".join(body.split()), validate=True)
        data = _unzipped(packed)
    except (binascii.Error, OSError, EOFError, zlib.error, ValueError) as error:
        raise ConfigurationError(f"the report in the log is damaged: {error}") from error
    if hashlib.sha256(data).hexdigest() != head.partition(" -----")[0].strip():
        raise ConfigurationError("the report in the log is damaged: its checksum is another one")
    return parsed(data, "the report in the log")


def without_report(log: str) -> str:
    """The log's other lines."""
    before, _, rest = log.partition(BEGIN)
    return before + rest.partition(END)[2].removeprefix("\n")


def _unzipped(packed: bytes) -> bytes:
    stream = zlib.decompressobj(wbits=31)
    data = stream.decompress(packed, MAX_BYTES)
    if stream.unconsumed_tail:
        raise ValueError(f"it is larger than {MAX_BYTES >> 20} MiB")
    return data
