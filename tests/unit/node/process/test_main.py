"""What is set for a whole process: free memory goes back to the kernel, and waits of gRPC are one sleep."""

import ctypes
import json
import platform
import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import pytest

from dra_driver.node.process.main import DEFAULT, M_MMAP_THRESHOLD, keep_large_blocks_apart, trimmer


def test_the_c_library_keeps_nothing_and_another_one_is_left_alone() -> None:
    asked: list[int] = []
    set_to: list[tuple[int, int]] = []
    library = SimpleNamespace(malloc_trim=asked.append, mallopt=lambda *given: set_to.append(given))
    keep_large_blocks_apart(library)
    trimmer(library)()
    assert (asked, set_to) == ([0], [(M_MMAP_THRESHOLD, DEFAULT)])
    keep_large_blocks_apart(SimpleNamespace())
    assert trimmer(SimpleNamespace())() is None


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="another C library than glibc")
def test_glibc_takes_both() -> None:
    assert trimmer()() in (0, 1)
    assert ctypes.CDLL(None).mallopt(M_MMAP_THRESHOLD, DEFAULT) == 1


WAITS = """
import json, time
from pathlib import Path
import grpc._server as server
from grpc._cython import cygrpc
from dra_driver.node.process import main

queue = cygrpc.CompletionQueue()

def switches():
    (line,) = [l for l in Path("/proc/thread-self/status").read_text().splitlines() if l.startswith("voluntary_")]
    return int(line.split()[1])

def wakes():
    before = switches()
    queue.poll(time.time() + 0.7)
    return switches() - before

print(json.dumps([wakes(), main.sleep_long(), wakes(), server._DEALLOCATED_SERVER_CHECK_PERIOD_S]))
"""
OTHER_VERSION = """
import json
import grpc._server as server
from grpc._cython import cygrpc
from dra_driver.node.process import main

del cygrpc.__pyx_capi__["g_interrupt_check_period_ms"]
print(json.dumps([main.sleep_long(), server._DEALLOCATED_SERVER_CHECK_PERIOD_S]))
"""


def output_of(script: str) -> Any:
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_a_wait_for_calls_is_one_sleep() -> None:
    """grpc's own are slices of 200 ms; the rest of a server's loop comes once in the second number."""
    own_wakes, done, wakes, look_s = output_of(WAITS)
    assert done
    assert own_wakes >= 4
    assert wakes < own_wakes - 1
    assert look_s == 600


def test_other_versions_of_grpc_are_left_alone() -> None:
    assert output_of(OTHER_VERSION) == [False, 1.0]
