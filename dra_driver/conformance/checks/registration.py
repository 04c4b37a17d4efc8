"""Check the registration with the kubelet, and ResourceSlices of an undisturbed driver."""

import re
from collections import Counter
from pathlib import Path
from typing import Final

from dra_driver.conformance.bench import Bench
from dra_driver.conformance.cluster import counters, devices, incomplete, newest
from dra_driver.conformance.plugin import DRA_SERVICES, HEALTH_SERVICES, Plugin, PluginInfo, notify
from dra_driver.conformance.values import UnableError, ViolationError, basic
from dra_driver.core.unix_grpc import CallError, Peer
from dra_driver.core.unix_socket import is_served

GENERATOR: Final = "pkg/kubelet/pluginmanager/operationexecutor/operation_generator.go"
MANAGER: Final = "pkg/kubelet/cm/dra/plugin/dra_plugin_manager.go"
MAX_SOCKET_PATH: Final = 107
_SUBDOMAIN: Final = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*", re.IGNORECASE)
_STREAM_OPEN_S: Final = 0.5


@basic("registration-answers", f"{GENERATOR}:88-101")
def answers(bench: Bench) -> None:
    """A socket in the registrar directory answers GetInfo in time.

    The kubelet dials every socket in the directory (10 s) and calls GetInfo (1 s).
    """
    try:
        bench.info()
    except UnableError as error:
        raise ViolationError(str(error)) from error


@basic(
    "registration-type", f"{GENERATOR}:103-109, staging/src/k8s.io/kubelet/pkg/apis/pluginregistration/v1/constants.go"
)
def type_is_known(bench: Bench) -> None:
    """The plugin has the type of DRA drivers.

    no handler registered for plugin type: the kubelet refuses unknown types; the type of DRA is DRAPlugin.
    """
    if (info := bench.info()).type != "DRAPlugin":
        raise ViolationError(
            f"GetInfo returns type {info.type!r}, expected 'DRAPlugin'; the kubelet has no handler for it"
        )


@basic("registration-name", "staging/src/k8s.io/api/resource/v1/types.go:119-128, 243-246, 1764-1775")
def name_is_the_drivers(bench: Bench) -> None:
    """The plugin has the name of the driver in its ResourceSlices.

    Driver identifies the DRA driver; must be a DNS subdomain, at most 63 characters. Claims name the driver whose
    kubelet plugin is called.
    """
    info = bench.info()
    if info.name != bench.subject.driver:
        raise ViolationError(f"GetInfo returns name {info.name!r}, expected {bench.subject.driver!r}")
    if len(info.name) > 63 or not _SUBDOMAIN.fullmatch(info.name):
        raise ViolationError(f"{info.name!r} is not a DNS subdomain of at most 63 characters")


@basic("registration-endpoint", f"{MANAGER}:370-415")
def endpoint_accepts(bench: Bench) -> None:
    """The DRA socket accepts connections after GetInfo has named it.

    The kubelet connects to the endpoint when the plugin registers, to detect early whether the plugin is really
    available.
    """
    path = bench.info().endpoint
    if not path.startswith("/") or len(path.encode()) > MAX_SOCKET_PATH:
        raise ViolationError(f"endpoint {path!r} is not an absolute path of at most {MAX_SOCKET_PATH} bytes")
    if not is_served(Path(path), bench.limits.dial_s):
        raise ViolationError(f"no process accepts connections at endpoint {path}, although GetInfo named it")


@basic("registration-versions", f"{MANAGER}:542-563")
def version_is_supported(bench: Bench) -> None:
    """supported_versions has an entry that a kubelet supports.

    The kubelet refuses an empty list of gRPC services, and a list without a supported service.
    """
    versions = bench.info().versions
    if not any(one in DRA_SERVICES for one in versions):
        raise ViolationError(f"supported_versions are {list(versions)}, expected one of {', '.join(DRA_SERVICES)}")


@basic("registration-newest-first", f"{MANAGER}:547-554")
def newest_version_first(bench: Bench) -> None:
    """supported_versions lists the newest version first.

    The kubelet takes the first entry of the plugin's list that it supports.
    """
    info = bench.info()
    known = [one for one in info.versions if one in DRA_SERVICES]
    if known and known[0] != min(known, key=list(DRA_SERVICES).index):
        raise ViolationError(
            f"supported_versions are {list(info.versions)}: the kubelet uses {known[0]}, the older one"
        )


