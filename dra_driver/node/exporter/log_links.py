"""Reads the names of the kubelet's links to logs. No log is opened."""

import os
from typing import Final

from dra_driver.node.usage.containers import MAX_LINKS, LogIndex, index
from dra_driver.node.usage.sources import Unread

_Seen = tuple[int, int]
_EMPTY: Final = index(())


class LogLinks:
    """Of one thread. The folder is listed again when a link came or went."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._seen: _Seen | None = None
        self._index = _EMPTY

    def read(self) -> LogIndex | Unread:
        """The containers that the links name."""
        try:
            status = os.stat(self._folder)  # noqa: PTH116 - at each look
            seen = (status.st_ino, status.st_mtime_ns)
            if seen != self._seen:
                self._index, self._seen = index(self._links()), seen
        except OSError as error:
            self._seen = None
            return Unread(
                reason=f"the kubelet's links to logs in {self._folder} cannot be listed: {error.strerror}; mount the "
                "folder read-only and set --log-dir (LOG_DIR)"
            )
        return self._index

    def _links(self) -> list[tuple[str, str]]:
        found: list[tuple[str, str]] = []
        with os.scandir(self._folder) as entries:
            for entry in entries:
                if len(found) < MAX_LINKS and entry.name.endswith(".log"):
                    try:
                        found.append((entry.name, os.readlink(entry.path)))  # noqa: PTH115 - hundreds of them
                    except OSError:  # no link, or it has gone
                        continue
        return found
