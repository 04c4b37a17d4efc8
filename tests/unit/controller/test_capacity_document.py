"""What `kubectl dra capacity` prints as numbers for gauges: series are bounded, numbers are sane."""

import json
from typing import Any

import pytest

from dra_driver.controller.capacity_document import MAX_MODELS, MAX_REQUESTS, RequestCount, decode
from dra_driver.kubectl.capacity.report import CapacityReport, Gpus, Memory, ModelCapacity, RequestCapacity, to_wire

REQUEST = RequestCapacity(request="3g.40gb", fits=3, by_sum=4, stranded=1)
MODEL = ModelCapacity(
    driver="gpu.nvidia.com",
    model="H100",
    gpus=Gpus(total=8, free=2, used=5, fragmented=1),
    memory_bytes=Memory(total=640, free=160, fragmented=40),
    requests=[REQUEST],
)


def text(**changes: Any) -> bytes:
    return json.dumps({**to_wire(CapacityReport(models=[MODEL]), "CapacityReport"), **changes}).encode()


def test_a_report_becomes_numbers() -> None:
    (model,) = decode(text())
    assert model.model == "H100"
    assert model.gpus == {"free": 2, "used": 5, "fragmented": 1, "unavailable": 0}
    assert model.memory_bytes == {"free": 160, "fragmented": 40, "taken": 440}
    assert model.requests == (RequestCount(request="3g.40gb", fits=3, stranded=1),)


def test_a_report_with_a_gap_is_not_believed() -> None:
    """Without the claims of a cluster every GPU would look free."""
    with pytest.raises(ValueError, match="lacks resourceclaims: this user may not"):
        decode(text(gaps=["resourceclaims: this user may not list them"]))


@pytest.mark.parametrize("wrong", [b"", b"{", b"[" * 9999, b"[]", b'{"kind": "Pod"}'])
def test_what_is_no_report_is_refused(wrong: bytes) -> None:
    with pytest.raises(ValueError, match="survey's output is no"):
        decode(wrong)


@pytest.mark.parametrize("value", [None, "3", -1, True, [], 1e400, pytest.param(10**400, id="larger than a float")])
def test_a_number_that_is_none_counts_as_zero(value: Any) -> None:
    (model,) = decode(
        text(models=[{"model": "x", "gpus": {"free": value}, "requests": [{"request": "r", "fits": value}]}])
    )
    assert (model.gpus["free"], model.requests[0].fits) == (0, 0)


def test_models_and_requests_are_bounded_and_their_names_too() -> None:
    """Names come from ResourceSlices, which any driver of the cluster writes."""
    requests = [{"request": f"{'r' * 95}\n{number}"} for number in range(99)]
    models = decode(text(models=[{"model": f"m{number}", "requests": requests} for number in range(99)]))
    assert len(models) == MAX_MODELS
    assert len(models[0].requests) == MAX_REQUESTS
    assert all(len(item.request) <= 100 and item.request.isprintable() for item in models[0].requests)
