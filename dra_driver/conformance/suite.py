"""Run checks against a driver one after the other and give each a verdict. A run continues whatever a driver does."""

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Final

from msgspec.structs import replace

from dra_driver.conformance import values
from dra_driver.conformance.bench import Bench, TestedDriver
from dra_driver.conformance.checks import CHECKS
from dra_driver.conformance.checks.health import reports_something
from dra_driver.conformance.cluster import MANY, ClaimTemplate, ClusterObjects, taints, together
from dra_driver.conformance.plugin import ask, sockets
from dra_driver.core.errors import ConfigurationError, KubernetesApiError
from dra_driver.core.finding import Finding, Status
from dra_driver.core.unix_grpc import CallError
from dra_driver.core.unix_socket import is_served
from dra_driver.kube import paths
from dra_driver.kube.rest import RestClient


class SuiteTarget(TestedDriver, frozen=True, kw_only=True):
    """The driver to test. The suite finds ``driver`` and ``node`` if they are empty."""

    driver: str = ""
    node: str = ""
    template: ClaimTemplate | None = None


@contextmanager
def open_bench(target: SuiteTarget, rest: RestClient) -> Iterator[Bench]:
    """Yield the bench, and remove its objects at the end. Raises ConfigurationError and KubernetesApiError."""
    driver = target.driver or _find_driver(target)
    node = target.node or _find_node(rest, driver, target.limits)
    cluster = ClusterObjects(rest, node=node, driver=driver)
    bench = Bench(replace(target, driver=driver), cluster, target.template)
    try:
        cluster.prepare(target.template.classes if target.template else ())
        yield bench
    finally:
        bench.reconnect()
        cluster.clean()


def _find_driver(target: SuiteTarget) -> str:
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


def _find_node(rest: RestClient, driver: str, limits: values.TimeLimits) -> str:
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
"""Below the kubelet's root (pkg/kubelet/apis/podresources, cm/devicemanager); closed while the kubelet is down."""
_PROBE_S: Final = 1.0


def check_folder(registrar_dir: Path, *, owned: bool) -> None:
    """Raise ConfigurationError for a registrar directory of a running kubelet, or for a missing one."""
    if not registrar_dir.is_dir():
        raise ConfigurationError(f"--registrar-dir {registrar_dir} is not a directory")
    root = registrar_dir.resolve().parent
    served = next((root / name for name in KUBELET_SOCKETS if is_served(root / name, _PROBE_S)), None)
    if served is not None and not owned:
        raise ConfigurationError(
            f"a kubelet serves {served}, so it also works in {registrar_dir}. The checks restart the driver, delete "
            "its ResourceSlices and prepare claims, which disrupts pods; use a directory without a kubelet, or "
            "--i-own-this-node on a node without pods that need the driver",
            reason="KubeletRuns",
            served=str(served),
        )


def _unless(has: Callable[[Bench], object], message: str) -> Callable[[Bench], str]:
    return lambda bench: "" if has(bench) else message


def _two(bench: Bench) -> bool:
    usable = bench.scheduler.usable()
    return any(device.is_shared for device in usable) or len(together(bench.slices(), usable, 2)) > 1


def _many(bench: Bench) -> str:
    found = len(together(bench.slices(), bench.scheduler.usable(), MANY))
    return "" if found == MANY else f"the driver publishes {found} devices that do not exclude each other"


def _admin_access(bench: Bench) -> str:
    try:
        claim = bench.claim(adminAccess=True)
    except values.UnableError as error:
        return f"cannot allocate a claim with admin access: {error}"
    why = bench.answers([claim.key])[claim.key.uid].error
    bench.clean()
    return f"the driver refuses claims with admin access: {why}" if why else ""


_LACKS: Final[dict[values.Capability, Callable[[Bench], str]]] = {
    "restart": _unless(
        lambda bench: bench.subject.control, "neither --restart-command nor a command to start the driver was given"
    ),
    "cdi": _unless(
        lambda bench: bench.subject.uses_cdi, "--no-cdi: the driver passes devices to containers in another way"
    ),
    "shares": _unless(
        lambda bench: any(device.is_shared for device in bench.scheduler.devices()),
        "the driver publishes no device with allowMultipleAllocations",
    ),
    "partitions": _unless(
        lambda bench: any(device.is_partition for device in bench.scheduler.devices()),
        "the driver publishes no device that consumes counters",
    ),
    "admin-access": _admin_access,
    "health": reports_something,
    "faults": _unless(lambda bench: bench.subject.faults, "--break-command and --repair-command are not given"),
    "taints": _unless(lambda bench: any(taints(bench.slices())), "the driver publishes no device with a taint"),
    "2-devices": _unless(_two, "the driver publishes only one usable device, or devices that exclude each other"),
    "32-devices": _many,
}
"""The reason for a missing capability, "" if the driver has it; evaluated once per run, for the first check that needs
it."""


log = logging.getLogger(__name__)


def select(profile: values.Profile, only: Sequence[str] = ()) -> tuple[values.Check, ...]:
    """Return the checks of a profile whose id matches a pattern of ``only``, if any. Raises ConfigurationError."""
    for pattern in only:
        if not any(fnmatchcase(check.id, pattern) for check in CHECKS):
            raise ConfigurationError(f"--only {pattern[:80]}: no check has this id; --list prints all ids")
    if only:
        return tuple(check for check in CHECKS if any(fnmatchcase(check.id, pattern) for pattern in only))
    return tuple(check for check in CHECKS if profile == "full" or check.profile == "basic")


def run(
    bench: Bench, checks: Sequence[values.Check], seen: Callable[[values.CheckOutcome], None] = lambda _: None
) -> list[values.CheckOutcome]:
    """Return the outcome of every check, in order; calls ``seen`` with each."""
    lacks: dict[values.Capability, str] = {}
    outcomes = []
    for check in checks:
        begin = time.monotonic()
        status, detail = _verdict(bench, check, lacks)
        bench.clean()
        finding = Finding(status=status, check=check.id, object=bench.subject.driver, seen=detail, expected=check.rule)
        outcomes.append(values.CheckOutcome(check=check, finding=finding, seconds=time.monotonic() - begin))
        seen(outcomes[-1])
    return outcomes


def _verdict(bench: Bench, check: values.Check, lacks: dict[values.Capability, str]) -> tuple[Status, str]:
    bench.begin()
    try:
        for capability in check.needs:
            if capability not in lacks:
                lacks[capability] = _LACKS[capability](bench)
            if lacks[capability]:
                return Status.SKIPPED, lacks[capability]
        bench.begin()
        check.run(bench)
    except (values.ViolationError, CallError) as error:
        return (Status.FAIL if check.level == "must" else Status.WARN), str(error)
    except values.NotApplicableError as error:
        return Status.SKIPPED, str(error)
    except (values.UnableError, KubernetesApiError) as error:
        return Status.UNKNOWN, str(error)
    except Exception as error:  # a failed check must not end the run
        log.exception("a check failed unexpectedly", extra={"check": check.id})
        return Status.UNKNOWN, f"the suite failed unexpectedly ({type(error).__name__}: {error}); please report it"
    return Status.OK, ""
