"""What the controller hands to the webhook in the folder that both containers of a pod have mounted.

The webhook reads requests that tenants can shape, so it has no token: what it needs of the API server the controller
puts here. Each file is replaced in one step, so a reader sees a whole one.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

SERVING: Final = "serving.pem"
"""A line `EXPIRES` with the time, which OpenSSL skips, then certificate and key. In one file, so that they fit."""
POLICIES: Final = "policies.json"
"""The attributes that GpuPolicy objects add, or null while they are not known."""
EXPIRES: Final = "not-after: "
TIME_FORMAT: Final = "%Y-%m-%dT%H:%M:%SZ"
MAX_BYTES: Final = 4 << 20

Attributes = Mapping[str, Sequence[Mapping[str, Any]]]
"""Name of a policy -> the entries of its ``spec.attributes``."""


def policies_file(attributes: Attributes | None) -> bytes:
    """The content of `POLICIES`. Equal values give equal bytes."""
    return json.dumps(attributes, sort_keys=True, separators=(",", ":")).encode()


def policies_of(data: bytes) -> Attributes | None:
    """The reverse; None for what is not known or not readable."""
    try:
        found = json.loads(data)
    except (ValueError, RecursionError):
        return None
    if not isinstance(found, dict):
        return None
    return {name: items for name, items in found.items() if isinstance(items, list)}
