"""Who asks this process to give up the NVIDIA driver, and why.

===============================================================  =======================================================
annotation ``gpu.dra-driver.io/detach: <reason>`` of the Node     at once, also while claims are prepared: a person asks
file ``detach`` in the driver's folder, its content the reason    the same, for a node without access to the API server
label of the Node for GPU clients or DRA drivers, see ``LABELS``  when no claim is prepared: NVIDIA's k8s-driver-manager
===============================================================  =======================================================

A request ends when annotation, file or label value is gone. An annotation or a file asks whatever it contains, except
for the annotation's value ``false``.

k8s-driver-manager (bd62ca7, cmd/driver-manager/main.go:47, 656-740) sets a label that is ``true`` to
``paused-for-driver-upgrade``, and one of another value to ``<value>_paused-for-driver-upgrade``: that of GPU clients
first, then it evicts the pods that have claims, then it sets that of DRA drivers and unloads the kernel modules.
"""

import errno
import os
import stat
from pathlib import Path
from typing import Final

from msgspec import Struct

from dra_driver.core.model.drain import DETACH_ANNOTATION, clean
from dra_driver.kube.own_node import OwnNode

ANNOTATION: Final = DETACH_ANNOTATION
FILE: Final = "detach"
LABELS: Final = ("nvidia.com/gpu.deploy.client", "nvidia.com/gpu.deploy.dra-driver")
PAUSED: Final = "paused-for-driver-upgrade"
MAX_FILE_BYTES: Final = 4096
# Errors of open() that say that something of that name exists. Others, such as EIO, say nothing.
_EXISTS: Final = frozenset({errno.EACCES, errno.EPERM, errno.ELOOP, errno.ENXIO})


class DetachRequest(Struct, frozen=True, kw_only=True):
    """``source`` is the annotation, file or label as a noun; ``ends`` says what to do to end the request."""

    source: str
    reason: str
    ends: str
    when_unused: bool = False

    @property
    def taint_value(self) -> str:
        """The value of the taint of all devices while the request exists."""
        return "driver-upgrade" if self.when_unused else "requested"

    def __str__(self) -> str:
        return f"{self.source}: {self.reason}"


def find_request(node: OwnNode | None, file: "str | None", path: Path) -> DetachRequest | None:
    """The request that counts: one that asks at once before one that waits. ``file`` is the content of ``path``."""
    if node is not None and (asked := node.annotations.get(ANNOTATION)) is not None and asked.lower() != "false":
        return DetachRequest(
            source=f"annotation {ANNOTATION} of node {node.name}",
            reason=clean(asked),
            ends=f"remove the annotation: kubectl annotate node {node.name} {ANNOTATION}-",
        )
    if file is not None:
        return DetachRequest(source=f"file {path}", reason=clean(file), ends="remove the file")
    label = next((key for key in LABELS if node is not None and PAUSED in node.labels.get(key, "")), None)
    if node is None or label is None:
        return None
    return DetachRequest(
        source=f"label {label} of node {node.name}",
        reason=PAUSED,
        ends="it ends with the driver upgrade, when the label is set back",
        when_unused=True,
    )


class DetachFile:
    """The file that asks. ``read`` from one thread."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._last: str | None = None

    def read(self) -> str | None:
        """Its content, at most `MAX_FILE_BYTES`; None when it does not exist. What exists and cannot be read asks too.

        After an error that does not tell whether it exists, the last answer counts.
        """
        try:
            descriptor = os.open(self.path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        except FileNotFoundError:
            self._last = None
        except OSError as error:
            if error.errno in _EXISTS:
                self._last = f"it cannot be read ({error.strerror})"
        else:
            self._last = _content(descriptor)
        return self._last


def _content(descriptor: int) -> str:
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            return "it is no regular file"
        return os.read(descriptor, MAX_FILE_BYTES).decode("utf-8", "replace")
    except OSError as error:
        return f"it cannot be read ({error.strerror})"
    finally:
        os.close(descriptor)
