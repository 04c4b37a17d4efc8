"""Builds the C library of ``nvml.c``. Needs gcc; whoever cannot have it skips with ``reason_why_not()``."""

import shutil
import subprocess
from pathlib import Path

SOURCE = Path(__file__).with_name("nvml.c")
FLAGS = ("-std=c11", "-O1", "-Wall", "-Wextra", "-Wpedantic", "-Werror", "-fPIC", "-shared", "-pthread")


def reason_why_not() -> str | None:
    """Why the library cannot be built here, None when it can."""
    return None if shutil.which("gcc") else "gcc is not installed, which builds the stand-in for libnvidia-ml.so.1"


def build(folder: Path) -> Path:
    """``folder/libnvidia-ml.so.1``, compiled without a warning. Takes about 0.3 s."""
    library = folder / "libnvidia-ml.so.1"
    command = ["gcc", *FLAGS, "-Wl,-soname,libnvidia-ml.so.1", "-o", str(library), str(SOURCE)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return library
