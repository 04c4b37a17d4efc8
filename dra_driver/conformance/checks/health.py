"""The health stream (KEP-4680), read as the kubelet does (pkg/kubelet/cm/dra/healthinfo.go).

A device that is not reported again within its timeout (30 s by default) becomes Unknown. Kept devices are bounded.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, Final

from msgspec import Struct

from dra_driver.conformance.bench import Bench
from dra_driver.conformance.checks.prepare import largest_claim
from dra_driver.conformance.checks.registration import MANAGER
from dra_driver.conformance.plugin import HEALTH_SERVICES
from dra_driver.conformance.values import NotApplicableError, UnableError, ViolationError, full
from dra_driver.core.unix_grpc import CallError, HealthStream, shown

DEFAULT_TIMEOUT_S: Final = 30.0
LONGEST_TIMEOUT_S: Final = 120.0
MAX_DEVICES: Final = 4096
PROTO: Final = "staging/src/k8s.io/kubelet/pkg/apis/dra-health/v1alpha1/api.proto"
HEALTH_INFO: Final = "pkg/kubelet/cm/dra/healthinfo.go"
MAX_MESSAGE: Final = 1024
HEALTHY: Final = 1
UNHEALTHY: Final = 2
STREAMS: Final = 3
_OPEN_S: Final = 1.0


class Report(Struct, frozen=True, kw_only=True):
    """The newest report of a device; ``reports`` counts reports on this stream, ``gap_s`` is the longest pause."""

    health: int
    timeout_s: float
    message_length: int
    seen_at: float
    reports: int
    gap_s: float


Reports = dict[tuple[str, str], Report]


class SilentStreamError(ViolationError):
    """The stream is open but reports nothing."""


@full("health-v1alpha1", f"{MANAGER}:387-408", level="should")
def alpha_is_served(bench: Bench) -> None:
    """The v1alpha1 health stream is served, with or without health.

    Kubelets up to 1.36 open this stream to every plugin, advertised or not, and again every 5 s.
    """
    try:
        with _stream(bench, "v1alpha1.DRAResourceHealth") as stream:
            read_until(stream, lambda _: False, _OPEN_S, {})
    except CallError as error:
        raise ViolationError(
            f"the v1alpha1 stream does not stay open, so kubelets up to 1.36 dial every 5 s: {error}"
        ) from error


@full("health-reports", f"{PROTO}:60-77")
def reports_prepared_devices(bench: Bench) -> None:
    """A driver that advertises the health stream reports the devices of prepared claims.

    This should be a complete list for the driver: devices that are not in it become Unknown.
    """
    if not any(one in HEALTH_SERVICES for one in bench.plugin().info.versions):
        raise NotApplicableError("supported_versions has no health service")
    claim = bench.claim()
    bench.prepared(claim)
    version = _version(bench)
    reports: Reports = {}
    with _stream(bench, version) as stream:
        wanted = claim.devices()
        if not read_until(stream, lambda now: wanted <= now.keys(), bench.left_s(bench.limits.health_s), reports):
            missing = min(wanted - reports.keys())[1]
            raise ViolationError(
                f"{version} is advertised, but the stream does not report device {shown(missing)} of a prepared claim "
                f"within {bench.limits.health_s:g} s; report it, or do not advertise the service"
            )


@full("health-healthy", f"{PROTO}:30-38", needs=("health",))
def free_devices_are_healthy(bench: Bench) -> None:
    """A published device without a taint is reported as healthy.

    HEALTHY indicates that the device is operating normally: the scheduler allocates it to new pods.
    """
    claim = bench.claim()
    bench.prepared(claim)
    found = _read_first(bench)
    for key in sorted(claim.devices() & found.keys()):
        if found[key].health != HEALTHY:
            raise ViolationError(
                f"device {shown(key[1])} is prepared and has no taint. The stream reports it as "
                f"{_named(found[key].health)}, expected Healthy; report its health, or taint it"
            )


def _named(health: int) -> str:
    return {0: "Unknown", HEALTHY: "Healthy", UNHEALTHY: "Unhealthy"}.get(health, f"{health}, an unknown value")


@full("health-devices", f"{PROTO}:40-47", needs=("health",))
def devices_exist(bench: Bench) -> None:
    """The stream reports devices that are published.

    DeviceIdentifier uniquely identifies a device within the scope of a driver: pool_name and device_name.
    """
    published = {device.key for device in bench.scheduler.devices()}
    if unknown := sorted(set(_first(bench)) - published):
        raise ViolationError(f"the stream reports device {unknown[0][0]}/{unknown[0][1]}, which is not published")


@full("health-message", f"{PROTO}:65-68", level="should", needs=("health",))
def messages_are_short(bench: Bench) -> None:
    """Messages are not longer than the kubelet's limit.

    Maximum length is 1024 characters. Messages longer than 1024 characters will be truncated.
    """
    longest = max(report.message_length for report in _first(bench).values())
    if longest > MAX_MESSAGE:
        raise ViolationError(f"a message has {longest} characters, the kubelet truncates it after {MAX_MESSAGE}")


@full("health-repeated", f"{PROTO}:60-75, {HEALTH_INFO}:32-33, 140-142", needs=("health",))
def repeated_in_time(bench: Bench) -> None:
    """Every device is reported again before its timeout.

    Devices that are not in the list will be considered to have an Unknown health status after a timeout, 30 s
    unless the device says otherwise.
    """
    bench.prepared(bench.claim())
    reports: Reports = {}
    with _stream(bench, _version(bench)) as stream:
        if not read_until(stream, bool, bench.left_s(bench.limits.health_s), reports):
            raise ViolationError("the stream reported devices before and reports nothing now")
        first = set(reports)
        wait_s = longest_wait_s(reports) + bench.limits.pause_s
        read_until(stream, lambda now: all(now[key].reports > 1 for key in first), bench.left_s(wait_s), reports)
    for key in sorted(first):
        report = reports[key]
        if report.reports < 2 or report.gap_s > report.timeout_s:
            raise ViolationError(
                f"device {key[1]} was not reported again within its {report.timeout_s:g} s: the kubelet shows Unknown"
            )


@full("health-reopened", "test/e2e_node/dra_test.go:1020", needs=("health",))
def reopened(bench: Bench) -> None:
    """A reopened stream reports the same devices.

    should automatically reconnect both DRA and Health API after connection drop
    """
    before = _first(bench)
    after = _read_first(bench)
    if lost := sorted(set(before) - set(after)):
        raise ViolationError(f"a reopened stream does not report device {lost[0][1]}")


@full("health-versions", f"{PROTO}:20-77", needs=("health",))
def versions_agree(bench: Bench) -> None:
    """Both versions of the stream report the same health.

    v1 has the messages of v1alpha1; a kubelet opens one of them.
    """
    versions = [one for one in bench.plugin().info.versions if one in HEALTH_SERVICES]
    if len(versions) < 2:
        raise NotApplicableError("the driver advertises at most one version of the health stream")
    bench.prepared(bench.claim())
    found = [{key: report.health for key, report in _read_first(bench, version).items()} for version in versions]
    if found[0] != found[1]:
        raise ViolationError(f"{versions[0]} reports {_brief(found[0])}, {versions[1]} reports {_brief(found[1])}")


@full("health-beside-prepare", "test/e2e_node/dra_test.go:1066", needs=("health",))
def beside_prepare(bench: Bench) -> None:
    """The driver prepares claims while health streams are open.

    should handle concurrent DRA operations and health monitoring without connection issues
    """
    plugin, version = bench.plugin(), _version(bench)
    streams = [plugin.watch_health(version, bench.limits.check_s) for _ in range(STREAMS)]
    try:
        for _ in range(STREAMS):
            claim = bench.claim()
            bench.prepared(claim)
            bench.finish(claim)
    finally:
        for stream in streams:
            stream.close()


@full("health-follows", f"{PROTO}:30-38, 60-77", needs=("health", "faults"))
def health_follows(bench: Bench) -> None:
    """The stream reports a broken device, only that device, and its repair.

    UNHEALTHY indicates that the device has reported a problem.
    """
    faults, claim = bench.subject.faults, largest_claim(bench)
    if faults is None or claim is None:
        raise NotApplicableError("every device is shared or has a taint")
    bench.prepared(claim)
    with suppress(UnableError):  # a driver with one device
        bench.prepared(bench.claim())
    key = min(claim.devices())
    reports: Reports = {}

    def waited(wanted: int, when: str) -> None:
        within_s = bench.left_s(bench.limits.restart_s)
        if not read_until(stream, lambda now: key in now and now[key].health == wanted, within_s, reports):
            seen = _named(reports[key].health) if key in reports else "not reported"
            raise ViolationError(
                f"device {shown(key[1])} is {seen} on the open stream {within_s:.0f} s {when}, expected "
                f"{_named(wanted)}; send each change of health to the open streams"
            )

    with _stream(bench, _version(bench)) as stream:
        try:
            waited(HEALTHY, "before the suite broke it")
            before = {other for other, report in reports.items() if report.health != UNHEALTHY}
            faults.inject(*key)
            waited(UNHEALTHY, "after the suite broke it")
            blamed = sorted(other for other in before - {key} if reports[other].health == UNHEALTHY)
            if blamed:
                raise ViolationError(
                    f"the suite broke device {shown(key[1])}, but the stream reports {shown(blamed[0][1])} as Unhealthy"
                )
        finally:
            faults.recover(*key)
        waited(HEALTHY, "after the suite repaired it")


def reports_something(bench: Bench) -> str:
    """Return why the driver does not report health; "" if it does."""
    bench.prepared(bench.claim())
    try:
        found = _read_first(bench)
    except SilentStreamError as error:
        return str(error)
    except CallError as error:
        if error.code != "UNIMPLEMENTED":
            raise
        return f"the health stream is optional, and not implemented: {error}"
    finally:
        bench.clean()
    return "" if found else "the stream is open but reports nothing"


def _first(bench: Bench) -> Reports:
    bench.prepared(bench.claim())
    return _read_first(bench)


def _read_first(bench: Bench, version: str = "") -> Reports:
    """Return the first report of a new stream. Raises ViolationError without a report."""
    reports: Reports = {}
    with _stream(bench, version or _version(bench)) as stream:
        if not read_until(stream, bool, bench.left_s(bench.limits.health_s), reports):
            raise SilentStreamError(f"the stream reported nothing within {bench.limits.health_s:g} s")
    return reports


def _version(bench: Bench) -> str:
    """Return the newest advertised version, or v1alpha1, which kubelets up to 1.36 always open."""
    advertised = bench.plugin().info.versions
    return next((one for one in HEALTH_SERVICES if one in advertised), "v1alpha1.DRAResourceHealth")


@contextmanager
def _stream(bench: Bench, version: str) -> Iterator[HealthStream]:
    stream = bench.plugin().watch_health(version, bench.left_s(bench.limits.check_s))
    try:
        yield stream
    finally:
        stream.close()


def _brief(found: dict[tuple[str, str], int]) -> str:
    return ", ".join(f"{key[1]}={health}" for key, health in sorted(found.items())[:4]) or "nothing"


def read_until(stream: HealthStream, enough: Callable[[Reports], bool], within_s: float, reports: Reports) -> bool:
    """Add the stream's answers to ``reports`` until ``enough``; False on a timeout. Raises CallError."""

    def seen(message: Any) -> bool:
        now = time.monotonic()
        for device in message.devices:
            key = (device.device.pool_name[:260], device.device.device_name[:80])
            if key in reports or len(reports) < MAX_DEVICES:
                reports[key] = _report(device, reports.get(key), now)
        return enough(reports)

    return stream.read(seen, within_s)


def longest_wait_s(reports: Reports) -> float:
    return min(max((report.timeout_s for report in reports.values()), default=0.0), LONGEST_TIMEOUT_S)


def _report(device: Any, before: Report | None, now: float) -> Report:
    asked = float(device.health_check_timeout_seconds)
    return Report(
        health=int(device.health),
        timeout_s=asked if asked > 0 else DEFAULT_TIMEOUT_S,
        message_length=len(device.message),
        seen_at=now,
        reports=before.reports + 1 if before else 1,
        gap_s=max(before.gap_s, now - before.seen_at) if before else 0.0,
    )