@basic("registration-versions-served", "staging/src/k8s.io/kubelet/pkg/apis/pluginregistration/v1/api.proto:22-28")
def versions_are_served(bench: Bench) -> None:
    """Every advertised version is served.

    supported_versions are the plugin service API versions the plugin supports.
    """
    info = bench.info()
    for version in info.versions:
        if version in DRA_SERVICES:
            _served(bench, info, version)
        elif version in HEALTH_SERVICES:
            _streamed(info, version)


@basic("registration-repeated", f"{GENERATOR}:85-145, test/e2e_node/dra_test.go:140-183")
def asked_again(bench: Bench) -> None:
    """GetInfo gives the same answer each time.

    After a failure, the kubelet repeats the whole registration.
    """
    first, second = bench.info(), bench.info()
    if first != second:
        raise ViolationError(f"the second GetInfo returns {second}, the first returned {first}")


@basic("registration-after-refusal", "test/e2e_node/dra_test.go:140, 163")
def refused_then_registered(bench: Bench) -> None:
    """A refused driver can be registered later.

    must recover and register after registration failure
    """
    registrar = bench.registrar()
    try:
        notify(registrar.path, bench.limits, registered=False, error="refused by the conformance suite")
    except CallError as error:  # any answer is fine: the kubelet logs it (operation_generator.go:105)
        if error.code in {"DEADLINE_EXCEEDED", "UNIMPLEMENTED"}:
            raise ViolationError(f"the driver did not receive a refused registration: {error}") from error
    bench.reconnect()
    answers.run(bench)
    bench.plugin()


@basic("registration-kubelet-restart", "test/e2e_node/dra_test.go:111")
def kubelet_restarts(bench: Bench) -> None:
    """The driver serves a restarted kubelet.

    must register after Kubelet restart
    """
    bench.plugin()
    bench.reconnect()
    bench.answers([])
    bench.plugin()


def _served(bench: Bench, info: PluginInfo, version: str) -> None:
    plugin = Plugin(info, version, bench.limits.call_s)
    try:
        plugin.prepare([], bench.left_s(bench.limits.call_s))
    except CallError as error:
        raise ViolationError(f"{version} is advertised but a call without claims fails: {error}") from error
    finally:
        plugin.close()


def _streamed(info: PluginInfo, version: str) -> None:
    peer = Peer(info.endpoint)
    service = HEALTH_SERVICES[version]
    stream = peer.stream(service, "NodeWatchResources", service.messages.NodeWatchResourcesRequest(), _STREAM_OPEN_S)
    try:
        stream.read(lambda _: True, _STREAM_OPEN_S)
    except CallError as error:
        raise ViolationError(f"{version} is advertised but its stream does not stay open: {error}") from error
    finally:
        stream.close()
        peer.close()


TYPES: Final = "staging/src/k8s.io/api/resource/v1/types.go"
CONTROLLER: Final = "staging/src/k8s.io/dynamic-resource-allocation/resourceslice/resourceslicecontroller.go"
MAX_DEVICES: Final = 64


@basic("slices-published", f"{TYPES}:60-82")
def are_published(bench: Bench) -> None:
    """The driver publishes ResourceSlices for its node.

    Slices represent the resources in a pool of a driver; without any the scheduler allocates nothing.
    """
    try:
        bench.slices()
    except UnableError as error:
        raise ViolationError(str(error)) from error


@basic("slices-count", f"{TYPES}:274-281")
def count_is_right(bench: Bench) -> None:
    """Each pool has as many slices as its slices declare.

    ResourceSliceCount is the total number of ResourceSlices in the pool at this generation number.
    """
    bench.wait(lambda: incomplete(bench.cluster.slices()), bench.limits.publish_s, "complete pools")


