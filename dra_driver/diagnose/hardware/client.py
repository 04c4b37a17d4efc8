"""Run a second NVML client for checks 12 and 13: ``python -m dra_driver.diagnose.hardware.client``, and its caller.

After a JSON task on the first line of stdin, the client holds a handle of every GPU (and an event set, like monitors).
For each further line it prints the instances of one GPU as a JSON line. It ends at the end of stdin.
"""

import json
import os
import socket
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from typing import Final, Self

from dra_driver.core.errors import CommandError
from dra_driver.diagnose.hardware.child import name_process, own_module, say
from dra_driver.diagnose.hardware.values import Facts
from dra_driver.hardware.gpu.nvml import probes
from dra_driver.hardware.gpu.nvml.backend import NvmlBackend
from dra_driver.hardware.sharing.control import die_with_parent

_ANSWER_S: Final = 20.0
_END_S: Final = 5.0


class ClientProcess:
    """A context manager with a running client. Raises CommandError if the client does not answer."""

    def __init__(self, library: str | None, profile_ids: Sequence[int]) -> None:
        self._task = {"library": library, "profiles": list(profile_ids), "parent": os.getpid()}
        self._socket, theirs = socket.socketpair()
        self._socket.settimeout(_ANSWER_S)
        self._lines = self._socket.makefile("rb")
        with theirs:
            command = own_module("client")
            self._process = subprocess.Popen(command, stdin=theirs.fileno(), stdout=theirs.fileno())
        self.started: Facts = {}

    def __enter__(self) -> Self:
        try:
            self.started = self._ask(json.dumps(self._task))
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._lines.close()
        self._socket.close()
        try:
            self._process.wait(_END_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(_END_S)

    def list_instances(self, index: int) -> Facts:
        return self._ask(str(index))

    def _ask(self, line: str) -> Facts:
        try:
            self._socket.sendall(line.encode() + b"\n")
            answer = json.loads(self._line())
        except (OSError, ValueError) as error:  # TimeoutError, too
            raise CommandError(f"the second NVML client failed: {error or type(error).__name__}") from error
        return answer if isinstance(answer, dict) else {}

    def _line(self) -> bytes:
        line = self._lines.readline()
        if not line:
            raise OSError("it ended")
        return line


def main() -> int:
    name_process()
    task = json.loads(sys.stdin.readline())
    die_with_parent(task["parent"])
    backend = NvmlBackend(task["library"])
    backend.open()
    held = probes.handles()
    with probes.event_set(held.values()) as registered:
        say({"registered": registered})
        for line in sys.stdin:
            answer = {"instances": probes.instances(held[int(line)], task["profiles"])} if line.strip() else {}
            say(answer)
    backend.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
