"""Ask whether a unix socket is served. Without gRPC: most commands do not load it."""

import socket
from pathlib import Path


def is_served(path: Path | str, timeout_s: float = 1.0) -> bool:
    """Return whether a process accepts connections at the socket; also for a refused permission or a full queue."""
    with socket.socket(socket.AF_UNIX) as probe:
        probe.settimeout(timeout_s)
        try:
            probe.connect(str(path))
        except (PermissionError, TimeoutError):
            return True
        except OSError:
            return False
    return True
