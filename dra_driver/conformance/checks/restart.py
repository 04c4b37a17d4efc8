"""The driver is killed and started again: at rest, and in the middle of calls."""

import random
import time
from pathlib import Path
from typing import Final

from dra_driver.conformance import registry
from dra_driver.conformance.bench import Bench
from dra_driver.conformance.checks.prepare import HELPER
from dra_driver.conformance.claims import CheckClaim
from dra_driver.conformance.published import devices, incomplete
from dra_driver.conformance.values import Check, ViolationError

KILLS: Final = 3
LATEST: Final = 1.5
LONGEST_S: Final = 1.0
OTHER_SOCKET: Final = "dra-conformance-other.sock"


def registers_again(bench: Bench) -> None:
    bench.answers([])
    bench.restart()
    bench.answers([])


def connection_recovers(bench: Bench) -> None:
    """The kubelet keeps a connection whose socket is made again; only its registration is new."""
    old = bench.plugin().info.endpoint
    bench.restart()
    new = bench.plugin().info.endpoint
    if not registry.is_served(Path(new), bench.limits.dial_s):
        raise ViolationError(f"endpoint {new} accepts no connections after the restart (before it was {old})")
    bench.answers([])


def claims_are_kept(bench: Bench) -> None:
    claim = bench.claim()
    before = bench.prepared(claim)
    bench.restart()
    after = bench.prepared(claim)
    if before != after:
        raise ViolationError(f"claim {claim.key} has another answer after the restart: {after}, before {before}")
    if problem := bench.unresolved(after):
        raise ViolationError(f"after the restart: {problem}")


def unprepared_by_the_next(bench: Bench) -> None:
    claim = _claim(bench)
    bench.prepared(claim)
    bench.cluster.delete_claim(claim.wire)
    bench.restart()
    bench.unprepared(claim.key)
    bench.prepared(bench.claim(keys=claim.devices(), busy=True))


def still_in_use(bench: Bench) -> None:
    first = _claim(bench)
    bench.prepared(first)
    bench.restart()
    second = bench.claim(keys=first.devices(), busy=True)
    if not bench.refusal(second.key, waits=True):
        raise ViolationError("after the restart, a device was prepared for a second claim")


def slices_stay(bench: Bench) -> None:
    before = {device.key for device in devices(bench.slices())}
    bench.restart()

    def missing() -> str:
        now = bench.cluster.slices()
        lost = before - {device.key for device in devices(now)}
        return incomplete(now) or (f"{len(lost)} devices are missing, among them {min(lost)[1]}" if lost else "")

    bench.wait(missing, bench.limits.publish_s, "the same devices after the restart")


def killed_in_prepare(bench: Bench) -> None:
    typical, _ = _typical_s(bench)
    for moment in _moments(typical):
        claim = _claim(bench)
        pending = bench.plugin().begin_prepare([claim.key])
        bench.pause(moment)
        bench.restart()
        pending.cancel()
        if problem := bench.unresolved(bench.prepared(claim)):
            raise ViolationError(f"killed during prepare; the next prepare answered: {problem}")
        bench.finish(claim)
        _use(bench, claim)


def killed_in_unprepare(bench: Bench) -> None:
    _, typical = _typical_s(bench)
    for moment in _moments(typical):
        claim = _claim(bench)
        bench.prepared(claim)
        pending = bench.plugin().begin_unprepare([claim.key])
        bench.pause(moment)
        bench.restart()
        pending.cancel()
        bench.finish(claim)
        _use(bench, claim)


def other_sockets_stay(bench: Bench) -> None:
    path = bench.subject.registrar_dir / OTHER_SOCKET
    with registry.served_socket(path):
        before = path.lstat().st_ino
        bench.restart()
        bench.answers([])
        if not path.exists() or path.lstat().st_ino != before:
            raise ViolationError(f"the restart removed {path.name}, the socket of another plugin")


