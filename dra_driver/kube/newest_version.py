"""The newest resourceVersion that is known, so that lists come from the API server's cache and are yet not outdated.

A list without a resourceVersion is current, and an API server that is behind with its cache reads all objects of the
kind from etcd for it, those of other nodes too: after a restart or a change for all nodes that is what keeps it busy.
A list that may be as old as what the client has seen or written itself always comes from the cache.
Source: Kubernetes API concepts, "Semantics for get and list" (resourceVersionMatch=NotOlderThan);
apiserver/pkg/storage/cacher/delegator.go of 1.34 to 1.36 (GetList falls back to etcd for consistent reads alone).
"""

import threading

from dra_driver.core.errors import ApiUnreachableError, KubernetesApiError, ServerBusyError

# The answer to a version that the cache does not reach within 3 s (Timeout, "Too large resource version").
_BEHIND = 504
# After so many such answers in a row the version is not one that the server will reach: etcd was restored.
MOST_BEHIND = 6


class NewestVersion:
    """The newest version of one collection; empty until one was seen. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()  # guards both fields below
        self._newest = 0
        self._behind = 0

    def saw(self, version: str) -> None:
        """Take in the version of an answer or event: a number (KEP-5504); anything else is ignored."""
        if not (version.isascii() and version.isdigit()):
            return
        with self._lock:
            if int(version) >= self._newest:
                self._newest, self._behind = int(version), 0

    def query(self) -> dict[str, str]:
        """What a list asks for, besides its selectors: {} asks for the current state."""
        with self._lock:
            if not self._newest:
                return {}
            return {"resourceVersion": str(self._newest), "resourceVersionMatch": "NotOlderThan"}

    def failed(self, error: KubernetesApiError) -> None:
        """Take in that a list with ``query`` failed."""
        with self._lock:
            if isinstance(error, ServerBusyError) and error.status == _BEHIND:
                self._behind += 1
                if self._behind < MOST_BEHIND:
                    return
            elif isinstance(error, ApiUnreachableError | ServerBusyError):
                return
            self._newest = self._behind = 0

    def forget(self) -> None:
        """The next list asks for the current state."""
        with self._lock:
            self._newest = self._behind = 0
