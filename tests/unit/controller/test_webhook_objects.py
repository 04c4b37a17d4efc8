"""Secret and configuration."""

import base64

import pytest

from dra_driver.controller.webhook_objects import has_bundle, secret_with, stored_of, with_bundle
from dra_driver.controller.webhook_plan import Pair, Stored
from tests.unit.controller.test_webhook_plan import NOW

A = Pair(certificate=b"a", key=b"ka", ca=b"ca-a")
B = Pair(certificate=b"b", key=b"kb", ca=b"ca-b")
FULL = Stored(current=A, following=B, former_ca=b"ca-old", since=NOW)


def read(secret: dict[str, object]) -> Stored:
    return stored_of(secret, lambda ca: ca.startswith(b"ca-"))


@pytest.mark.parametrize("stored", [Stored(), Stored(current=A), FULL])
def test_a_secret_is_read_as_it_was_written(stored: Stored) -> None:
    secret = secret_with({"metadata": {"resourceVersion": "7"}}, stored)
    assert read(secret) == stored
    assert secret["metadata"] == {"resourceVersion": "7"}


def test_what_is_over_leaves_the_secret_and_what_others_put_there_stays() -> None:
    secret = secret_with({"data": {"other": "eA=="}}, FULL)
    assert secret_with(secret, Stored(current=A))["data"].keys() == {"other", "tls.crt", "tls.key", "ca.crt"}


@pytest.mark.parametrize("data", [None, [], {"tls.crt": "YQ=="}, {"tls.crt": "%"}, {"tls.crt": 7, "since": "eA=="}])
def test_a_secret_of_any_content_is_read(data: object) -> None:
    assert read({"data": data}) == Stored()


def test_a_ca_that_is_none_counts_as_absent() -> None:
    """The API server refuses a bundle with anything else in it, so nothing could be rotated any more."""
    damaged = secret_with({}, Stored(current=Pair(certificate=b"a", key=b"k", ca=b"damaged"), former_ca=b"damaged"))
    assert read(damaged) == Stored()


def test_only_the_bundles_of_a_configuration_change() -> None:
    service = {"service": {"name": "x"}}
    before = {"metadata": {"name": "x"}, "webhooks": [{"name": "a", "clientConfig": service}, {"name": "b"}]}
    after = with_bundle(before, FULL.bundle)
    encoded = base64.b64encode(b"ca-aca-bca-old").decode()
    assert after["webhooks"][0] == {"name": "a", "clientConfig": {**service, "caBundle": encoded}}
    assert after["metadata"] == {"name": "x"}
    assert (has_bundle(before, FULL.bundle), has_bundle(after, FULL.bundle), has_bundle(after, b"")) == (
        False,
        True,
        False,
    )
    assert has_bundle({}, b"x")
