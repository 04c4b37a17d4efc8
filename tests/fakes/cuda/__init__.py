"""Builds the C library of this folder. Needs gcc, as ``tests/fakes/nvml/library.py``."""

import subprocess
from pathlib import Path

from tests.fakes.nvml.library import FLAGS


def build(path: Path) -> Path:
    source = Path(__file__).with_name("cuda.c")
    command = ["gcc", *FLAGS, "-Wl,-soname,libcuda.so.1", "-o", str(path), str(source)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return path
