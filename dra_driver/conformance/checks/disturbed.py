"""Check a driver that is killed and started again, when idle and during calls, and lost or changed slices and files."""

import random
import time
from contextlib import suppress
from pathlib import Path
from typing import Final

from dra_driver.conformance import cdi_folder
from dra_driver.conformance.bench import Bench
from dra_driver.conformance.checks.prepare import HELPER, OTHER_DRIVER
from dra_driver.conformance.checks.registration import CONTROLLER, MANAGER
from dra_driver.conformance.cluster import CheckClaim, JsonObject, Wire, devices, incomplete, taints
from dra_driver.conformance.plugin import served_socket
from dra_driver.conformance.values import UnableError, ViolationError, full
from dra_driver.core.errors import ConflictError
from dra_driver.core.unix_socket import is_served


@full(
    "disturbed-cdi-files",
    "staging/src/k8s.io/dynamic-resource-allocation/kubeletplugin/draplugin.go:74-75, 90-95",
    level="should",
)
def files_vanish(bench: Bench) -> None:
    """The next prepare writes lost CDI files again.

    /var/run is empty after a reboot, and the kubelet calls NodePrepareResources again for the pods of the node
    (kubernetes#141433).
    """
    before = cdi_folder.files(bench.subject.cdi_dirs)
    claim = bench.claim()
    prepared = bench.prepared(claim)
    after = cdi_folder.files(bench.subject.cdi_dirs)
    for path in after:
        if before.get(path) != after[path]:
            path.unlink(missing_ok=True)
    again = bench.prepared(claim)
    bench.check_resolves(again, "after CDI files of the claim were deleted, a prepare answered as before")
    if [device.cdi_ids for device in again] != [device.cdi_ids for device in prepared]:
        raise ViolationError("after CDI files of the claim were deleted, a prepare gave other CDI ids")


@full("disturbed-all-slices", f"{MANAGER}:164-179, test/e2e_node/dra_test.go:756, 785")
def all_slices_vanish(bench: Bench) -> None:
    """The driver publishes slices again that the kubelet deleted.

    When kubelet starts up, no DRA driver has registered yet; it deletes all ResourceSlices of the node.
    """
    before = bench.slices()
    for item in before:
        bench.cluster.delete_slice(item)
    _wait_for(bench, before, "the slices that were deleted")


@full("disturbed-one-slice", f"{CONTROLLER}:64-69")
def one_slice_vanishes(bench: Bench) -> None:
    """The driver publishes a single deleted slice again.

    A human mistake gets fixed: the controller syncs 30 s after the last event.
    """
    before = bench.slices()
    bench.cluster.delete_slice(before[-1])
    _wait_for(bench, before, "the slice that was deleted")


@full("disturbed-other-slices", "staging/src/k8s.io/api/resource/v1/types.go:119-128")
def other_slices_stay(bench: Bench) -> None:
    """Slices of other drivers on the node stay unchanged.

    Driver identifies the DRA driver providing the capacity information.
    """
    node = bench.cluster.node
    spec: JsonObject = {"driver": OTHER_DRIVER, "nodeName": node, "devices": [{"name": "other"}]}
    spec["pool"] = {"name": f"{node}/{OTHER_DRIVER}", "generation": 1, "resourceSliceCount": 1}
    metadata = {"generateName": "dra-conformance-"}
    body = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice", "metadata": metadata, "spec": spec}
    other = bench.cluster.create_slice(body)
    try:
        all_slices_vanish.run(bench)
        bench.pause(bench.limits.quiet_s)
        kept = {item["metadata"]["name"]: item for item in bench.cluster.slices(driver=OTHER_DRIVER)}
        found = kept.get(other["metadata"]["name"])
        if found is None or found["spec"] != other["spec"]:
            raise ViolationError(f"a slice of driver {OTHER_DRIVER} on the same node was deleted or changed")
    finally:
        bench.cluster.delete_slice(other)


