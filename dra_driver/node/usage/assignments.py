"""``assignments.json``, in which the node process reports the devices of claims to the exporter. No I/O.

The exporter does not trust the file: lists and texts are cut to their bounds, and invalid entries are dropped. A file
that is not a JSON object of this version counts as damaged; the exporter keeps the last valid one.
"""

from typing import Final

from msgspec import json

from dra_driver.core.wire import from_file
from dra_driver.node.usage.values import VERSION, Assignments

FOLDER: Final = "usage"
"""In the driver's directory: the files that node process and usage exporter exchange."""
FILE: Final = "assignments.json"
MAX_BYTES: Final = 16 * 2**20


def encode(assignments: Assignments) -> bytes:
    return json.encode(assignments) + b"\n"


def decode(content: bytes) -> Assignments:
    """Raises ConfigurationError, with the reason, for other content."""
    return from_file(Assignments, content, FILE, version=VERSION, max_bytes=MAX_BYTES)
