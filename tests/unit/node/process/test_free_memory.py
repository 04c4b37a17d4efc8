"""Giving free memory back to the kernel."""

import ctypes
import platform
from types import SimpleNamespace

import pytest

from dra_driver.node.process.process_tuning import DEFAULT, M_MMAP_THRESHOLD, keep_large_blocks_apart, trimmer


def test_asks_the_c_library_to_keep_nothing() -> None:
    asked: list[int] = []
    trimmer(SimpleNamespace(malloc_trim=asked.append))()
    assert asked == [0]


def test_fixes_the_size_of_large_blocks() -> None:
    set_to: list[tuple[int, int]] = []
    keep_large_blocks_apart(SimpleNamespace(mallopt=lambda *given: set_to.append(given)))
    assert set_to == [(M_MMAP_THRESHOLD, DEFAULT)]


def test_another_c_library_does_nothing() -> None:
    keep_large_blocks_apart(SimpleNamespace())
    assert trimmer(SimpleNamespace())() is None


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="another C library than glibc")
def test_glibc_takes_both() -> None:
    assert trimmer()() in (0, 1)
    assert ctypes.CDLL(None).mallopt(M_MMAP_THRESHOLD, DEFAULT) == 1
