"""Runs checks one after the other and gives each a verdict. Nothing that a driver does ends a run."""

import logging
import time
from collections.abc import Callable, Sequence
from fnmatch import fnmatchcase

from dra_driver.conformance.bench import Bench
from dra_driver.conformance.capabilities import Capabilities
from dra_driver.conformance.checks import CHECKS
from dra_driver.conformance.values import (
    Check,
    CheckOutcome,
    NotApplicableError,
    Profile,
    UnableError,
    ViolationError,
)
from dra_driver.core.errors import ConfigurationError, KubernetesApiError
from dra_driver.core.finding import Finding, Status
from dra_driver.core.unix_grpc import CallError

log = logging.getLogger(__name__)


def select(profile: Profile, only: Sequence[str] = ()) -> tuple[Check, ...]:
    """The checks of a profile, or those whose id matches a pattern of ``only``. Raises ConfigurationError."""
    for pattern in only:
        if not any(fnmatchcase(check.id, pattern) for check in CHECKS):
            raise ConfigurationError(f"--only {pattern[:80]}: no check has such an id; --list prints all ids")
    if only:
        return tuple(check for check in CHECKS if any(fnmatchcase(check.id, pattern) for pattern in only))
    return tuple(check for check in CHECKS if profile == "full" or check.profile == "basic")


def run(
    bench: Bench, checks: Sequence[Check], seen: Callable[[CheckOutcome], None] = lambda _: None
) -> list[CheckOutcome]:
    """The verdict of every check, in order; ``seen`` gets each as soon as it is known."""
    capabilities = Capabilities(bench)
    outcomes = []
    for check in checks:
        outcomes.append(_run_one(bench, check, capabilities))
        seen(outcomes[-1])
    return outcomes


def _run_one(bench: Bench, check: Check, capabilities: Capabilities) -> CheckOutcome:
    begin = time.monotonic()
    status, seen = _judged(bench, check, capabilities)
    bench.clean()
    finding = Finding(status=status, check=check.id, object=bench.subject.driver, seen=seen, expected=check.rule)
    return CheckOutcome(check=check, finding=finding, seconds=time.monotonic() - begin)


def _judged(bench: Bench, check: Check, capabilities: Capabilities) -> tuple[Status, str]:
    bench.begin()
    try:
        for capability in check.needs:
            if why := capabilities.missing(capability):
                return Status.SKIPPED, why
        bench.begin()
        check.run(bench)
    except (ViolationError, CallError) as error:
        return (Status.FAIL if check.level == "must" else Status.WARN), str(error)
    except NotApplicableError as error:
        return Status.SKIPPED, str(error)
    except (UnableError, KubernetesApiError) as error:
        return Status.UNKNOWN, str(error)
    except Exception as error:  # one check must not end the others
        log.exception("a check failed unexpectedly", extra={"check": check.id})
        return Status.UNKNOWN, f"the suite failed unexpectedly ({type(error).__name__}: {error}); please report it"
    return Status.OK, ""
