"""What has to happen to the webhook's certificates next. Pure.

A certificate is replaced so that an API server trusts it before it is served:

1. `Step.PREPARE`: the next pair is made; its CA is in the bundle beside the current one.
2. `Step.ANNOUNCED`: the bundle has reached the API servers' configuration; from now the overlap is counted.
3. `Step.SERVE`: after the overlap the next pair is the current one. The former CA stays in the bundle.
4. `Step.FORGET`: after another overlap no replica serves the former certificate; its CA leaves the bundle.

`Step.REPLACE` makes a pair at once, where none can be served anyway.
"""

from collections.abc import Callable
from datetime import datetime, timedelta
from enum import Enum

from msgspec import Struct


class Pair(Struct, frozen=True, kw_only=True):
    """A serving certificate, its key and the certificate of its CA, in PEM."""

    certificate: bytes
    key: bytes
    ca: bytes

    def __repr__(self) -> str:
        return "Pair(...)"  # a key must not get into a log


class Life(Struct, frozen=True, kw_only=True):
    """When a pair is good."""

    begin: datetime
    end: datetime


class Stored(Struct, frozen=True, kw_only=True):
    """What the Secret holds. ``former_ca`` is empty when there is none. ``since``: when the last step was done."""

    current: Pair | None = None
    following: Pair | None = None
    former_ca: bytes = b""
    since: datetime | None = None

    @property
    def bundle(self) -> bytes:
        """The CAs that API servers have to trust, each once."""
        found = [pair.ca for pair in (self.current, self.following) if pair is not None]
        return b"".join(dict.fromkeys([*found, *([self.former_ca] if self.former_ca else [])]))


class Times(Struct, frozen=True, kw_only=True):
    """``renew``: how long before its end a certificate is replaced."""

    lifetime: timedelta
    renew: timedelta
    overlap: timedelta

    @classmethod
    def of(cls, lifetime: timedelta) -> "Times":
        """A third of the life is left for the renewal; the overlap is an hour or, for short lives, a tenth."""
        return cls(lifetime=lifetime, renew=lifetime / 3, overlap=min(timedelta(hours=1), lifetime / 10))


class Step(Enum):
    """See the module's docstring."""

    NOTHING = "nothing"
    REPLACE = "replace"
    PREPARE = "prepare"
    ANNOUNCED = "announced"
    SERVE = "serve"
    FORGET = "forget"


Judge = Callable[[Pair], Life | str]


def next_step(stored: Stored, judge: Judge, now: datetime, times: Times, *, announced: bool) -> Step:
    """``announced``: the configuration at the API server has the bundle of ``stored``."""
    if stored.current is None or problem(stored.current, judge, now):
        following = stored.following
        return Step.SERVE if following is not None and not problem(following, judge, now) else Step.REPLACE
    if stored.following is not None and problem(stored.following, judge, now):
        return Step.PREPARE
    if stored.following is not None:
        if not announced:
            return Step.NOTHING
        if not _counts(stored.since, now):
            return Step.ANNOUNCED
        return Step.SERVE if _over(stored.since, now, times.overlap) else Step.NOTHING
    if stored.former_ca:
        return (
            Step.FORGET if not _counts(stored.since, now) or _over(stored.since, now, times.overlap) else Step.NOTHING
        )
    life = judge(stored.current)
    return Step.PREPARE if isinstance(life, Life) and now >= life.end - times.renew else Step.NOTHING


def done(stored: Stored, step: Step, now: datetime, make: Callable[[], Pair]) -> Stored:
    """What the Secret holds after the step."""
    current, following = stored.current, stored.following
    former = current.ca if current is not None else b""
    if step is Step.REPLACE:  # the other replica may serve the former one for some seconds more
        return Stored(current=make(), former_ca=former, since=now)
    if step is Step.PREPARE:
        return Stored(current=current, following=make(), former_ca=b"")
    if step is Step.ANNOUNCED:
        return Stored(current=current, following=following, former_ca=stored.former_ca, since=now)
    if step is Step.SERVE:
        return Stored(current=following, former_ca=former, since=now)
    if step is Step.FORGET:
        return Stored(current=current)
    return stored


def problem(pair: Pair, judge: Judge, now: datetime) -> str | None:
    """Why a pair cannot be served now; None if it can."""
    life = judge(pair)
    if isinstance(life, str):
        return life
    if now < life.begin:
        return f"it is not good before {life.begin.isoformat()}: the clocks of the replicas' machines differ"
    return f"it expired at {life.end.isoformat()}" if now >= life.end else None


def _counts(since: datetime | None, now: datetime) -> bool:
    """Whether the time of the last step is one: a time in the future was written by a clock that goes wrong."""
    return since is not None and since <= now


def _over(since: datetime | None, now: datetime, overlap: timedelta) -> bool:
    return since is not None and now >= since + overlap
