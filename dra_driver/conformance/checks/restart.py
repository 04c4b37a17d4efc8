"""The driver is killed and started again: at rest, and in the middle of calls."""

import random
import time
from pathlib import Path
from typing import Final

from dra_driver.conformance.bench import Bench
from dra_driver.conformance.checks.prepare import HELPER
from dra_driver.conformance.claims import CheckClaim
from dra_driver.conformance.plugin import is_served, served_socket
from dra_driver.conformance.published import devices, incomplete
from dra_driver.conformance.values import ViolationError, full

KILLS: Final = 3
LATEST: Final = 1.5
LONGEST_S: Final = 1.0
OTHER_SOCKET: Final = "dra-conformance-other.sock"


@full("restart-registers", "test/e2e_node/dra_test.go:127", needs=("restart",))
def registers_again(bench: Bench) -> None:
    """A killed driver takes its sockets over and registers again.

    must register after plugin restart
    """
    bench.answers([])
    bench.restart()
    bench.answers([])


@full("restart-endpoint", "test/e2e_node/dra_test.go:482", needs=("restart",))
def connection_recovers(bench: Bench) -> None:
    """The DRA socket is served again when the driver has registered again.

    must be functional after service reconnect
    """
    # The kubelet keeps a connection whose socket is made again; only its registration is new.
    old = bench.plugin().info.endpoint
    bench.restart()
    new = bench.plugin().info.endpoint
    if not is_served(Path(new), bench.limits.dial_s):
        raise ViolationError(f"endpoint {new} accepts no connections after the restart (before it was {old})")
    bench.answers([])


@full("restart-claims", f"{HELPER}:74-75, 106-108", needs=("restart",))
def claims_are_kept(bench: Bench) -> None:
    """A prepared claim has the same answer after a restart.

    The driver might have been restarted in the meantime; the call must be idempotent.
    """
    claim = bench.claim()
    before = bench.prepared(claim)
    bench.restart()
    after = bench.prepared(claim)
    if before != after:
        raise ViolationError(f"claim {claim.key} has another answer after the restart: {after}, before {before}")
    if problem := bench.unresolved(after):
        raise ViolationError(f"after the restart: {problem}")


@full("restart-unprepare", f"{HELPER}:100-110", needs=("restart",))
def unprepared_by_the_next(bench: Bench) -> None:
    """A claim is unprepared by the next process, after its object is gone.

    The DRA driver cannot assume that the matching PrepareResourceClaims call was handled by the same process.
    """
    claim = _claim(bench)
    bench.prepared(claim)
    bench.cluster.delete_claim(claim.wire)
    bench.restart()
    bench.unprepared(claim.key)
    bench.prepared(bench.claim(keys=claim.devices(), busy=True))


@full("restart-in-use", f"{HELPER}:77-82", level="should", needs=("restart",))
def still_in_use(bench: Bench) -> None:
    """A device stays in use over a restart.

    The DRA driver is the last line of defense against using the same device for two workloads.
    """
    first = _claim(bench)
    bench.prepared(first)
    bench.restart()
    second = bench.claim(keys=first.devices(), busy=True)
    if not bench.refusal(second.key, waits=True):
        raise ViolationError("after the restart, a device was prepared for a second claim")


@full("restart-slices", "test/e2e_node/dra_test.go:885", needs=("restart",))
def slices_stay(bench: Bench) -> None:
    """The same devices are published after a restart.

    must not be removed if plugin restarts quickly enough
    """
    before = {device.key for device in devices(bench.slices())}
    bench.restart()

    def missing() -> str:
        now = bench.cluster.slices()
        lost = before - {device.key for device in devices(now)}
        return incomplete(now) or (f"{len(lost)} devices are missing, among them {min(lost)[1]}" if lost else "")

    bench.wait(missing, bench.limits.publish_s, "the same devices after the restart")


@full("restart-in-prepare", f"test/e2e_node/dra_test.go:704, {HELPER}:74-75", needs=("restart",))
def killed_in_prepare(bench: Bench) -> None:
    """A driver that was killed during prepare finishes or undoes it.

    must run pod if NodePrepareResources is in progress for one plugin when Kubelet restarts; the call must be
    idempotent.
    """
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


@full("restart-in-unprepare", f"test/e2e_node/dra_test.go:729, {HELPER}:112-115", needs=("restart",))
def killed_in_unprepare(bench: Bench) -> None:
    """A driver that was killed during unprepare can be asked again.

    must call NodeUnprepareResources again if it's in progress for one plugin when Kubelet restarts
    """
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


@full("restart-other-sockets", "pkg/kubelet/pluginmanager/pluginwatcher/plugin_watcher.go:160-190", needs=("restart",))
def other_sockets_stay(bench: Bench) -> None:
    """Sockets of other plugins in the folder are left alone.

    The registrar folder has the sockets of all plugins of the node.
    """
    path = bench.subject.registrar_dir / OTHER_SOCKET
    with served_socket(path):
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
