"""Starts the second NVML client (``second_client.py``), talks to it and ends it."""

import json
import os
import socket
import subprocess
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Final, Self

from dra_driver.core.errors import CommandError
from dra_driver.diagnose.hardware.task import own_module

_ANSWER_S: Final = 20.0
_END_S: Final = 5.0


class ClientProcess:
    """A context manager: the client has its session inside the block. Raises CommandError when it does not answer."""

    def __init__(self, library: str | None, profile_ids: Sequence[int]) -> None:
        self._task = {"library": library, "profiles": list(profile_ids), "parent": os.getpid()}
        self._buffer = b""
        self._socket, theirs = socket.socketpair()
        self._socket.settimeout(_ANSWER_S)
        with theirs:
            command = own_module("second_client")
            self._process = subprocess.Popen(command, stdin=theirs.fileno(), stdout=theirs.fileno())
        self.started: dict[str, Any] = {}

    def __enter__(self) -> Self:
        try:
            self.started = self._ask(json.dumps(self._task))
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()
        try:
            self._process.wait(_END_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(_END_S)

    def list_instances(self, index: int) -> dict[str, Any]:
        """Let it list the instances of the GPU at an NVML index."""
        return self._ask(str(index))

    def _ask(self, line: str) -> dict[str, Any]:
        try:
            self._socket.sendall(line.encode() + b"\n")
            answer = json.loads(self._line())
        except (OSError, ValueError) as error:  # TimeoutError, too
            raise CommandError(f"the second NVML client failed: {error or type(error).__name__}") from error
        return answer if isinstance(answer, dict) else {}

    def _line(self) -> bytes:
        while b"\n" not in self._buffer:
            piece = self._socket.recv(1 << 16)
            if not piece:
                raise OSError("it ended")
            self._buffer += piece
        line, _, self._buffer = self._buffer.partition(b"\n")
        return line
