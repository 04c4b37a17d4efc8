"""Giving free memory back to the kernel."""

from types import SimpleNamespace

from dra_driver.node.process.free_memory import DEFAULT, M_MMAP_THRESHOLD, keep_large_blocks_apart, trimmer


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


def test_the_process_has_a_c_library() -> None:
    keep_large_blocks_apart()
    trimmer()()
