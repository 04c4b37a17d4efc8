"""Decoding of objects by the schema, from JSON and protobuf."""

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dra_driver.core.errors import InvalidObjectError
from dra_driver.sim.apiserver.kinds import ALL_KINDS, CUSTOM_RESOURCE_DEFINITIONS, PODS, RESOURCE_SLICES
from dra_driver.sim.apiserver.messages import decode_body
from dra_driver.sim.apiserver.schema import decode, fields_of, type_of
from tests.unit.sim_apiserver.builders import Obj, pod, resource_slice


def test_every_kind_has_a_schema() -> None:
    for kind in ALL_KINDS:
        assert "metadata" in fields_of(type_of(kind).name), kind.plural


def test_unknown_fields_are_dropped_and_named() -> None:
    sent = pod(containers=[{"name": "a", "image": "b", "colour": "red"}])
    sent["metadata"]["annotations"] = {"any": "thing"}
    assert decode(PODS, sent) == ["spec.containers[0].colour"]
    assert sent["spec"]["containers"] == [{"name": "a", "image": "b"}]
    crd = {"spec": {"versions": [{"schema": {"openAPIV3Schema": {"default": {"x": [1]}}}}]}}
    assert decode(CUSTOM_RESOURCE_DEFINITIONS, crd) == []


def test_nulls_are_dropped() -> None:
    sent: Obj = {"metadata": {"name": "p", "creationTimestamp": None}, "spec": None}
    decode(PODS, sent)
    assert sent == {"metadata": {"name": "p"}}


@pytest.mark.parametrize(
    ("body", "path"),
    [
        ({"spec": {"containers": "none"}}, "spec.containers"),
        ({"spec": {"nodeName": 5}}, "spec.nodeName"),
        ({"spec": {"priority": True}}, "spec.priority"),
        ({"metadata": {"labels": ["a"]}}, "metadata.labels"),
        ({"spec": {"containers": [7]}}, r"spec.containers\[0\]"),
    ],
)
def test_wrong_types_are_bad_requests_with_the_path(body: Obj, path: str) -> None:
    with pytest.raises(InvalidObjectError, match=path) as refused:
        decode(PODS, body)
    assert refused.value.status == 400


@pytest.mark.parametrize(
    ("sent", "kept"), [("81920Mi", "80Gi"), ("1000m", "1"), (0.5, "500m"), (80, "80"), ("1e3", "1e3")]
)
def test_quantities_come_back_canonical(sent: object, kept: str) -> None:
    body = resource_slice(devices=[{"name": "a", "capacity": {"memory": {"value": sent}}}])
    decode(RESOURCE_SLICES, body)
    assert body["spec"]["devices"][0]["capacity"]["memory"]["value"] == kept


def test_times_come_back_in_utc() -> None:
    body = {"metadata": {"creationTimestamp": "2026-01-01T01:00:00.5+01:00"}}
    decode(PODS, body)
    assert body["metadata"]["creationTimestamp"] == "2026-01-01T00:00:00Z"
    with pytest.raises(InvalidObjectError, match="RFC 3339"):
        decode(PODS, {"metadata": {"creationTimestamp": "yesterday"}})


def _field(number: int, value: bytes | int) -> bytes:
    if isinstance(value, int):
        return bytes([number << 3]) + _number(value)
    return bytes([number << 3 | 2]) + _number(len(value)) + value


def _number(value: int) -> bytes:
    value &= (1 << 64) - 1
    out = b""
    while value > 0x7F:
        out += bytes([value & 0x7F | 0x80])
        value >>= 7
    return out + bytes([value])


def _envelope(api_version: str, kind: str, raw: bytes) -> bytes:
    meta = _field(1, api_version.encode()) + _field(2, kind.encode())
    return b"k8s\x00" + _field(1, meta) + _field(2, raw)


def test_a_protobuf_secret_is_read() -> None:
    metadata = _field(1, b"s") + _field(11, _field(1, b"app") + _field(2, b"x"))
    data = _field(1, b"key") + _field(2, b"\x00\xff")
    body = _envelope("v1", "Secret", _field(1, metadata) + _field(2, data) + _field(3, b"Opaque"))
    assert decode_body(body) == {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": "s", "labels": {"app": "x"}},
        "data": {"key": "AP8="},
        "type": "Opaque",
    }


def test_embedded_structs_and_special_types_have_their_json_form() -> None:
    source = _field(2, b"")  # emptyDir
    volume = _field(1, b"v") + _field(2, source)
    spec = _field(1, volume) + _field(4, -1)
    assert decode_body(_envelope("v1", "Pod", _field(2, spec)))["spec"] == {
        "volumes": [{"name": "v", "emptyDir": {}}],
        "terminationGracePeriodSeconds": -1,
    }
    port = _field(3, 80) + _field(4, _field(1, 1) + _field(3, b"web"))
    service = decode_body(_envelope("v1", "Service", _field(2, _field(1, port))))
    assert service["spec"]["ports"] == [{"port": 80, "targetPort": "web"}]


def test_invalid_protobuf_bodies_are_bad_requests() -> None:
    for body in (b"{}", _envelope("v1", "Gadget", b""), _envelope("v1", "Pod", b"\x0a\x05ab"), b"k8s\x00\xff"):
        with pytest.raises(InvalidObjectError):
            decode_body(body)


@given(st.binary(max_size=200))
def test_no_bytes_break_the_protobuf_reader(data: bytes) -> None:
    for body in (b"k8s\x00" + data, _envelope("v1", "Pod", data)):
        with suppress(InvalidObjectError):
            assert isinstance(decode_body(body), dict)


def _claim_with_parameters(text: bytes) -> bytes:
    opaque = _field(1, b"gpu.example.com") + _field(2, _field(1, text))
    config = _field(2, _field(1, opaque))
    return _envelope("resource.k8s.io/v1", "ResourceClaim", _field(2, _field(1, _field(3, config))))


@pytest.mark.parametrize(
    "body",
    [
        pytest.param(_claim_with_parameters(b"[" * 5000), id="deeply nested JSON"),
        pytest.param(_envelope("v1", "Pod", _field(1, _field(8, _field(1, 1 << 62)))), id="a time beyond calendars"),
        pytest.param(_envelope("v1", "Pod", _field(1, _field(1, b"\xff\xfe"))), id="text that is not UTF-8"),
        pytest.param(_envelope("v1", "Secret", _field(2, _field(1, b"\xff\xfe"))), id="a key that is not UTF-8"),
    ],
)
def test_values_that_json_cannot_have_are_bad_requests(body: bytes) -> None:
    with pytest.raises(InvalidObjectError) as refused:
        decode_body(body)
    assert refused.value.status == 400
