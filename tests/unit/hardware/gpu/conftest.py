"""Shells that the scripts of a simulated driver root have to run in."""

import shutil

import pytest


@pytest.fixture(params=["dash", "busybox sh", "bash --posix"])
def shell(request: pytest.FixtureRequest) -> list[str]:
    program, *arguments = str(request.param).split()
    path = shutil.which(program)
    if path is None:
        pytest.skip(f"{program} is not installed")
    return [path, *arguments]
