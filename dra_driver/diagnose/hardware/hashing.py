"""Hash what identifies a machine in a report: UUIDs, serial numbers, host names.

Within one report a value always has the same hash, so that facts can be compared; the salt is drawn for each report and
kept nowhere, so that two reports cannot be compared and values cannot be guessed. The form stays: a hashed UUID still
looks like one. PCI addresses and minors stay, because they say which slot and not which machine.
"""

import hashlib
import hmac
import re
import secrets
from typing import Any, Final

_UUID: Final = re.compile(r"[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}")
_SECRET_KEYS: Final = re.compile(r"serial|clusterUuid|ibGuid|pdi\b|hostname|GetPdi|BoardId\b", re.IGNORECASE)
"""Keys whose whole value is hashed, whatever its form."""
_MIN_NAME: Final = 4  # a host name of "a" would be found in every word


class Hasher:
    """Hashes one report. ``names`` are host names of the machine."""

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

        A list is one value of many bytes: each has a hash of its own in each list, so that known ones say nothing.
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
