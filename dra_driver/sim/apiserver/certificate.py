"""A self-signed server certificate for loopback, made with the standard library alone.

kubectl sends a bearer token over TLS only (k8s.io/client-go tools/clientcmd/client_config.go reads no credentials
for plain HTTP), so the embedded API server needs a certificate. A dependency for one certificate was rejected, and
so was calling openssl, which some machines lack. ECDSA on P-256 with SHA-256 (FIPS 186-4, SEC 1), X.509 v3 (RFC 5280).
The key lives as long as the process and protects a loopback socket; this arithmetic is not constant-time and must
not be used for anything else.
"""

import base64
import hashlib
import secrets
import textwrap
from dataclasses import dataclass
from datetime import datetime, timedelta
from ipaddress import ip_address

_P = 2**256 - 2**224 + 2**192 + 2**96 - 1
_A = -3
_N = 0xFFFFFFFF00000000FFFFFFFFFFFFFFFFBCE6FAADA7179E84F3B9CAC2FC632551
_G = (
    0x6B17D1F2E12C4247F8BCE6E563A440F277037D812DEB33A0F4A13945D898C296,
    0x4FE342E2FE1A7F9B8EE7EB4A7C0F9E162BCE33576B315ECECBB6406837BF51F5,
)
_VALID_FOR = timedelta(days=365)

Point = tuple[int, int]

_OID_EC = "2a8648ce3d0201"
_OID_P256 = "2a8648ce3d030107"
_OID_ECDSA_SHA256 = "2a8648ce3d040302"
_OID_COMMON_NAME = "550403"
_OID_SERVER_AUTH = "2b06010505070301"


@dataclass(frozen=True, slots=True)
class Certificate:
    """A certificate that is its own authority, and its private key, both as PEM text."""

    certificate: str
    key: str


def _add(left: Point | None, right: Point | None) -> Point | None:
    if left is None or right is None:
        return left or right
    if left[0] == right[0]:
        if (left[1] + right[1]) % _P == 0:
            return None
        slope = (3 * left[0] ** 2 + _A) * pow(2 * left[1], -1, _P)
    else:
        slope = (right[1] - left[1]) * pow(right[0] - left[0], -1, _P)
    x = (slope * slope - left[0] - right[0]) % _P
    return x, (slope * (left[0] - x) - left[1]) % _P


def _multiply(factor: int, point: Point) -> Point:
    result: Point | None = None
    addend: Point | None = point
    while factor:
        if factor & 1:
            result = _add(result, addend)
        addend = _add(addend, addend)
        factor >>= 1
    if result is None:
        raise ValueError("the factor is a multiple of the group's order")
    return result


def _sign(key: int, message: bytes) -> bytes:
    digest = int.from_bytes(hashlib.sha256(message).digest(), "big")
    while True:
        nonce = secrets.randbelow(_N - 1) + 1
        r = _multiply(nonce, _G)[0] % _N
        s = pow(nonce, -1, _N) * (digest + r * key) % _N
        if r and s:
            return _sequence(_integer(r), _integer(s))


def _der(tag: int, *parts: bytes) -> bytes:
    body = b"".join(parts)
    if len(body) < 128:
        return bytes([tag, len(body)]) + body
    size = len(body).to_bytes((len(body).bit_length() + 7) // 8, "big")
    return bytes([tag, 0x80 | len(size)]) + size + body


def _sequence(*parts: bytes) -> bytes:
    return _der(0x30, *parts)


def _integer(value: int) -> bytes:
    return _der(0x02, value.to_bytes(value.bit_length() // 8 + 1, "big"))


def _oid(encoded: str) -> bytes:
    return _der(0x06, bytes.fromhex(encoded))


def _bits(value: bytes, unused: int = 0) -> bytes:
    return _der(0x03, bytes([unused]) + value)


def _octets(value: bytes) -> bytes:
    return _der(0x04, value)


def _time(moment: datetime) -> bytes:
    return _der(0x17, moment.strftime("%y%m%d%H%M%SZ").encode())  # UTCTime, prescribed until 2049


def _extension(oid: str, value: bytes, *, critical: bool = False) -> bytes:
    return _sequence(_oid(oid), *([b"\x01\x01\xff"] if critical else []), _octets(value))


def _extensions(public: bytes, address: str) -> bytes:
    key_id = hashlib.sha1(public, usedforsecurity=False).digest()
    names = _sequence(_der(0x87, ip_address(address).packed), _der(0x82, b"localhost"))
    extensions = _sequence(
        _extension("551d13", _sequence(b"\x01\x01\xff"), critical=True),  # basicConstraints: CA
        _extension("551d0f", _bits(b"\x84", unused=2), critical=True),  # keyUsage: digitalSignature, keyCertSign
        _extension("551d25", _sequence(_oid(_OID_SERVER_AUTH))),  # extKeyUsage
        _extension("551d0e", _octets(key_id)),  # subjectKeyIdentifier
        _extension("551d23", _sequence(_der(0x80, key_id))),  # authorityKeyIdentifier
        _extension("551d11", names),  # subjectAltName
    )
    return _der(0xA3, extensions)


def _pem(label: str, der: bytes) -> str:
    lines = "\n".join(textwrap.wrap(base64.b64encode(der).decode(), 64))
    return f"-----BEGIN {label}-----\n{lines}\n-----END {label}-----\n"


def self_signed(address: str, now: datetime) -> Certificate:
    """A certificate for ``address`` and localhost, valid from an hour before ``now`` for a year. Takes some 20 ms."""
    key = secrets.randbelow(_N - 1) + 1
    x, y = _multiply(key, _G)
    public = b"\x04" + x.to_bytes(32, "big") + y.to_bytes(32, "big")
    algorithm = _sequence(_oid(_OID_ECDSA_SHA256))
    common_name = _sequence(_oid(_OID_COMMON_NAME), _der(0x0C, b"embedded-cluster"))
    name = _sequence(_der(0x31, common_name))
    body = _sequence(
        _der(0xA0, _integer(2)),  # version 3
        _integer(secrets.randbits(63) + 1),
        algorithm,
        name,
        _sequence(_time(now - timedelta(hours=1)), _time(now + _VALID_FOR)),
        name,
        _sequence(_sequence(_oid(_OID_EC), _oid(_OID_P256)), _bits(public)),
        _extensions(public, address),
    )
    signed = _sequence(body, algorithm, _bits(_sign(key, body)))
    private = _sequence(
        _integer(1), _octets(key.to_bytes(32, "big")), _der(0xA0, _oid(_OID_P256)), _der(0xA1, _bits(public))
    )
    return Certificate(_pem("CERTIFICATE", signed), _pem("EC PRIVATE KEY", private))
