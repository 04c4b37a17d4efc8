"""Run checks against a driver one after the other and give each a verdict. Nothing that a driver does ends a run."""

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Final

from msgspec import Struct

from dra_driver.conformance.bench import Bench, Control, TestedDriver
from dra_driver.conformance.checks import CHECKS
from dra_driver.conformance.checks.health import reports_something
from dra_driver.conformance.cluster import MANY, ClaimTemplate, ClusterObjects, taints, together
from dra_driver.conformance.plugin import ask, sockets
from dra_driver.conformance.values import (
    Capability,
    Check,
    CheckOutcome,
    NotApplicableError,
    Profile,
    TimeLimits,
    UnableError,
    ViolationError,
)
from dra_driver.core.errors import ConfigurationError, KubernetesApiError
from dra_driver.core.finding import Finding, Status
from dra_driver.core.unix_grpc import CallError, is_served
from dra_driver.kube import paths
from dra_driver.kube.rest import RestClient


class SuiteTarget(Struct, frozen=True, kw_only=True):
    """The driver to test. ``driver`` and ``node`` are found if they are empty."""

    registrar_dir: Path
    cdi_dirs: tuple[Path, ...]
    driver: str = ""
    node: str = ""
    control: Control | None = None
    template: ClaimTemplate | None = None
    limits: TimeLimits


@contextmanager
def open_bench(target: SuiteTarget, rest: RestClient) -> Iterator[Bench]:
    """The bench, and the removal of what it created. Raises ConfigurationError and KubernetesApiError."""
    driver = target.driver or _find_driver(target)
    node = target.node or _find_node(rest, driver, target.limits)
    subject = TestedDriver(
        driver=driver,
        registrar_dir=target.registrar_dir,
        cdi_dirs=target.cdi_dirs,
        control=target.control,
        limits=target.limits,
    )
    cluster = ClusterObjects(rest, node=node, driver=driver)
    bench = Bench(subject, cluster, target.template)
    try:
        cluster.prepare(target.template.classes if target.template else ())
        yield bench
    finally:
        bench.close()
        cluster.clean()


def _find_driver(target: SuiteTarget) -> str:
    """The name of the only driver in the folder."""
    until = time.monotonic() + target.limits.restart_s
    while True:
        asked = [ask(path, what, target.limits) for path, what in sockets(target.registrar_dir)]
        names = {one.info.name for one in asked if one.info is not None}
        if len(names) == 1:
            return names.pop()
        if names or time.monotonic() > until:
            break
        time.sleep(target.limits.pause_s)
    seen = ", ".join(sorted(names)) or "; ".join(one.problem for one in asked[:4]) or "no socket"
    raise ConfigurationError(f"{target.registrar_dir} has {seen}: expected one driver; choose one with --driver")


def _find_node(rest: RestClient, driver: str, limits: TimeLimits) -> str:
    """The only node for which the driver publishes slices."""
    until = time.monotonic() + limits.publish_s
    while True:
        found = rest.list(paths.resource_slices(), {"fieldSelector": f"spec.driver={driver}"})["items"]
        nodes = {item["spec"].get("nodeName") for item in found} - {None}
        if len(nodes) == 1:
            return str(nodes.pop())
        if nodes or time.monotonic() > until:
            listed = ", ".join(sorted(nodes)[:4]) or "no node"
            raise ConfigurationError(f"driver {driver} publishes for {listed}: choose the node with --node-name")
        time.sleep(limits.pause_s)


KUBELET_SOCKETS: Final = ("pod-resources/kubelet.sock", "device-plugins/kubelet.sock")
_PROBE_S: Final = 1.0


def kubelet_beside(registrar_dir: Path) -> str:
    """Why a kubelet seems to work in this folder, as a sentence; empty if none does."""
    root = registrar_dir.resolve().parent
    for name in KUBELET_SOCKETS:
        if is_served(root / name, _PROBE_S):
            return f"a kubelet serves {root / name}, so it also works in {registrar_dir}"
    return ""


def check_folder(registrar_dir: Path, *, owned: bool) -> None:
    """Raise ConfigurationError for a folder that the suite must not use."""
    if not registrar_dir.is_dir():
        raise ConfigurationError(f"--registrar-dir {registrar_dir} is not a folder")
    why = kubelet_beside(registrar_dir)
    if why and not owned:
        raise ConfigurationError(
            f"{why}. The checks restart the driver, delete its ResourceSlices and prepare claims, which disturbs pods; "
            "use a folder without a kubelet, or --i-own-this-node on a node without pods that need the driver"
        )


class Capabilities:
    """Answers, and remembers them. A capability is looked at when the first check needs it."""

    def __init__(self, bench: Bench) -> None:
        self._bench = bench
        self._known: dict[Capability, str] = {}

    def missing(self, capability: Capability) -> str:
        """Why the driver does not have the capability, as a sentence; empty if it does. Raises what a check raises."""
        if capability not in self._known:
            self._known[capability] = _LOOK[capability](self._bench)
        return self._known[capability]


def _restart(bench: Bench) -> str:
    return "" if bench.subject.control else "no --restart-command and no command to start the driver was given"


def _shares(bench: Bench) -> str:
    found = any(device.is_shared for device in bench.scheduler.devices())
    return "" if found else "the driver publishes no device with allowMultipleAllocations"


def _partitions(bench: Bench) -> str:
    found = any(device.is_partition for device in bench.scheduler.devices())
    return "" if found else "the driver publishes no device that consumes counters"


def _taints(bench: Bench) -> str:
    return "" if any(taints(bench.slices())) else "the driver publishes no device with a taint"


def _two(bench: Bench) -> str:
    usable = bench.scheduler.usable()
    enough = any(device.is_shared for device in usable) or len(together(bench.slices(), usable, 2)) > 1
    return "" if enough else "the driver publishes one device that can be used, or devices that exclude each other"


def _many(bench: Bench) -> str:
    usable = bench.scheduler.usable()
    found = len(together(bench.slices(), usable, MANY))
    return "" if found == MANY else f"the driver publishes {found} devices that do not exclude each other"


def _admin_access(bench: Bench) -> str:
    try:
        claim = bench.claim(adminAccess=True)
    except UnableError as error:
        return f"no claim with admin access can be allocated: {error}"
    why = bench.refusal(claim.key)
    bench.clean()
    return f"the driver refuses claims with admin access: {why}" if why else ""


_LOOK: Final[dict[Capability, Callable[[Bench], str]]] = {
    "restart": _restart,
    "shares": _shares,
    "partitions": _partitions,
    "admin-access": _admin_access,
    "health": reports_something,
    "taints": _taints,
    "2-devices": _two,
    "32-devices": _many,
}


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
