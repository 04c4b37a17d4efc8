"""Values of a conformance run: a check, its verdict, the time limits, and the errors that end a check."""

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Final, Literal

from msgspec import Struct

from dra_driver.core.errors import DraError
from dra_driver.core.finding import Finding, Status
from dra_driver.core.text import one_line

if TYPE_CHECKING:
    from dra_driver.conformance.bench import Bench

Profile = Literal["basic", "full"]
"""``basic`` is required of every driver; ``full`` adds restarts, disturbances, concurrency and large inputs."""
Capability = Literal[
    "restart", "cdi", "shares", "partitions", "admin-access", "health", "faults", "taints", "2-devices", "32-devices"
]
Level = Literal["must", "should"]
"""A check of level ``should`` that fails is advice: it changes the exit status only with ``--strict``."""
VERDICTS: Final = {
    Status.OK: "passed",
    Status.FAIL: "failed",
    Status.WARN: "advice",
    Status.SKIPPED: "not applicable",
    Status.UNKNOWN: "unable",
}
"""Words of the verdict in all reports, by the status of the finding."""

CAPABILITIES: Final[dict[Capability, str]] = {
    "restart": "the suite may kill the driver and start it again (--restart-command, or a command after `--`)",
    "cdi": "the driver passes devices to containers by CDI (default; --no-cdi disables it)",
    "shares": "a device with allowMultipleAllocations is published",
    "partitions": "a device that consumes counters is published",
    "admin-access": "the driver prepares a claim with admin access to a free device",
    "health": "the health stream reports a device of a prepared claim",
    "faults": "the suite may break a device and repair it (--break-command and --repair-command)",
    "taints": "a device with a taint is published",
    "2-devices": "2 devices that do not exclude each other, or a shared one, are published",
    "32-devices": "32 devices that do not exclude each other are published",
}
"""Capabilities that a driver may lack without failing, and how the suite recognizes them."""


class ViolationError(DraError):
    """The driver breaks the rule of the check; the message has the observed and the expected behaviour."""


class NotApplicableError(DraError):
    """The driver lacks a capability that the check needs."""


class UnableError(DraError):
    """The suite cannot run the check, for a reason other than this check's rule."""


class Check(Struct, frozen=True, kw_only=True):
    """A check: a function whose docstring is the title and, as the second paragraph, the rule of the specification.

    A ``source`` without a repository is a file of kubernetes/kubernetes v1.36.2. ``run`` raises an error of this
    module, or returns. ``id`` is stable, because programs compare reports by it.
    """

    id: str
    source: str
    run: Callable[["Bench"], None]
    profile: Profile = "basic"
    level: Level = "must"
    needs: tuple[Capability, ...] = ()

    @property
    def title(self) -> str:
        return (self.run.__doc__ or "").partition("\n\n")[0].removesuffix(".")

    @property
    def rule(self) -> str:
        return " ".join((self.run.__doc__ or "").partition("\n\n")[2].split())


def basic(
    name: str, source: str, *, level: Level = "must", needs: tuple[Capability, ...] = (), profile: Profile = "basic"
) -> Callable[[Callable[["Bench"], None]], Check]:
    return lambda run: Check(id=name, source=source, run=run, profile=profile, level=level, needs=needs)


full: Final = partial(basic, profile="full")
"""Makes a check of the full profile only."""


MAX_DETAIL: Final = 1000


class CheckOutcome(Struct, frozen=True, kw_only=True):
    """The finding of one check. ``seen`` of the finding is empty for a passed check."""

    check: Check
    finding: Finding
    seconds: float = 0.0

    @property
    def verdict(self) -> str:
        return VERDICTS[self.finding.status]

    @property
    def detail(self) -> str:
        return one_line(self.finding.seen, MAX_DETAIL)


class TimeLimits(Struct, frozen=True, kw_only=True):
    """Time limits in seconds. The first four are the kubelet's.

    Sources: pkg/kubelet/pluginmanager/operationexecutor/operation_generator.go:41-95 and
    pkg/kubelet/cm/dra/plugin/dra_plugin.go:42. ``publish_s`` is the delay of upstream's slice controller plus the time
    for which it trusts its own writes (resourceslicecontroller.go:57-69). A driver may wait for a device in use; after
    ``in_use_s`` that counts as a refusal.
    """

    dial_s: float = 10.0
    get_info_s: float = 1.0
    notify_s: float = 5.0
    call_s: float = 45.0
    publish_s: float = 100.0
    restart_s: float = 60.0
    in_use_s: float = 5.0
    health_s: float = 12.0
    quiet_s: float = 2.0
    check_s: float = 240.0
    pause_s: float = 0.05
