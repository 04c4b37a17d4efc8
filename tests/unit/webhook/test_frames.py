"""Frames between the webhook and its workers."""

import io

import pytest

from dra_driver.webhook import frames


def test_frames_come_as_they_went() -> None:
    stream = io.BytesIO(frames.encode(2, b"ab") + frames.encode(0, b""))
    assert [frames.read(stream) for _ in range(3)] == [(2, b"ab"), (0, b""), None]


@pytest.mark.parametrize("cut", [b"", b"\0\0", frames.encode(0, b"abc")[:-1], b"\0\xff\xff\xff\xff"])
def test_what_is_cut_or_too_long_ends_the_stream(cut: bytes) -> None:
    assert frames.read(io.BytesIO(cut)) is None
