"""``findings.json``: what the usage exporter tells the node process, to JSON and back. Pure.

The exporter reads processes of tenants, so the node process takes its file as it would take a tenant's: every list and
text is cut to its bound, entries that make no sense are left out, and a file that is no JSON object counts as damaged.
"""

import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, TypeVar

from dra_driver.core.errors import ConfigurationError
from dra_driver.core.model.claim import ClaimRef
from dra_driver.core.model.ids import ClaimUid
from dra_driver.core.model.usage_findings import (
    MAX_COMMAND,
    MAX_COMMANDS,
    MAX_IDLE,
    MAX_OVER_GRANT,
    MAX_PODS,
    MAX_UNATTRIBUTED,
    IdleClaim,
    OverGrant,
    Unattributed,
    UsageFindings,
    UsingPod,
)
from dra_driver.core.model.usage_rules import OverGrantAction
from dra_driver.core.time import parse_time, rfc3339

VERSION: Final = 1
FOLDER, FILE = "findings", "findings.json"
"""In the folder ``usage`` of the driver's directory; the exporter may write this folder alone."""
LOCK: Final = "driver.lock"
"""In the same folder: the exporter holds a shared lock on it while it has the NVIDIA driver open."""
MAX_BYTES: Final = 2**20
RENEW_S: Final = 60.0
"""How often the exporter writes the file anew while there is anything in it, changed or not; else on change alone."""
_MAX_NAME, _MAX_UID = 253, 128
_MOST: Final = 2**60
_T = TypeVar("_T")
Json = dict[str, Any]


def encode(findings: UsageFindings) -> bytes:
    """The file's content."""
    document = {
        "version": VERSION,
        "written": rfc3339(findings.written),
        "overGrant": [_over_grant(each) for each in findings.over_grant[:MAX_OVER_GRANT]],
        "unattributed": [_unattributed(each) for each in findings.unattributed[:MAX_UNATTRIBUTED]],
        "idle": [{**_claim(each.claim), "since": rfc3339(each.since)} for each in findings.idle[:MAX_IDLE]],
    }
    return json.dumps(document, ensure_ascii=True, separators=(",", ":")).encode() + b"\n"


def decode(content: bytes) -> UsageFindings:
    """Raises ConfigurationError, which says what is wrong, for content that is not such a file."""
    if len(content) > MAX_BYTES:
        raise ConfigurationError(f"{FILE} has {len(content)} bytes, expected at most {MAX_BYTES}")
    try:
        document = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise ConfigurationError(f"{FILE} is not JSON: {error}") from error
    version = document.get("version") if isinstance(document, dict) else None
    if version != VERSION:
        raise ConfigurationError(f"{FILE} has version {str(version)[:20]!r}, expected {VERSION}")
    written = parse_time(document.get("written"))
    if written is None:
        raise ConfigurationError(f"{FILE} does not say when it was written")
    return UsageFindings(
        written=written,
        over_grant=_each(document.get("overGrant"), MAX_OVER_GRANT, _over_grant_of),
        unattributed=_each(document.get("unattributed"), MAX_UNATTRIBUTED, _unattributed_of),
        idle=_each(document.get("idle"), MAX_IDLE, _idle_of),
    )


def _over_grant(found: OverGrant) -> Json:
    return {
        **_claim(found.claim),
        "device": found.device,
        "pods": [{"namespace": pod.namespace, "name": pod.name, "uid": pod.uid} for pod in found.pods[:MAX_PODS]],
        "usedBytes": found.used_bytes,
        "grantBytes": found.grant_bytes,
        "processes": found.processes,
        "since": rfc3339(found.since),
        "action": found.action.value,
    }


def _unattributed(found: Unattributed) -> Json:
    return {
        "gpu": found.gpu_uuid,
        "device": found.device,
        "processes": found.processes,
        "bytes": found.bytes_used,
        "since": rfc3339(found.since),
        "commands": [command[:MAX_COMMAND] for command in found.commands[:MAX_COMMANDS]],
    }


def _claim(claim: ClaimRef) -> Json:
    return {"claimUid": claim.uid, "namespace": claim.namespace, "claim": claim.name}


def _over_grant_of(found: Mapping[str, Any]) -> OverGrant | None:
    claim, since, device = _claim_of(found), parse_time(found.get("since")), _text(found, "device", _MAX_NAME)
    used, grant, processes = (_number(found, name) for name in ("usedBytes", "grantBytes", "processes"))
    pods = _each(found.get("pods"), MAX_PODS, _pod_of)
    if claim is None or since is None or device is None or not pods:
        return None
    if used is None or grant is None or processes is None:
        return None
    evicts = found.get("action") == OverGrantAction.EVICT.value
    return OverGrant(
        claim=claim,
        device=device,
        pods=pods,
        used_bytes=used,
        grant_bytes=grant,
        processes=processes,
        since=since,
        action=OverGrantAction.EVICT if evicts else OverGrantAction.REPORT,
    )


def _unattributed_of(found: Mapping[str, Any]) -> Unattributed | None:
    uuid, device = _text(found, "gpu", _MAX_UID), _text(found, "device", _MAX_NAME)
    processes, since = _number(found, "processes"), parse_time(found.get("since"))
    if uuid is None or device is None or not processes or since is None:
        return None
    named = found.get("commands")
    commands = [each for each in named[:MAX_COMMANDS] if isinstance(each, str)] if isinstance(named, list) else []
    return Unattributed(
        gpu_uuid=uuid,
        device=device,
        processes=processes,
        bytes_used=_number(found, "bytes"),
        since=since,
        commands=tuple(each[:MAX_COMMAND] for each in commands if each),
    )


def _idle_of(found: Mapping[str, Any]) -> IdleClaim | None:
    claim, since = _claim_of(found), parse_time(found.get("since"))
    return IdleClaim(claim=claim, since=since) if claim is not None and since is not None else None


def _claim_of(found: Mapping[str, Any]) -> ClaimRef | None:
    namespace, name = _text(found, "namespace", _MAX_NAME), _text(found, "claim", _MAX_NAME)
    uid = _text(found, "claimUid", _MAX_UID)
    if namespace is None or name is None or uid is None:
        return None
    return ClaimRef(namespace=namespace, name=name, uid=ClaimUid(uid))


def _pod_of(found: Mapping[str, Any]) -> UsingPod | None:
    namespace, name = _text(found, "namespace", _MAX_NAME), _text(found, "name", _MAX_NAME)
    uid = _text(found, "uid", _MAX_UID)
    return None if namespace is None or name is None or uid is None else UsingPod(
        namespace=namespace, name=name, uid=uid
    )  # fmt: skip


def _each(found: Any, most: int, decoded: Callable[[Mapping[str, Any]], _T | None]) -> tuple[_T, ...]:
    items: Iterable[Any] = found[:most] if isinstance(found, list) else ()
    read = (decoded(item) for item in items if isinstance(item, dict))
    return tuple(item for item in read if item is not None)


def _text(found: Mapping[str, Any], name: str, longest: int) -> str | None:
    value = found.get(name)
    return value if isinstance(value, str) and 0 < len(value) <= longest and value.isprintable() else None


def _number(found: Mapping[str, Any], name: str) -> int | None:
    value = found.get(name)
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= _MOST else None
