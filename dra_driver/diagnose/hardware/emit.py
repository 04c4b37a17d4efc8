"""How a check's process tells the command what it has read, and which NVML function it is in."""

import json
import os
from importlib import import_module
from typing import Any, Final

NAME_BYTES: Final = 96
"""Size of the file with the last function's name, padded with zero bytes."""


class Emitter:
    """Writes JSON lines to the descriptor ``lines``; the names of NVML functions go to the file ``calls``."""

    def __init__(self, lines: int, calls: int) -> None:
        self._lines = lines
        self._calls = calls
        self._trace_nvml()

    def topic(self, topic: str, value: Any) -> None:
        """One topic and its value; a repeated topic replaces the former value."""
        self._write({"topic": topic, "value": value})

    def problem(self, text: str) -> None:
        """Why the reader ended early."""
        self._write({"problem": text})

    def _write(self, document: dict[str, Any]) -> None:
        data = json.dumps(document, default=str).encode() + b"\n"
        while data:
            data = data[os.write(self._lines, data) :]

    def _trace_nvml(self) -> None:
        """Note every function that pynvml looks up, which it does before each call."""
        probes = import_module("dra_driver.hardware.gpu.nvml.probes")
        probes.trace(lambda name: os.pwrite(self._calls, name.encode()[:NAME_BYTES].ljust(NAME_BYTES, b"\0"), 0))


def last_call(calls: int) -> str:
    """The name that was noted last; "" when no function was called."""
    return os.pread(calls, NAME_BYTES, 0).rstrip(b"\0").decode("ascii", "replace")
