"""``assignments.json``: which claims have which devices, as the node process tells the exporter. Pure.

The node process writes the file (``node/process/assignments_file.py``). It is read as the file of another program:
lists and texts are cut to their bounds, entries that make no sense are left out, and a file that is no JSON object of
this version counts as damaged; the exporter goes on with the last good one.
"""

import json
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any, Final, TypeVar

from dra_driver.core.errors import ConfigurationError
from dra_driver.core.model.claim import ClaimRef
from dra_driver.core.model.ids import ClaimUid, GpuUuid
from dra_driver.core.model.terms import Form
from dra_driver.core.model.usage_rules import DEFAULT_OVERHEAD_BYTES, IdleAction, OverGrantAction, UsageRules
from dra_driver.core.time import parse_time
from dra_driver.node.usage.values import AssignedClaim, AssignedGpu, AssignedUse, Assignments

VERSION: Final = 1
FILE: Final = "assignments.json"
MAX_BYTES: Final = 16 * 2**20
MAX_GPUS, MAX_CLAIMS, MAX_DEVICES = 256, 4096, 512
_MAX_NAME, _MAX_TEXT = 253, 1024
_MOST: Final = 2**60
_MOST_SECONDS: Final = 366 * 86400
_FORMS: Final = {form.value: form for form in Form}
_T = TypeVar("_T")
_Found = Mapping[str, Any]


def decode(content: bytes) -> Assignments:
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
    node, driver = _text(document, "node"), _text(document, "driver")
    started = parse_time(document.get("processStarted"))
    if node is None or driver is None or started is None:
        raise ConfigurationError(f"{FILE} does not say of which node, driver and process it is")
    return Assignments(
        node=node,
        driver=driver,
        process_started=started,
        detached=_detached(document.get("detached")),
        gpus=_each(document.get("gpus"), MAX_GPUS, _gpu),
        claims=_each(document.get("claims"), MAX_CLAIMS, _claim),
    )


def _detached(value: Any) -> str | None:
    if value is None:
        return None
    return value[:_MAX_TEXT] if isinstance(value, str) and value else "for a reason that is not told"


def _gpu(found: _Found) -> AssignedGpu | None:
    device, uuid = _text(found, "device"), _text(found, "gpu")
    if device is None or uuid is None:
        return None
    usage = found.get("usage")
    return AssignedGpu(
        device=device,
        gpu_uuid=GpuUuid(uuid),
        model=_text(found, "model") or "",
        changing=found.get("changing") is True,
        rules=_rules(usage if isinstance(usage, dict) else {}),
    )


def _rules(found: _Found) -> UsageRules:
    """What is missing or makes no sense is as if no policy said anything."""
    overhead, grace = _number(found, "overheadBytesPerProcess"), _number(found, "graceSeconds", _MOST_SECONDS)
    idle_after = _number(found, "idleAfterMinutes", _MOST_SECONDS)
    return UsageRules(
        over_grant=OverGrantAction.EVICT if found.get("onOverGrant") == "Evict" else OverGrantAction.REPORT,
        grace_s=60 if grace is None else grace,
        overhead_bytes=DEFAULT_OVERHEAD_BYTES if overhead is None else overhead,
        idle_after_min=idle_after or None,
        idle=IdleAction.RECLAIM if found.get("onIdle") == "Reclaim" else IdleAction.REPORT,
    )


def _claim(found: _Found) -> AssignedClaim | None:
    namespace, name, uid = _text(found, "namespace"), _text(found, "name"), _text(found, "uid")
    if namespace is None or name is None or uid is None:
        return None
    return AssignedClaim(
        ref=ClaimRef(namespace=namespace, name=name, uid=ClaimUid(uid)),
        prepared=parse_time(found.get("prepared")) or datetime.fromtimestamp(0, UTC),
        devices=_each(found.get("devices"), MAX_DEVICES, _device),
    )


def _device(found: _Found) -> AssignedUse | None:
    request, pool, device = _text(found, "request"), _text(found, "pool", _MAX_TEXT), _text(found, "device")
    uuid, form = _text(found, "gpu"), _FORMS.get(str(found.get("form")))
    if request is None or pool is None or device is None or uuid is None or form is None:
        return None
    return AssignedUse(
        request=request,
        pool=pool,
        device=device,
        form=form,
        gpu_uuid=GpuUuid(uuid),
        gi_id=_number(found, "giId"),
        uuid=_text(found, "uuid"),
        profile=_text(found, "profile"),
        share_id=_text(found, "shareId"),
        memory_bytes=_number(found, "memoryBytes"),
        percent=_number(found, "percent", 100),
        admin_access=found.get("adminAccess") is True,
    )


def _each(found: Any, most: int, decoded: Callable[[_Found], _T | None]) -> tuple[_T, ...]:
    items = found[:most] if isinstance(found, list) else ()
    read = (decoded(item) for item in items if isinstance(item, dict))
    return tuple(item for item in read if item is not None)


def _text(found: _Found, name: str, longest: int = _MAX_NAME) -> str | None:
    value = found.get(name)
    return value if isinstance(value, str) and 0 < len(value) <= longest and value.isprintable() else None


def _number(found: _Found, name: str, most: int = _MOST) -> int | None:
    value = found.get(name)
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= most else None