@full("disturbed-taints", "staging/src/k8s.io/api/resource/v1/types.go:823-836", needs=("taints",))
def taints_stay(bench: Bench) -> None:
    """Taints, and the times of evicting taints, are unchanged after slices are published again.

    TimeAdded represents the time at which the taint was added; eviction counts from it.
    """
    before = bench.slices()
    known = {(device.key, taint["key"]): taint for device, taint in taints(before)}
    for item in before:
        bench.cluster.delete_slice(item)
    _wait_for(bench, before, "the slices that were deleted")

    def changed() -> str:
        now = {(device.key, taint["key"]): taint for device, taint in taints(bench.cluster.slices())}
        for (key, name), taint in known.items():
            if (found := now.get((key, name))) is None:
                return f"device {key[1]} has lost taint {name}"
            if wrong := _differing(taint, found):
                return (
                    f"taint {name} of device {key[1]} has another {wrong}: {found.get(wrong)}, not {taint.get(wrong)}"
                )
        return ""

    bench.wait(changed, bench.limits.publish_s, "the taints that devices had")


@full("disturbed-changed-slice", f"{CONTROLLER}:64-69", level="should")
def slice_is_changed(bench: Bench) -> None:
    """The driver corrects a slice that another client changed.

    A human mistake gets fixed: the controller syncs 30 s after the last event.
    """
    _change(bench)


@full("disturbed-after-write", f"{MANAGER}:164-179, test/e2e_node/dra_test.go:756")
def deleted_after_a_write(bench: Bench) -> None:
    """The driver publishes slices again that are deleted soon after it wrote them.

    When kubelet starts up, it deletes all ResourceSlices of the node; that can be at any time.
    """
    before = _change(bench)
    for item in bench.cluster.slices():
        bench.cluster.delete_slice(item)
    _wait_for(bench, before, "the slices that were deleted soon after the driver had written them")


def _change(bench: Bench) -> list[JsonObject]:
    """Make the driver write its slices: remove a device from one and wait for it."""
    before = bench.slices()
    for _ in range(5):
        changed = next(item for item in bench.slices() if item["spec"].get("devices"))
        changed["spec"]["devices"] = changed["spec"]["devices"][:-1] or [{"name": "not-a-device"}]
        with suppress(ConflictError):
            bench.cluster.update_slice(changed)
            break
    _wait_for(bench, before, "the device that another client removed from a slice")
    return before


def _differing(before: Wire, after: Wire) -> str:
    """Return the first field that differs; the time counts if pods are evicted by it."""
    fields = ("value", "effect", "timeAdded") if before.get("effect") == "NoExecute" else ("value", "effect")
    return next((name for name in fields if before.get(name) != after.get(name)), "")


def _wait_for(bench: Bench, before: list[JsonObject], what: str) -> None:
    wanted = {device.key for device in devices(before)}

    def missing() -> str:
        now = bench.cluster.slices()
        if problem := incomplete(now):
            return problem
        lost = wanted - {device.key for device in devices(now)}
        return f"{len(lost)} devices are missing, among them {min(lost)[1]}" if lost else ""

    try:
        bench.wait(missing, bench.limits.publish_s, what)
    except UnableError as error:
        raise ViolationError(str(error)) from error


KILLS: Final = 3
LATEST: Final = 1.5
LONGEST_S: Final = 1.0
OTHER_SOCKET: Final = "dra-conformance-other.sock"


@full("restart-registers", "test/e2e_node/dra_test.go:127", needs=("restart",))
def registers_again(bench: Bench) -> None:
    """A killed driver takes over its sockets and registers again.

    must register after plugin restart
    """
    bench.answers([])
    bench.restart()
    bench.answers([])


@full("restart-endpoint", "test/e2e_node/dra_test.go:482", needs=("restart",))
def connection_recovers(bench: Bench) -> None:
    """The DRA socket is served again after the driver registers again.

    must be functional after service reconnect
    """
    # The kubelet keeps a connection whose socket is recreated; only its registration is new.
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
    bench.check_resolves(after, "after the restart")


@full("restart-cdi", "pkg/kubelet/cm/dra/manager.go:366", needs=("restart",))
def cdi_stays(bench: Bench) -> None:
    """CDI ids of a prepared claim resolve after a restart, before any call.

    The kubelet does not prepare a prepared claim again, and starts further containers with it.
    """
    devices = bench.prepared(bench.claim())
    bench.restart()
    bench.check_resolves(devices, "after the restart, before a prepare")


