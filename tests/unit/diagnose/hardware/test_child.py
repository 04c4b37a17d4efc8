"""What the process of a check tells the command."""

import json
from pathlib import Path

import pynvml
import pytest

from dra_driver.diagnose.hardware import child


def test_a_reading_fills_no_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file ends one byte after the limit, by which the command knows that something is omitted."""
    traced = "_nvmlGetFunctionPointer"  # which the emitter replaces
    monkeypatch.setattr(pynvml, traced, vars(pynvml)[traced])
    with (tmp_path / "lines").open("w+b") as lines, (tmp_path / "calls").open("w+b") as calls:
        emitter = child.Emitter(lines.fileno(), calls.fileno())
        emitter.write(topic="small", value=1)
        for _ in range(5):
            emitter.write(topic="large", value="x" * (4 << 20))
    first, *_ = (tmp_path / "lines").read_bytes().split(b"\n", 1)
    assert json.loads(first) == {"topic": "small", "value": 1}
    assert (tmp_path / "lines").stat().st_size == (16 << 20) + 1
