"""The webhook process as it is deployed, over TLS: what it answers, what it survives, how certificates change."""

import os
import signal
import ssl
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from dra_driver.controller.webhook_pki import make_pair
from tests.contract.webhook.webhook import NAME, Client, Webhook
from tests.unit.webhook.reviews import NO_MATCH, UNKNOWN, claim, review


@pytest.fixture(scope="module")
def webhook(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Webhook, bytes]]:
    process = Webhook(tmp_path_factory.mktemp("webhook"))
    pair = process.hand_over()
    process.start().until_serving()
    yield process, pair.ca
    process.kill()


@pytest.fixture
def client_of() -> Iterator[Callable[[Webhook, bytes], Client]]:
    made: list[Client] = []

    def make(process: Webhook, ca: bytes) -> Client:
        made.append(Client(process.port, ca))
        return made[-1]

    yield make
    for each in made:
        each.close()


@pytest.fixture
def client(webhook: tuple[Webhook, bytes], client_of: Callable[[Webhook, bytes], Client]) -> Client:
    return client_of(*webhook)


def test_reviews_are_answered_on_one_connection(client: Client) -> None:
    assert client.review(review(claim()))[1]["response"] == {"uid": "a-uid", "allowed": True}
    refused = client.review(review(claim(UNKNOWN)))[1]["response"]
    assert (refused["allowed"], refused["status"]["code"]) == (False, 422)
    assert "no device of gpu.nvidia.com has attribute 'team'" in refused["status"]["message"]
    assert client.review(review(claim(NO_MATCH)))[1]["response"]["warnings"]


def test_patterns_of_selectors_are_evaluated(client: Client) -> None:
    """The image has the engine of Go's regular expressions."""
    expression = 'device.attributes["gpu.nvidia.com"].productName.matches("^Voodoo")'
    assert "no device of the catalog" in client.review(review(claim(expression)))[1]["response"]["warnings"][0]


def test_what_is_no_review_is_refused_and_the_connection_kept(client: Client) -> None:
    status, said = client.review(b"[" * 100_000)
    assert (status, "not JSON" in said) == (400, True)
    assert client.review(review(claim()))[0] == 200


def test_a_body_that_is_too_large_is_not_read(client: Client) -> None:
    client.putrequest("POST", "/validate")
    client.putheader("Content-Length", str(1 << 30))
    client.endheaders()
    assert client.getresponse().status == 413


def test_a_client_that_knows_another_ca_does_not_trust_it(webhook: tuple[Webhook, bytes]) -> None:
    other = make_pair([NAME], datetime.now(UTC), timedelta(days=1))
    with pytest.raises(ssl.SSLError):
        webhook[0].ask(other.ca, review(claim()))


def test_it_tells_what_it_did(webhook: tuple[Webhook, bytes], client: Client) -> None:
    client.review(review(claim()))
    process = webhook[0]
    metrics = process.page("/metrics")[1]
    assert 'dra_driver_webhook_reviews_total{result="allowed"}' in metrics
    values = dict(line.rsplit(" ", 1) for line in metrics.splitlines() if not line.startswith("#"))
    assert float(values["dra_driver_webhook_review_seconds_count"]) >= 1
    assert float(values["dra_driver_webhook_certificate_expires_timestamp_seconds"]) > 1.7e9
    assert "the certificate expires at 20" in process.page("/readyz")[1]
    assert process.page("/healthz")[1] == "ok\n"


def test_policies_that_come_later_are_known_at_once(webhook: tuple[Webhook, bytes], client: Client) -> None:
    process, _ = webhook
    assert not client.review(review(claim(UNKNOWN)))[1]["response"]["allowed"]
    process.hand_over_policies({"teams": [{"name": "team", "string": "blue"}]})
    assert client.review(review(claim(UNKNOWN)))[1]["response"]["allowed"]
    process.hand_over_policies(None)
    assert client.review(review(claim(UNKNOWN)))[1]["response"]["allowed"]
    process.hand_over_policies({})