@full("restart-unprepare", f"{HELPER}:100-110", needs=("restart",))
def unprepared_by_the_next(bench: Bench) -> None:
    """The next process unprepares a claim, after its object is deleted.

    The DRA driver cannot assume that the matching PrepareResourceClaims call was handled by the same process.
    """
    claim = bench.exclusive_claim()
    bench.prepared(claim)
    bench.cluster.delete_claim(claim.wire)
    bench.restart()
    bench.unprepared(claim.key)
    bench.prepared(bench.claim(keys=claim.devices(), busy=True))


@full("restart-in-use", f"{HELPER}:77-82", needs=("restart",))
def still_in_use(bench: Bench) -> None:
    """A device stays in use over a restart.

    The DRA driver is the last line of defense against using the same device for two workloads.
    """
    first = bench.exclusive_claim()
    bench.prepared(first)
    bench.restart()
    second = bench.claim(keys=first.devices(), busy=True)
    if not bench.refusal(second.key, waits=True):
        raise ViolationError(
            f"after the restart, device {min(first.devices())[1]} of claim {first.key} was prepared for {second.key}, "
            "too; expected an error: record prepared claims, and check them"
        )


@full("restart-slices", "test/e2e_node/dra_test.go:885", needs=("restart",))
def slices_stay(bench: Bench) -> None:
    """The same devices are published after a restart.

    must not be removed if plugin restarts quickly enough
    """
    before = bench.slices()
    bench.restart()
    _wait_for(bench, before, "the same devices after the restart")


@full("restart-in-prepare", f"test/e2e_node/dra_test.go:704, {HELPER}:74-75", needs=("restart",))
def killed_in_prepare(bench: Bench) -> None:
    """A driver that was killed during prepare finishes or undoes it.

    must run pod if NodePrepareResources is in progress for one plugin when Kubelet restarts; the call must be
    idempotent.
    """
    typical, _ = _typical_s(bench)
    for moment in _moments(typical):
        claim = bench.exclusive_claim()
        pending = bench.plugin().begin_prepare([claim.key])
        bench.pause(moment)
        bench.restart()
        pending.cancel()
        bench.check_resolves(bench.prepared(claim), "killed during prepare; the next prepare answered")
        bench.finish(claim)
        _use(bench, claim)


@full("restart-in-unprepare", f"test/e2e_node/dra_test.go:729, {HELPER}:112-115", needs=("restart",))
def killed_in_unprepare(bench: Bench) -> None:
    """A driver that was killed during unprepare accepts the call again.

    must call NodeUnprepareResources again if it's in progress for one plugin when Kubelet restarts
    """
    _, typical = _typical_s(bench)
    for moment in _moments(typical):
        claim = bench.exclusive_claim()
        bench.prepared(claim)
        pending = bench.plugin().begin_unprepare([claim.key])
        bench.pause(moment)
        bench.restart()
        pending.cancel()
        bench.finish(claim)
        _use(bench, claim)


@full("restart-other-sockets", "pkg/kubelet/pluginmanager/pluginwatcher/plugin_watcher.go:160-190", needs=("restart",))
def other_sockets_stay(bench: Bench) -> None:
    """Sockets of other plugins in the directory stay unchanged.

    The registrar directory has the sockets of all plugins of the node.
    """
    path = bench.subject.registrar_dir / OTHER_SOCKET
    with served_socket(path):
        before = path.lstat().st_ino
        bench.restart()
        bench.answers([])
        if not path.exists() or path.lstat().st_ino != before:
            raise ViolationError(f"the restart removed {path.name}, the socket of another plugin")


def _use(bench: Bench, ended: CheckClaim) -> None:
    other = bench.claim(keys=ended.devices(), busy=True)
    bench.prepared(other)
    bench.finish(other)


def _moments(typical_s: float) -> list[float]:
    """Return when to kill, in seconds after the call: a random moment in each part of 1.5 calls."""
    part = LATEST * typical_s / KILLS
    return [part * random.uniform(at, at + 1) for at in range(KILLS)]  # noqa: S311 - any moment is fine


def _typical_s(bench: Bench) -> tuple[float, float]:
    claim = bench.exclusive_claim()
    begin = time.monotonic()
    bench.prepared(claim)
    middle = time.monotonic()
    bench.finish(claim)
    return min(middle - begin, LONGEST_S), min(time.monotonic() - middle, LONGEST_S)
