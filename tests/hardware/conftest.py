"""Finds a real NVIDIA driver or says why there is none, and prints what the checks saw."""

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dra_driver.core.errors import DriverUnavailableError
from dra_driver.hardware.driver_root.search import find_library
from dra_driver.hardware.gpu.nvml import probes
from dra_driver.hardware.gpu.nvml.backend import NvmlBackend

ROOTS = ("/", "/usr/local/nvidia", "/run/nvidia/driver", "/home/kubernetes/bin/nvidia")
REPORT_FILE = "GPU_REPORT"  # names a file that gets the JSON too
seen: dict[str, Any] = {}


@pytest.fixture(scope="session")
def library_path() -> str | None:
    """The NVML library of the usual driver roots; None leaves it to the dynamic linker."""
    return next((path for root in ROOTS if (path := find_library(root)) is not None), None)


@pytest.fixture(scope="session")
def backend(library_path: str | None) -> Iterator[NvmlBackend]:
    """Open for all checks; without a usable driver everything is skipped with the reason."""
    backend = NvmlBackend(library_path)
    try:
        backend.open()
    except DriverUnavailableError as error:
        pytest.skip(f"no GPU to check: {error}")
    found = backend.snapshot()
    if not found.gpus and not found.left_out:
        pytest.skip("no GPU to check: the driver works but reports no GPU")
    yield backend
    backend.close()


@pytest.fixture
def handles(backend: NvmlBackend) -> list[Any]:
    """Raw NVML handles, for questions that the backend does not ask; fresh, as they die with a session."""
    backend.open()
    return list(probes.handles().values())


@pytest.fixture(scope="session")
def report() -> dict[str, Any]:
    return seen


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Print the report as one JSON line per topic: readable by eye, and by json after the first colon."""
    if not seen:
        return
    terminalreporter.section("what the GPU checks saw")
    for topic, content in seen.items():
        terminalreporter.write_line(f"{topic}: {json.dumps(content, separators=(',', ':'))}")
    if REPORT_FILE in os.environ:
        Path(os.environ[REPORT_FILE]).write_text(json.dumps(seen, indent=1), encoding="utf-8")
