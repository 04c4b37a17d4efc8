"""Remembers over a restart that something else offers this node's GPUs.

A device plugin that restarts shows nothing in the Node's allocatable for some seconds. A node process that starts just
then would offer the same GPUs.
"""

import json
import logging
from collections.abc import Collection
from pathlib import Path
from typing import Final

from dra_driver.core.files import replace_file

log = logging.getLogger(__name__)

NAME: Final = "second-publisher.json"
MAX_BYTES: Final = 64 * 1024


class SecondPublisherFile:
    """A file in ``folder`` that exists while devices are withdrawn. No method raises: only a restart needs the file."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / NAME

    def read(self) -> frozenset[str] | None:
        """The other drivers that were found, none for a device plugin alone; None when nothing was found.

        A file that cannot be read counts as one that names no driver.
        """
        try:
            with self._path.open("rb") as file:
                found = json.loads(file.read(MAX_BYTES))["drivers"]
            return frozenset(text for text in found if isinstance(text, str))
        except FileNotFoundError:
            return None
        except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
            log.warning("the note of a second publisher cannot be read", extra={"file": self._path, "reason": error})
            return frozenset()

    def write(self, drivers: Collection[str]) -> None:
        """Something else offers the GPUs, these drivers among it."""
        try:
            replace_file(self._path, json.dumps({"version": 1, "drivers": sorted(drivers)}).encode())
        except OSError as error:
            log.warning("a second publisher cannot be noted; a restart forgets it", extra={"reason": error})

    def remove(self) -> None:
        """Nothing else offers them any more."""
        try:
            self._path.unlink(missing_ok=True)
        except OSError as error:
            log.warning("the note of a second publisher stays; a restart waits for it", extra={"reason": error})
