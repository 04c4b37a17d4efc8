"""Objects that are made to take time or memory: each is judged or given up in time, and the webhook answers on."""

import json
import time
from collections.abc import Iterator
from typing import Any

import pytest

from dra_driver.webhook.http_message import MAX_BODY
from tests.contract.webhook.webhook import Webhook
from tests.unit.webhook.reviews import HOPPER, claim, review

API_SERVER_WAITS_S = 3.0
SLACK_S = 5.0
"""For machines that do other things, too; a worker that is not ended takes minutes."""


@pytest.fixture(scope="module")
def webhook(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Webhook, bytes]]:
    process = Webhook(tmp_path_factory.mktemp("webhook"), workers="1")
    pair = process.hand_over()
    process.start().until_serving()
    yield process, pair.ca
    process.kill()


def selectors(expression: str) -> dict[str, Any]:
    """As many as the API allows."""
    content = {"deviceClassName": "gpu.nvidia.com", "selectors": [{"cel": {"expression": expression}}] * 32}
    return {**claim(), "spec": {"devices": {"requests": [{"name": f"r{n}", "exactly": content} for n in range(32)]}}}


def parameters(written: Any) -> dict[str, Any]:
    return claim(config=[{"opaque": {"driver": "gpu.nvidia.com", "parameters": written}}])


HOSTILE = {
    "1,024 selectors": selectors(HOPPER),
    "1,024 selectors at the limit of cost": selectors(f"lists.range(90000).all(x, x >= 0) && {HOPPER}"),
    "deep CEL": claim("(" * 4000 + "true" + ")" * 4000),
    "a pattern that others take exponential time for": claim(f'"{"a" * 9000}".matches("(a*)*b")'),
    "deep parameters": parameters(json.loads('{"a":' * 900 + "1" + "}" * 900)),
    "wide parameters": parameters({str(number): number for number in range(150_000)}),
    "many requests": {**claim(), "spec": {"devices": {"requests": [{"name": str(n)} for n in range(60_000)]}}},
}


@pytest.mark.slow
@pytest.mark.parametrize("name", HOSTILE)
def test_it_is_judged_or_given_up_in_time(webhook: tuple[Webhook, bytes], name: str) -> None:
    process, ca = webhook
    body = review(HOSTILE[name])
    assert len(body) < MAX_BODY
    began = time.monotonic()
    status, _ = process.ask(ca, body, once=True)
    assert status in {200, 503}
    assert time.monotonic() - began < API_SERVER_WAITS_S + SLACK_S
    process.wait_for(lambda: process.ask(ca, review(claim()))[0] == 200, timeout_s=30)
    assert process.process is not None
    assert process.process.poll() is None