@pytest.fixture
def alone(tmp_path: Path) -> Iterator[Webhook]:
    process = Webhook(tmp_path, workers="1")
    yield process
    process.kill()


def test_without_a_certificate_it_waits_and_says_why(alone: Webhook) -> None:
    alone.start().wait_for(lambda: '"started"' in alone.text)
    status, said = alone.page("/readyz")
    assert (status, "has not handed over a certificate yet" in said) == (503, True)
    pair = alone.hand_over()
    alone.until_serving()
    assert alone.ask(pair.ca, review(claim()))[0] == 200
    assert alone.end()[0] == 0


def test_a_certificate_is_replaced_under_a_connection_that_goes_on(
    alone: Webhook, client_of: Callable[[Webhook, bytes], Client]
) -> None:
    """Kept connections end by themselves; new ones get the new certificate. A damaged file changes nothing."""
    first = alone.hand_over()
    alone.start().until_serving()
    kept = client_of(alone, first.ca)
    assert kept.review(review(claim()))[0] == 200
    second = alone.hand_over()
    alone.wait_for(lambda: alone.text.count("serving a certificate") == 2)
    assert kept.review(review(claim()))[0] == 200
    assert alone.ask(second.ca, review(claim()))[0] == 200
    with pytest.raises(ssl.SSLError):
        alone.ask(first.ca, review(claim()))
    (alone.folder / "serving.pem").write_bytes(b"not-after: 2999-01-01T00:00:00Z\ndamaged")
    alone.wait_for(lambda: "certificate not used" in alone.text)
    assert alone.ask(second.ca, review(claim()))[0] == 200
    assert "PRIVATE" not in alone.text


def test_an_expired_certificate_is_told(alone: Webhook) -> None:
    expired = make_pair([NAME], datetime.now(UTC) - timedelta(days=2), timedelta(days=1))
    alone.hand_over(expired)
    alone.start().wait_for(lambda: "serving a certificate" in alone.text)
    status, said = alone.page("/readyz")
    assert (status, "expired at" in said) == (503, True)


def test_a_worker_that_hangs_is_replaced_and_the_object_passes_unchecked(
    alone: Webhook, client_of: Callable[[Webhook, bytes], Client]
) -> None:
    """503: the API server counts it and applies the object, since failurePolicy is Ignore."""
    pair = alone.hand_over()
    alone.start().until_serving()
    client = client_of(alone, pair.ca)
    assert client.review(review(claim()))[0] == 200
    assert alone.process is not None
    worker = children(alone.process.pid)[0]
    os.kill(worker, signal.SIGSTOP)
    status, said = client.review(review(claim()), once=True)
    assert (status, "took too long" in said) == (503, True)
    alone.wait_for(lambda: children(alone.process.pid) not in ([], [worker]))  # type: ignore[union-attr]
    alone.wait_for(lambda: client.review(review(claim()))[0] == 200)
    assert 'reviews_total{result="slow"} 0.0' not in alone.page("/metrics")[1]


def test_workers_end_with_the_process(alone: Webhook) -> None:
    """SIGKILL: nothing is left that could keep memory or a port."""
    pair = alone.hand_over()
    alone.start().until_serving()
    assert alone.ask(pair.ca, review(claim()))[0] == 200
    assert alone.process is not None
    workers = children(alone.process.pid)
    alone.process.kill()
    alone.process.wait()
    assert workers
    until_gone(workers)


def until_gone(pids: list[int]) -> None:
    deadline = time.monotonic() + 15
    while any(Path(f"/proc/{pid}").exists() and "Z" not in state(pid) for pid in pids):
        assert time.monotonic() < deadline
        time.sleep(0.01)


def state(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return "Z"


def children(pid: int) -> list[int]:
    """Its child processes, oldest first."""
    found = [
        int(one) for task in Path(f"/proc/{pid}/task").iterdir() for one in (task / "children").read_text().split()
    ]
    return sorted(found)
