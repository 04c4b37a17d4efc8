"""Encode and decode ``findings.json``, in which the usage exporter reports to the node process.

The exporter reads processes of tenants, so the node process takes its file as it would take a tenant's: every list and
text is cut to its bound, invalid entries are omitted, and a file that is not a JSON object counts as damaged.
"""

from typing import Final

from msgspec import json

from dra_driver.core.model.usage_findings import UsageFindings
from dra_driver.core.wire import from_file, to_wire

VERSION: Final = 1
FOLDER, FILE = "findings", "findings.json"
"""In the directory ``usage`` of the driver's directory; the exporter may write only this directory."""
LOCK: Final = "driver.lock"
"""In the same directory: the exporter holds a shared lock on it while it has the NVIDIA driver open."""
MAX_BYTES: Final = 2**20
RENEW_S: Final = 60.0
"""Seconds between rewrites of a file with content; an empty file is written only on a change."""


def encode(findings: UsageFindings) -> bytes:
    return json.encode({"version": VERSION} | to_wire(findings)) + b"\n"


def decode(content: bytes) -> UsageFindings:
    """Raises ConfigurationError for other content."""
    return from_file(UsageFindings, content, FILE, version=VERSION, max_bytes=MAX_BYTES)
