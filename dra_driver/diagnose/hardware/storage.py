"""Write and read reports as files and as lines of a log, with hashed UUIDs, serial numbers and host names.

Files are readable only by their owner (0600); a log has the report packed between two markers. Within one report equal
values have equal hashes, and a hashed UUID keeps its form. The salt is random for each report and not stored, so
values cannot be guessed or compared between reports. PCI addresses and minors stay: they name a slot, not a machine.
"""

import base64
import binascii
import gzip
import hashlib
import hmac
import json
import re
import secrets
import textwrap
import zlib
from pathlib import Path
from typing import Any, Final

from dra_driver.core.errors import ConfigurationError, StorageError
from dra_driver.core.files import replace_file
from dra_driver.diagnose.hardware.values import HardwareReport

_UUID: Final = re.compile(r"[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}")
_SECRET_KEYS: Final = re.compile(r"serial|clusterUuid|ibGuid|pdi\b|hostname|GetPdi|BoardId\b", re.IGNORECASE)
"""Keys whose whole value is hashed, whatever its form."""
_MIN_NAME: Final = 4  # a host name of "a" would match in every word


class Hasher:
    """Hash one report. ``names`` are host names of the machine."""

    def __init__(self, names: tuple[str, ...] = (), *, salt: bytes | None = None) -> None:
        self._salt = secrets.token_bytes(32) if salt is None else salt
        longest_first = sorted({name for name in names if len(name) >= _MIN_NAME}, key=len, reverse=True)
        self._names = re.compile("|".join(map(re.escape, longest_first)), re.IGNORECASE) if longest_first else None

    def value(self, value: Any) -> Any:
        """A copy of a JSON value with every identifying part hashed, in keys, too."""
        if isinstance(value, dict):
            return {
                self.text(key): self._secret(item) if _SECRET_KEYS.search(key) else self.value(item)
                for key, item in value.items()
            }
        if isinstance(value, list | tuple):
            return [self.value(item) for item in value]
        return self.text(value) if isinstance(value, str) else value

    def text(self, text: str) -> str:
        """The text with UUIDs and host names hashed."""
        text = _UUID.sub(lambda match: self._uuid(match[0]), text)
        return (
            self._names.sub(lambda match: f"host-{self._digest(match[0].lower())[:8]}", text) if self._names else text
        )

    def _secret(self, value: Any, place: str = "") -> Any:
        """Every text and number below a key of `_SECRET_KEYS`; times and codes of an answer stay.

        A list is one value of many bytes: each byte has a separate hash per list, so that known bytes reveal nothing.
        """
        if isinstance(value, dict):
            return {key: item if key in {"ms", "code", "error"} else self._secret(item) for key, item in value.items()}
        if isinstance(value, list | tuple):
            return [self._secret(item, f"{index} of {list(value)} ") for index, item in enumerate(value)]
        if value is None or isinstance(value, bool) or value in ("", 0):
            return value
        return f"hashed-{self._digest(f'{place}{value}')[:12]}"

    def _uuid(self, uuid: str) -> str:
        digest = self._digest(uuid.lower())
        return "-".join((digest[:8], digest[8:12], digest[12:16], digest[16:20], digest[20:32]))

    def _digest(self, text: str) -> str:
        return hmac.new(self._salt, text.encode(), hashlib.sha256).hexdigest()


BEGIN: Final = "----- BEGIN HARDWARE CHECK REPORT"
END: Final = "----- END HARDWARE CHECK REPORT -----"
MAX_BYTES: Final = 32 << 20
_COLUMNS: Final = 1000


def write(path: Path, report: HardwareReport) -> None:
    """Write the report as JSON, readable only by its owner. Raises StorageError."""
    try:
        replace_file(path.absolute(), (json.dumps(report.to_wire(), indent=1) + "\n").encode())
    except OSError as error:
        raise StorageError(f"cannot write the report {path}: {error.strerror}") from error


def load(path: Path) -> HardwareReport:
    """Read a report. Raises ConfigurationError for any other file."""
    try:
        with path.open("rb") as file:
            data = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise ConfigurationError(f"cannot read the report {path}: {error.strerror}", reason="Unreadable") from error
    if len(data) > MAX_BYTES:
        raise ConfigurationError(
            f"{path} is larger than {MAX_BYTES >> 20} MiB: this is not a report of hardware-check", reason="TooLarge"
        )
    return parsed(data, str(path))


def parsed(data: bytes, source: str) -> HardwareReport:
    """The report in ``data``. Raises ConfigurationError."""
    try:
        document = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise ConfigurationError(f"{source} is not JSON: {error}", reason="NotJson") from error
    try:
        return HardwareReport.from_wire(document)
    except ConfigurationError as error:
        raise ConfigurationError(f"{source}: {error}", reason=error.reason) from error


def pack(report: HardwareReport) -> str:
    """The report as lines of text, compressed to fit into a log, with a checksum on the first line."""
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
        raise ConfigurationError(f"the report in the log is damaged: {error}", reason="Damaged") from error
    if hashlib.sha256(data).hexdigest() != head.partition(" -----")[0].strip():
        raise ConfigurationError(
            "the report in the log is damaged: its checksum does not match", reason="WrongChecksum"
        )
    return parsed(data, "the report in the log")


def without_report(log: str) -> str:
    before, _, rest = log.partition(BEGIN)
    return before + rest.partition(END)[2].removeprefix("\n")


def _unzipped(packed: bytes) -> bytes:
    stream = zlib.decompressobj(wbits=31)
    data = stream.decompress(packed, MAX_BYTES)
    if stream.unconsumed_tail:
        raise ValueError(f"it is larger than {MAX_BYTES >> 20} MiB")
    return data