def _claim(bench: Bench) -> CheckClaim:
    """A claim for devices that it does not share."""
    return bench.claim(keys={one.key for one in bench.scheduler.devices() if not one.is_shared and not one.is_blocked})


def _use(bench: Bench, ended: CheckClaim) -> None:
    """The devices of a claim that has ended have to work for another one."""
    other = bench.claim(keys=ended.devices(), busy=True)
    bench.prepared(other)
    bench.finish(other)


def _moments(typical_s: float) -> list[float]:
    """When to kill, in seconds after the call: a random moment in each part of one and a half calls."""
    part = LATEST * typical_s / KILLS
    return [part * random.uniform(at, at + 1) for at in range(KILLS)]  # noqa: S311 - any moment will do


def _typical_s(bench: Bench) -> tuple[float, float]:
    """How long one prepare and one unprepare take."""
    claim = _claim(bench)
    begin = time.monotonic()
    bench.prepared(claim)
    middle = time.monotonic()
    bench.finish(claim)
    return min(middle - begin, LONGEST_S), min(time.monotonic() - middle, LONGEST_S)


CHECKS: Final = (
    Check(
        id="restart-registers",
        title="A killed driver takes its sockets over and registers again",
        rule="must register after plugin restart",
        source="test/e2e_node/dra_test.go:127",
        run=registers_again,
        profile="full",
        needs=("restart",),
    ),
    Check(
        id="restart-endpoint",
        title="The DRA socket is served again when the driver has registered again",
        rule="must be functional after service reconnect",
        source="test/e2e_node/dra_test.go:482",
        run=connection_recovers,
        profile="full",
        needs=("restart",),
    ),
    Check(
        id="restart-claims",
        title="A prepared claim has the same answer after a restart",
        rule="The driver might have been restarted in the meantime; the call must be idempotent.",
        source=f"{HELPER}:74-75, 106-108",
        run=claims_are_kept,
        profile="full",
        needs=("restart",),
    ),
    Check(
        id="restart-unprepare",
        title="A claim is unprepared by the next process, after its object is gone",
        rule="The DRA driver cannot assume that the matching PrepareResourceClaims call was handled by the same "
        "process.",
        source=f"{HELPER}:100-110",
        run=unprepared_by_the_next,
        profile="full",
        needs=("restart",),
    ),
    Check(
        id="restart-in-use",
        title="A device stays in use over a restart",
        rule="The DRA driver is the last line of defense against using the same device for two workloads.",
        source=f"{HELPER}:77-82",
        run=still_in_use,
        profile="full",
        level="should",
        needs=("restart",),
    ),
    Check(
        id="restart-slices",
        title="The same devices are published after a restart",
        rule="must not be removed if plugin restarts quickly enough",
        source="test/e2e_node/dra_test.go:885",
        run=slices_stay,
        profile="full",
        needs=("restart",),
    ),
    Check(
        id="restart-in-prepare",
        title="A driver that was killed during prepare finishes or undoes it",
        rule="must run pod if NodePrepareResources is in progress for one plugin when Kubelet restarts; the call must "
        "be idempotent.",
        source=f"test/e2e_node/dra_test.go:704, {HELPER}:74-75",
        run=killed_in_prepare,
        profile="full",
        needs=("restart",),
    ),
    Check(
        id="restart-in-unprepare",
        title="A driver that was killed during unprepare can be asked again",
        rule="must call NodeUnprepareResources again if it's in progress for one plugin when Kubelet restarts",
        source=f"test/e2e_node/dra_test.go:729, {HELPER}:112-115",
        run=killed_in_unprepare,
        profile="full",
        needs=("restart",),
    ),
    Check(
        id="restart-other-sockets",
        title="Sockets of other plugins in the folder are left alone",
        rule="The registrar folder has the sockets of all plugins of the node.",
        source="pkg/kubelet/pluginmanager/pluginwatcher/plugin_watcher.go:160-190",
        run=other_sockets_stay,
        profile="full",
        needs=("restart",),
    ),
)
