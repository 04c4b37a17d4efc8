"""The Secret with the webhook's certificates, and the configuration that names their CAs, to values and back. Pure."""

import base64
import binascii
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any, Final

from dra_driver.config.webhook_files import EXPIRES, TIME_FORMAT
from dra_driver.controller.webhook_plan import Life, Pair, Stored

_CURRENT: Final = ("tls.crt", "tls.key", "ca.crt")
_FOLLOWING: Final = ("next-tls.crt", "next-tls.key", "next-ca.crt")
_FORMER: Final = "former-ca.crt"
_SINCE: Final = "since"
OWN: Final = frozenset({*_CURRENT, *_FOLLOWING, _FORMER, _SINCE})


def stored_of(secret: Mapping[str, Any], is_certificate: Callable[[bytes], bool]) -> Stored:
    """What a Secret holds. What is missing or no base64 counts as absent, and so does a CA that is no certificate."""
    data = secret.get("data")
    fields = data if isinstance(data, dict) else {}
    current, following = (_pair(fields, names, is_certificate) for names in (_CURRENT, _FOLLOWING))
    former = _decoded(fields, _FORMER)
    return Stored(
        current=current,
        following=following,
        former_ca=former if former and is_certificate(former) else b"",
        since=_time(_decoded(fields, _SINCE)),
    )


def secret_with(secret: Mapping[str, Any], stored: Stored) -> dict[str, Any]:
    """The Secret to write. What others put into it stays."""
    data = secret.get("data")
    kept = {name: value for name, value in (data if isinstance(data, dict) else {}).items() if name not in OWN}
    mine: dict[str, bytes] = {}
    for names, pair in ((_CURRENT, stored.current), (_FOLLOWING, stored.following)):
        if pair is not None:
            mine |= dict(zip(names, (pair.certificate, pair.key, pair.ca), strict=True))
    if stored.former_ca:
        mine[_FORMER] = stored.former_ca
    if stored.since is not None:
        mine[_SINCE] = stored.since.strftime(TIME_FORMAT).encode()
    return {**secret, "data": kept | {name: base64.b64encode(value).decode() for name, value in mine.items()}}


def has_bundle(configuration: Mapping[str, Any], bundle: bytes) -> bool:
    """Whether all webhooks of the configuration trust exactly these CAs."""
    wanted = base64.b64encode(bundle).decode()
    return all(each.get("clientConfig", {}).get("caBundle") == wanted for each in _webhooks(configuration))


def with_bundle(configuration: Mapping[str, Any], bundle: bytes) -> dict[str, Any]:
    """The configuration to write: nothing but the bundles is different."""
    wanted = base64.b64encode(bundle).decode()
    changed = [
        {**each, "clientConfig": {**each.get("clientConfig", {}), "caBundle": wanted}}
        for each in _webhooks(configuration)
    ]
    return {**configuration, "webhooks": changed}


def serving_file(pair: Pair, life: Life) -> bytes:
    """What the webhook serves: see ``config.webhook_files``."""
    return f"{EXPIRES}{life.end.strftime(TIME_FORMAT)}\n".encode() + pair.certificate + pair.key


def _webhooks(configuration: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    found = configuration.get("webhooks")
    return [each for each in found if isinstance(each, dict)] if isinstance(found, list) else []


def _pair(
    fields: Mapping[str, Any], names: tuple[str, str, str], is_certificate: Callable[[bytes], bool]
) -> Pair | None:
    certificate, key, ca = (_decoded(fields, name) for name in names)
    if not (certificate and key and ca) or not is_certificate(ca):
        return None
    return Pair(certificate=certificate, key=key, ca=ca)


def _decoded(fields: Mapping[str, Any], name: str) -> bytes:
    value = fields.get(name)
    try:
        return base64.b64decode(value, validate=True) if isinstance(value, str) else b""
    except (binascii.Error, ValueError):
        return b""


def _time(data: bytes) -> datetime | None:
    try:
        return datetime.strptime(data.decode("ascii"), TIME_FORMAT).replace(tzinfo=UTC)
    except ValueError:
        return None