@basic("slices-generation", f"{TYPES}:258-272")
def old_generations_go(bench: Bench) -> None:
    """Slices of older generations are deleted.

    Whenever a driver changes something about a pool, it must change the generation in all ResourceSlices which are
    part of that pool.
    """

    def outdated() -> str:
        slices = bench.cluster.slices()
        if problem := incomplete(slices):
            return problem  # nothing is published yet, or the newest generation is still being written
        kept = [item["metadata"]["name"] for found in newest(slices).values() for item in found]
        old = [item["metadata"]["name"] for item in slices if item["metadata"]["name"] not in kept]
        return f"slices of older generations remain: {', '.join(old[:4])}" if old else ""

    bench.wait(outdated, bench.limits.publish_s, "one generation in each pool")


@basic("slices-device-names", f"{TYPES}:79-81")
def names_are_unique(bench: Bench) -> None:
    """Device names are unique in their pool.

    Each device in a given pool, regardless of how many ResourceSlices, must have a unique name.
    """
    repeated = [key for key, count in Counter(device.key for device in devices(bench.slices())).items() if count > 1]
    if repeated:
        pool, name = repeated[0]
        raise ViolationError(f"pool {pool} has more than one device {name}; schedulers then ignore the whole pool")


@basic("slices-counters", f"{TYPES}:185-240", needs=("partitions",))
def counters_exist(bench: Bench) -> None:
    """Counters that devices consume exist and suffice.

    Devices consume counters of the counter sets of their pool.
    """
    slices = bench.slices()
    published = counters(slices)
    for device in devices(slices):
        for (pool, name, counter), amount in device.charges.items():
            total = published.get((pool, name, counter))
            if total is None:
                raise ViolationError(f"device {device.name} consumes counter {name}/{counter}, which is not published")
            if total < amount:
                raise ViolationError(f"device {device.name} consumes {amount} of {name}/{counter}, which has {total}")


@basic("slices-room-for-taints", f"{TYPES}:285-292", level="should")
def leave_room_for_taints(bench: Bench) -> None:
    """A taint can be added to any device.

    A slice has at most 64 devices if any of them uses device taints.
    """
    for item in bench.slices():
        count = len(item["spec"].get("devices") or ())
        if count > MAX_DEVICES:
            raise ViolationError(
                f"slice {item['metadata']['name']} has {count} devices: the first taint makes it invalid, because a "
                f"slice with taints has at most {MAX_DEVICES}"
            )


@basic("slices-owner", f"{CONTROLLER}:206-253, 852-874", level="should")
def owned_by_node(bench: Bench) -> None:
    """Slices disappear with their node.

    ResourceSlices have their Node as owner, so that they are deleted with it.
    """
    for item in bench.slices():
        owners = item["metadata"].get("ownerReferences") or ()
        if item["spec"].get("nodeName") and not any(owner.get("kind") in {"Node", "Pod"} for owner in owners):
            raise ViolationError(f"slice {item['metadata']['name']} has no owner; it stays when its node is deleted")


@basic(
    "slices-pool-name",
    "staging/src/k8s.io/dynamic-resource-allocation/structured/internal/incubating/allocator_incubating.go:1518-1525",
    level="should",
    needs=("partitions",),
)
def pool_name_is_own(bench: Bench) -> None:
    """A pool with counters has a name that no other driver uses.

    Schedulers up to 1.36.2 keep counters by pool name without the driver.
    """
    names = {item["spec"]["pool"]["name"] for item in bench.slices() if item["spec"].get("sharedCounters")}
    if bench.cluster.node in names:
        raise ViolationError(
            f"the pool with counters is named {bench.cluster.node}, like the node; another driver may use that name, "
            "and then schedulers up to 1.36.2 allocate overlapping partitions. Expected a name that contains the driver"
        )


@basic("slices-quiet", f"{CONTROLLER}:64-69")
def quiet(bench: Bench) -> None:
    """Slices are written only when they change.

    Drivers with unnecessary writes overloaded API servers of large clusters (kubernetes#140011).
    """
    before = _versions(bench)
    bench.pause(bench.limits.quiet_s)
    changed = [name for name, version in _versions(bench).items() if before.get(name) != version]
    if changed:
        raise ViolationError(
            f"{len(changed)} slices were written within {bench.limits.quiet_s:g} s although nothing had changed, "
            f"among them {changed[0]}"
        )


def _versions(bench: Bench) -> dict[str, str]:
    return {item["metadata"]["name"]: item["metadata"]["resourceVersion"] for item in bench.slices()}
