"""Giving free memory back to the kernel."""

from types import SimpleNamespace

from dra_driver.kubelet.free_memory import trimmer


def test_asks_the_c_library_to_keep_nothing() -> None:
    asked: list[int] = []
    trimmer(SimpleNamespace(malloc_trim=asked.append))()
    assert asked == [0]


def test_another_c_library_does_nothing() -> None:
    assert trimmer(SimpleNamespace())() is None


def test_the_process_has_a_c_library() -> None:
    trimmer()()
