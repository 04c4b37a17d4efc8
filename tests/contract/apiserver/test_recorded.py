"""The embedded API server replies as a real one did, in every step of every recorded conversation."""

import json
from collections.abc import Iterator
from urllib.parse import urlsplit

import pytest

from dra_driver.sim.apiserver.server import ApiServer
from tests.contract.apiserver.conversation import RECORDED, STEPS, Server, hold


@pytest.fixture
def server() -> Iterator[Server]:
    api = ApiServer()
    url = urlsplit(api.start())
    yield Server(url.hostname or "", url.port or 0, api.token)
    api.stop()


@pytest.mark.parametrize("name", sorted(path.stem for path in STEPS.glob("*.yaml")))
def test_answers_like_the_recorded_server(server: Server, name: str) -> None:
    """Codes, bodies and warnings equal those of a Kubernetes 1.36.2 API server for the same requests."""
    recorded = json.loads((RECORDED / f"{name}.json").read_text(encoding="utf-8"))
    embedded = json.loads(json.dumps(hold(server, name)))
    assert embedded.keys() <= recorded.keys()
    differing = [step for step in embedded if embedded[step] != recorded[step]]
    assert not differing, "\n\n".join(
        f"{step}\n  embedded: {json.dumps(embedded[step])[:3000]}\n  recorded: {json.dumps(recorded[step])[:3000]}"
        for step in differing
    )
