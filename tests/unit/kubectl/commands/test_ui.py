"""`kubectl dra ui`: what it refuses before it serves anything."""

import pytest

from dra_driver.kubectl.commands import kubectl


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("--port", "65536"), "--port 65536"),
        (("--cluster-state", "x.json", "--prometheus", "http://localhost:9090"), "leave one of both out"),
        (("--prometheus", "localhost:9090"), "expected an address"),
    ],
)
def test_flags_that_cannot_be_are_refused(
    arguments: tuple[str, ...], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """In a sentence that names the flag."""
    assert kubectl.main(["ui", *arguments]) != 0
    assert sentence in capsys.readouterr().err
