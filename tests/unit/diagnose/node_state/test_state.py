"""What is read of a node's files."""

from pathlib import Path

import pytest

from dra_driver.diagnose.node_state.state import Places, read_state


@pytest.mark.parametrize(
    ("text", "sick", "has_problem"),
    [
        pytest.param(None, None, False, id="no file"),
        pytest.param('{"gpus": {}}', 0, False, id="no faults"),
        pytest.param('{"gpus": {"a": []}}', 1, False, id="one"),
        pytest.param('{"gpus": 5}', None, True, id="another type"),
        pytest.param('{"gpus": []}', None, True, id="a list"),
        pytest.param("{}", None, True, id="no GPUs"),
        pytest.param("{", None, True, id="no JSON"),
    ],
)
def test_saved_faults_that_cannot_be_read_are_a_problem(
    tmp_path: Path, text: str | None, sick: int | None, has_problem: bool
) -> None:
    """They are never told as no faults."""
    folders = dict.fromkeys(("plugin", "registry", "cdi", "run", "shm"), tmp_path)
    places = Places(driver="gpu.example.com", **folders)
    if text is not None:
        places.health.write_text(text)
    state = read_state(places)
    assert (state.sick_gpus, bool(state.health_problem)) == (sick, has_problem)
