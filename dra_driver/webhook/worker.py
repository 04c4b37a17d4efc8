"""One worker: ``python -m dra_driver.webhook.worker FOLDER MORE_IN_FILES``. Frames come on stdin and go to stdout.

A hostile object can make lint slow or large. It does so here, where memory is limited and the webhook ends the process
when it takes too long; the object is then applied without a check.
"""

import ctypes
import os
import resource
import signal
import sys
from pathlib import Path
from typing import BinaryIO, Final

from dra_driver.config.webhook_files import MAX_BYTES, POLICIES, policies_of
from dra_driver.kubectl.lint import KnownObjects, known_from_catalog
from dra_driver.webhook import frames
from dra_driver.webhook.known_policies import KnownPolicies, known_policies
from dra_driver.webhook.review import answer

MAX_MEMORY: Final = 384 << 20
"""Bytes of address space. At rest a worker has 80 MiB of it."""
_PR_SET_PDEATHSIG: Final = 1  # linux/prctl.h


class PoliciesFile:
    """What the controller handed over, read again when the file was replaced."""

    def __init__(self, folder: Path, *, more_in_files: bool) -> None:
        self._path = folder / POLICIES
        self._more_in_files = more_in_files
        self._seen: tuple[int, int] | None = None
        self._known = KnownPolicies()

    def known(self) -> KnownPolicies:
        """Nothing is known while the file cannot be read."""
        try:
            status = self._path.stat()
            if (status.st_ino, status.st_mtime_ns) != self._seen:
                with self._path.open("rb") as file:
                    found = policies_of(file.read(MAX_BYTES))
                self._known = known_policies(found, more_in_files=self._more_in_files)
                self._seen = (status.st_ino, status.st_mtime_ns)
        except OSError:
            return KnownPolicies()
        return self._known


def serve(requests: BinaryIO, answers: BinaryIO, policies: PoliciesFile, known: KnownObjects) -> None:
    """Answer frames until the end of the stream. The first answer says that it is ready."""
    answers.write(frames.encode(frames.ReviewOutcome.ALLOWED, b"ready"))
    answers.flush()
    while (frame := frames.read(requests)) is not None:
        answers.write(frames.encode(*answer(frame[1], known, policies.known())))
        answers.flush()


def main(arguments: list[str]) -> int:
    """Runs until stdin ends. A defect or a lack of memory ends the process, and the webhook starts another."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_AS, (MAX_MEMORY, MAX_MEMORY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    folder, more_in_files = Path(arguments[0]), arguments[1] == "true"
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what a library prints must not get between the frames
    serve(sys.stdin.buffer, answers, PoliciesFile(folder, more_in_files=more_in_files), known_from_catalog())
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
