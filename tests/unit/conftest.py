"""Fixtures of the unit tests."""

from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture
def large_file(tmp_path: Path) -> Iterator[Path]:
    """A path for a sparse file. It is removed after the test: packing or copying the folder would fill the disk."""
    path = tmp_path / "large"
    yield path
    path.unlink(missing_ok=True)
