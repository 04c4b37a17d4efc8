"""``status.usage`` of a GpuNode, from values and back. Pure.

Lists are cut to the bounds of ``config/schemas/gpu_node_usage.py``. What is read is what another process wrote into the
API server: entries that make no sense are left out, and an unknown action asks for nothing.
"""

from collections.abc import Callable, Mapping
from typing import Any, Final, TypeVar

from dra_driver.core.model.gpu_node_usage import (
    MAX_TOLD,
    MAX_TOLD_PODS,
    NO_USAGE,
    ToldForeign,
    ToldIdle,
    ToldOverGrant,
    ToldPod,
    ToldUsage,
)
from dra_driver.core.model.usage_findings import MAX_COMMAND, MAX_COMMANDS
from dra_driver.core.model.usage_rules import IdleAction, OverGrantAction
from dra_driver.core.text import printable

Json = dict[str, Any]
_Told = TypeVar("_Told")
LONGEST_GRACE_S: Final = 86400
LONGEST_IDLE_MIN: Final = 10080
"""What a GpuPolicy may say."""
MOST_PROCESSES: Final = 100_000


def usage_status(told: ToldUsage) -> Json | None:
    """None when there is nothing to tell."""
    found: Json = {}
    if told.checked_at is not None:
        found["checkedAt"] = told.checked_at
    if told.over_grant:
        found["overGrant"] = [_over_grant(each) for each in told.over_grant[:MAX_TOLD]]
    if told.unattributed:
        found["unattributed"] = [_foreign(each) for each in told.unattributed[:MAX_TOLD]]
    if told.idle:
        found["idle"] = [_idle(each) for each in told.idle[:MAX_TOLD]]
    return found or None


def usage_status_of(written: object) -> ToldUsage:
    """From ``status.usage`` of any shape."""
    if not isinstance(written, Mapping):
        return NO_USAGE
    return ToldUsage(
        over_grant=_each(written, "overGrant", _over_grant_of),
        unattributed=_each(written, "unattributed", _foreign_of),
        idle=_each(written, "idle", _idle_of),
        checked_at=_str(written, "checkedAt"),
    )


def usage_in_words(told: ToldUsage) -> str | None:
    """For a column of kubectl; None when there is nothing to tell."""
    counts = {
        "over grant": [f"{each.namespace}/{each.claim}" for each in told.over_grant],
        "idle": [f"{each.namespace}/{each.claim}" for each in told.idle],
        "with processes of no claim": [each.gpu for each in told.unattributed],
    }
    return "; ".join(f"{len(names)} {what}: {', '.join(names)}" for what, names in counts.items() if names) or None


def _over_grant(told: ToldOverGrant) -> Json:
    return {
        **_claim(told),
        "gpu": told.gpu,
        "pods": [{"name": pod.name, "uid": pod.uid} for pod in told.pods[:MAX_TOLD_PODS]],
        "used": told.used,
        "granted": told.granted,
        "processes": min(told.processes, MOST_PROCESSES),
        "since": told.since,
        "action": told.action.value,
        "graceSeconds": told.grace_s,
    }


def _foreign(told: ToldForeign) -> Json:
    memory = {"memory": told.memory} if told.memory is not None else {}
    commands = [shown for each in told.commands[:MAX_COMMANDS] if (shown := printable(each)[:MAX_COMMAND])]
    processes = min(told.processes, MOST_PROCESSES)
    return {"gpu": told.gpu, "processes": processes, **memory, "since": told.since, "commands": commands}


def _idle(told: ToldIdle) -> Json:
    return {**_claim(told), "since": told.since, "action": told.action.value, "afterMinutes": told.after_min}


def _claim(told: ToldOverGrant | ToldIdle) -> Json:
    return {"namespace": told.namespace, "claim": told.claim, "claimUid": told.claim_uid}


def _over_grant_of(each: Mapping[str, Any]) -> ToldOverGrant | None:
    texts = {name: _str(each, name) for name in ("namespace", "claim", "claimUid", "gpu", "used", "granted", "since")}
    pods = tuple(
        ToldPod(name=pod["name"], uid=pod["uid"])
        for pod in _maps(each, "pods", MAX_TOLD_PODS)
        if _str(pod, "name") and _str(pod, "uid")
    )
    grace_s = _number(each, "graceSeconds", LONGEST_GRACE_S)
    if None in texts.values() or grace_s is None:
        return None
    return ToldOverGrant(
        namespace=texts["namespace"] or "",
        claim=texts["claim"] or "",
        claim_uid=texts["claimUid"] or "",
        gpu=texts["gpu"] or "",
        pods=pods,
        used=texts["used"] or "",
        granted=texts["granted"] or "",
        processes=_number(each, "processes", MOST_PROCESSES) or 0,
        since=texts["since"] or "",
        action=OverGrantAction.EVICT if each.get("action") == OverGrantAction.EVICT else OverGrantAction.REPORT,
        grace_s=grace_s,
    )


def _foreign_of(each: Mapping[str, Any]) -> ToldForeign | None:
    gpu, since, processes = _str(each, "gpu"), _str(each, "since"), _number(each, "processes", MOST_PROCESSES)
    if gpu is None or since is None or processes is None:
        return None
    named = each.get("commands")
    commands = tuple(item for item in named[:MAX_COMMANDS] if isinstance(item, str)) if isinstance(named, list) else ()
    return ToldForeign(gpu=gpu, processes=processes, memory=_str(each, "memory"), since=since, commands=commands)


def _idle_of(each: Mapping[str, Any]) -> ToldIdle | None:
    namespace, claim, uid = (_str(each, name) for name in ("namespace", "claim", "claimUid"))
    since, after_min = _str(each, "since"), _number(each, "afterMinutes", LONGEST_IDLE_MIN)
    if namespace is None or claim is None or uid is None or since is None or not after_min:
        return None
    reclaims = each.get("action") == IdleAction.RECLAIM
    return ToldIdle(
        namespace=namespace,
        claim=claim,
        claim_uid=uid,
        since=since,
        after_min=after_min,
        action=IdleAction.RECLAIM if reclaims else IdleAction.REPORT,
    )


def _each(
    found: Mapping[str, Any], name: str, decoded: Callable[[Mapping[str, Any]], _Told | None]
) -> tuple[_Told, ...]:
    read = (decoded(each) for each in _maps(found, name, MAX_TOLD))
    return tuple(each for each in read if each is not None)


def _maps(found: Mapping[str, Any], name: str, most: int) -> list[Mapping[str, Any]]:
    value = found.get(name)
    return [each for each in value[:most] if isinstance(each, Mapping)] if isinstance(value, list) else []


def _str(found: Mapping[str, Any], name: str) -> str | None:
    value = found.get(name)
    return value if isinstance(value, str) and value else None


def _number(found: Mapping[str, Any], name: str, most: int) -> int | None:
    value = found.get(name)
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= most else None
