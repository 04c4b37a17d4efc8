"""Makes the webhook's certificates, and reads what is in one. The only module that imports ``cryptography``.

Each pair has a CA of its own, whose key is forgotten as soon as it has signed: nothing that is kept could sign another
certificate that API servers trust. Loaded only where the webhook is on.
"""

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
)
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID
from msgspec import Struct

from dra_driver.controller.webhook_plan import Life, Pair

CLOCKS_DIFFER: Final = timedelta(hours=1)
"""How far the clocks of a replica and of an API server may be apart."""


def make_pair(names: Sequence[str], now: datetime, lifetime: timedelta) -> Pair:
    """A new CA and a serving certificate for these DNS names. ``now`` has a time zone."""
    begin, end = now - CLOCKS_DIFFER, now + lifetime
    ca_key, key = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())
    ca_name = _name(f"dra-driver webhook CA {now:%Y-%m-%d %H:%M:%S}")
    ca = (
        _builder(ca_name, ca_name, ca_key.public_key(), begin, end)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(signs=True), critical=True)
        .sign(ca_key, hashes.SHA256())
    )
    leaf = (
        _builder(_name(names[0][:64]), ca_name, key.public_key(), begin, end)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(signs=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(name) for name in names]), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(ca_key.public_key()), critical=False)
        .sign(ca_key, hashes.SHA256())
    )
    return Pair(
        certificate=leaf.public_bytes(Encoding.PEM),
        key=key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()),
        ca=ca.public_bytes(Encoding.PEM),
    )


class CertificateReader(Struct, frozen=True):
    """Judges pairs for the DNS names of one webhook."""

    names: Sequence[str]

    def life(self, pair: Pair) -> Life | str:
        """From when until when it is good, or why it never is. Never repeats what is in a key."""
        try:
            leaf, ca = x509.load_pem_x509_certificate(pair.certificate), x509.load_pem_x509_certificate(pair.ca)
            key = load_pem_private_key(pair.key, password=None)
            leaf.verify_directly_issued_by(ca)
            found = leaf.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        except Exception as error:  # noqa: BLE001 - the library has many, and what is in the Secret may be anything
            return f"it cannot be read ({type(error).__name__})"
        if _public(key.public_key()) != _public(leaf.public_key()):
            return "its key is that of another certificate"
        missing = set(self.names) - set(found.get_values_for_type(x509.DNSName))
        if missing:
            return f"it is not for {min(missing)}"
        begin = max(leaf.not_valid_before_utc, ca.not_valid_before_utc)
        return Life(begin=begin, end=min(leaf.not_valid_after_utc, ca.not_valid_after_utc))

    def is_certificate(self, ca: bytes) -> bool:
        """Whether the API server would take it in a bundle: it refuses a bundle with anything else."""
        try:
            return len(x509.load_pem_x509_certificates(ca)) == 1
        except Exception:  # noqa: BLE001 - as above
            return False


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, begin: datetime, end: datetime
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(begin)
        .not_valid_after(end)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
    )


def _usage(*, signs: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs, key_cert_sign=signs, crl_sign=signs, content_commitment=False,
        key_encipherment=False, data_encipherment=False, key_agreement=False, encipher_only=False, decipher_only=False,
    )  # fmt: skip


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def _public(key: object) -> bytes:
    encoded: bytes = key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)  # type: ignore[attr-defined]
    return encoded
