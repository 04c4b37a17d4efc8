"""A Lease as election record: when a replica may take it, and what it writes. Pure.

The rules are those of client-go (kubernetes/client-go tools/leaderelection): no clock of another machine is trusted. A
replica measures with its own clock how long it has seen the same record; a record that does not change for as long as
its holder promised is up for taking.
"""

from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final

from msgspec import Struct

from dra_driver.core.time import rfc3339_micro

LONGEST_S: Final = 300
"""A promise beyond this is not believed: a wrong value in the Lease must not stop all replicas."""


class LeaseTimes(Struct, frozen=True, kw_only=True):
    """Seconds. The leader stops acting ``renew_s`` after its last successful renewal began, and others may take the
    Lease ``duration_s`` after they saw that renewal: the difference is what one request in flight may take.
    """

    duration_s: float
    renew_s: float
    retry_s: float
    request_s: float

    @classmethod
    def of(cls, duration_s: float) -> "LeaseTimes":
        """The parts that client-go's defaults have: 15, 10 and 2 s."""
        return cls(
            duration_s=duration_s,
            renew_s=duration_s * 2 / 3,
            retry_s=duration_s * 2 / 15,
            request_s=duration_s / 4,
        )


class LeaseRecord(Struct, frozen=True, kw_only=True):
    """What a Lease object says. ``holder`` is "" when it was released."""

    version: str
    holder: str
    duration_s: float
    transitions: int
    acquired: str = ""
    renewed: str = ""

    @classmethod
    def of(cls, obj: Mapping[str, Any]) -> "LeaseRecord":
        """From the API object. Fields of a wrong type count as absent."""
        metadata, spec = _mapping(obj, "metadata"), _mapping(obj, "spec")
        duration = _number(spec, "leaseDurationSeconds")
        return cls(
            version=_text(metadata, "resourceVersion"),
            holder=_text(spec, "holderIdentity"),
            duration_s=float(min(max(duration, 1), LONGEST_S)),
            transitions=_number(spec, "leaseTransitions"),
            acquired=_text(spec, "acquireTime"),
            renewed=_text(spec, "renewTime"),
        )


class Sighting(Struct, frozen=True, kw_only=True):
    """A record, and when this replica first saw it so (s, its own clock)."""

    record: LeaseRecord
    since_s: float


def seen(record: LeaseRecord, before: Sighting | None, now_s: float) -> Sighting:
    """The sighting of a record that was just read: the earlier one while nothing in it has changed."""
    return before if before is not None and before.record == record else Sighting(record=record, since_s=now_s)


def may_take(sighting: Sighting, identity: str, now_s: float) -> bool:
    """Whether ``identity`` may write itself into the Lease: its own, released, or its holder's promise has run out."""
    record = sighting.record
    return record.holder in {"", identity} or now_s >= sighting.since_s + record.duration_s


def held_by(identity: str, former: LeaseRecord | None, now: datetime, duration_s: float) -> dict[str, Any]:
    """The Lease's spec with which ``identity`` takes or keeps it. ``now`` is for people who read it."""
    keeps = former is not None and former.holder == identity
    changes = 0 if former is None else former.transitions + (0 if keeps or not former.version else 1)
    return {
        "holderIdentity": identity,
        "leaseDurationSeconds": max(1, round(duration_s)),
        "acquireTime": former.acquired if keeps and former and former.acquired else rfc3339_micro(now),
        "renewTime": rfc3339_micro(now),
        "leaseTransitions": changes,
    }


def released(former: LeaseRecord, now: datetime) -> dict[str, Any]:
    """The spec of a Lease that its holder gives up, so that another replica need not wait."""
    stamp = rfc3339_micro(now)
    return {
        "holderIdentity": "",
        "leaseDurationSeconds": 1,
        "acquireTime": stamp,
        "renewTime": stamp,
        "leaseTransitions": former.transitions,
    }


def _mapping(obj: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    found = obj.get(key)
    return found if isinstance(found, dict) else {}


def _text(obj: Mapping[str, Any], key: str) -> str:
    found = obj.get(key)
    return found if isinstance(found, str) else ""


def _number(obj: Mapping[str, Any], key: str) -> int:
    found = obj.get(key)
    return found if isinstance(found, int) and not isinstance(found, bool) and found >= 0 else 0
