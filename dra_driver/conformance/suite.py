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
    Verdict,
    ViolationError,
)
from dra_driver.core.errors import ConfigurationError, KubernetesApiError
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


def exit_status(outcomes: Sequence[CheckOutcome]) -> int:
    """0: no check failed; 1: one did; 3: none failed, but some could not be carried out."""
    verdicts = {outcome.verdict for outcome in outcomes}
    return 1 if "failed" in verdicts else 3 if "unable" in verdicts else 0


def _run_one(bench: Bench, check: Check, capabilities: Capabilities) -> CheckOutcome:
    begin = time.monotonic()
    verdict, detail = _judged(bench, check, capabilities)
    bench.clean()
    return CheckOutcome(check=check, verdict=verdict, detail=detail, seconds=time.monotonic() - begin)


def _judged(bench: Bench, check: Check, capabilities: Capabilities) -> tuple[Verdict, str]:
    bench.begin()
    try:
        for capability in check.needs:
            if why := capabilities.missing(capability):
                return "not applicable", why
        bench.begin()
        check.run(bench)
    except ViolationError as error:
        return ("failed" if check.level == "must" else "advice"), str(error)
    except NotApplicableError as error:
        return "not applicable", str(error)
    except CallError as error:
        return ("failed" if check.level == "must" else "advice"), str(error)
    except (UnableError, KubernetesApiError) as error:
        return "unable", str(error)
    except Exception as error:  # one check must not end the others
        log.exception("a check failed unexpectedly", extra={"check": check.id})
        return "unable", f"the suite failed unexpectedly ({type(error).__name__}: {error}); please report it"
    return "passed", ""
