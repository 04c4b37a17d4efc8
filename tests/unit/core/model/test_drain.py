"""What the annotation that asks for a drain means, and how commands change it."""

import pytest

from dra_driver.core.model.drain import MAX_LENGTH, DrainRequest
from dra_driver.core.model.ids import GpuUuid

A, B = GpuUuid("GPU-a"), GpuUuid("GPU-b")


@pytest.mark.parametrize(
    ("text", "drained"),
    [
        (None, set()),
        ("", set()),
        (" ", set()),
        ("false", set()),
        ("all", {A, B}),
        (" ALL ", {A, B}),
        ("GPU-a", {A}),
        ("GPU-a, GPU-b,", {A, B}),
        ("GPU-b,all", {A, B}),
        ("gpu-0", set()),
        ("GPU-z" * (MAX_LENGTH // 5 + 1), {A, B}),
    ],
)
def test_the_annotation_says_which_gpus(text: str | None, drained: set[GpuUuid]) -> None:
    """A value whose end was cut off drains everything: a GPU whose UUID is lost must not stay in use."""
    request = DrainRequest.of(text)
    assert {gpu for gpu in (A, B) if request.covers(gpu)} == drained


def test_words_that_are_no_gpu_are_kept_for_a_warning() -> None:
    assert DrainRequest.of("gpu-0,GPU-a,gpu-0").unknown == ("gpu-0",)


def test_requests_are_joined() -> None:
    assert DrainRequest.of("GPU-a").joined([B]).text == "GPU-a,GPU-b"
    assert DrainRequest.of("GPU-a").joined(None).text == "all"
    assert DrainRequest.of("all").joined([B]).text == "all"
    assert DrainRequest.of(None).joined([B]).text == "GPU-b"


def test_gpus_are_taken_out() -> None:
    assert DrainRequest.of("GPU-a,GPU-b").without([A]).text == "GPU-b"
    assert DrainRequest.of("GPU-b").without([B]).text is None
    assert DrainRequest.of("all").without(None).text is None
    assert DrainRequest.of("all").without([A]).text == "all", "the other GPUs are not known here"
