"""Registration: the socket, what GetInfo says, and whether the advertised services exist."""

import re
from pathlib import Path
from typing import Final

from dra_driver.conformance import registry
from dra_driver.conformance.bench import Bench
from dra_driver.conformance.plugin import DRA_SERVICES, HEALTH_SERVICES, Plugin
from dra_driver.conformance.registry import PluginInfo
from dra_driver.conformance.values import Check, UnableError, ViolationError
from dra_driver.core.unix_grpc import CallError, Peer

GENERATOR: Final = "pkg/kubelet/pluginmanager/operationexecutor/operation_generator.go"
MANAGER: Final = "pkg/kubelet/cm/dra/plugin/dra_plugin_manager.go"
MAX_SOCKET_PATH: Final = 107
_SUBDOMAIN: Final = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*", re.IGNORECASE)
_STREAM_OPEN_S: Final = 0.5


def answers(bench: Bench) -> None:
    try:
        bench.info()
    except UnableError as error:
        raise ViolationError(str(error)) from error


def type_is_known(bench: Bench) -> None:
    if (info := bench.info()).type != "DRAPlugin":
        raise ViolationError(
            f"GetInfo says type {info.type!r}, expected 'DRAPlugin'; the kubelet has no handler for it"
        )


def name_is_the_drivers(bench: Bench) -> None:
    info = bench.info()
    if info.name != bench.subject.driver:
        raise ViolationError(f"GetInfo says name {info.name!r}, expected {bench.subject.driver!r}")
    if len(info.name) > 63 or not _SUBDOMAIN.fullmatch(info.name):
        raise ViolationError(f"{info.name!r} is not a DNS subdomain of at most 63 characters")


def endpoint_accepts(bench: Bench) -> None:
    path = bench.info().endpoint
    if not path.startswith("/") or len(path.encode()) > MAX_SOCKET_PATH:
        raise ViolationError(f"endpoint {path!r} is not an absolute path of at most {MAX_SOCKET_PATH} bytes")
    if not registry.is_served(Path(path), bench.limits.dial_s):
        raise ViolationError(f"no process accepts connections at endpoint {path}, although GetInfo named it")


def version_is_supported(bench: Bench) -> None:
    _chosen(bench.info())


def newest_version_first(bench: Bench) -> None:
    info = bench.info()
    known = [one for one in info.versions if one in DRA_SERVICES]
    if known and known[0] != min(known, key=list(DRA_SERVICES).index):
        raise ViolationError(
            f"supported_versions are {list(info.versions)}: the kubelet uses {known[0]}, the older one"
        )


def versions_are_served(bench: Bench) -> None:
    info = bench.info()
    for version in info.versions:
        if version in DRA_SERVICES:
            _served(bench, info, version)
        elif version in HEALTH_SERVICES:
            _streamed(info, version)


def refused_then_registered(bench: Bench) -> None:
    registrar = bench.registrar()
    try:
        registry.notify(registrar.path, bench.limits, registered=False, error="refused by the conformance suite")
    except CallError as error:  # any answer will do: the kubelet logs it (operation_generator.go:105)
        if error.code in {"DEADLINE_EXCEEDED", "UNIMPLEMENTED"}:
            raise ViolationError(f"a refused registration is not received: {error}") from error
    bench.reconnect()
    answers(bench)
    bench.plugin()


def asked_again(bench: Bench) -> None:
    first, second = bench.info(), bench.info()
    if first != second:
        raise ViolationError(f"the second GetInfo says {second}, the first said {first}")


def kubelet_restarts(bench: Bench) -> None:
    bench.plugin()
    bench.reconnect()
    bench.answers([])
    bench.plugin()


def _chosen(info: PluginInfo) -> str:
    """The first entry that a kubelet supports. Raises ViolationError."""
    chosen = next((one for one in info.versions if one in DRA_SERVICES), None)
    if chosen is None:
        raise ViolationError(f"supported_versions are {list(info.versions)}, expected one of {', '.join(DRA_SERVICES)}")
    return chosen


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


CHECKS: Final = (
    Check(
        id="registration-answers",
        title="A socket in the registrar folder answers GetInfo in time",
        rule="The kubelet dials every socket in the folder (10 s) and calls GetInfo (1 s).",
        source=f"{GENERATOR}:88-101",
        run=answers,
    ),
    Check(
        id="registration-type",
        title="The plugin has the type of DRA drivers",
        rule="no handler registered for plugin type: the kubelet refuses types that it does not know; "
        "that of DRA is DRAPlugin.",
        source=f"{GENERATOR}:103-109, staging/src/k8s.io/kubelet/pkg/apis/pluginregistration/v1/constants.go",
        run=type_is_known,
    ),
    Check(
        id="registration-name",
        title="The plugin has the name of the driver in its ResourceSlices",
        rule="Driver identifies the DRA driver; must be a DNS subdomain, at most 63 characters. Claims name the driver "
        "whose kubelet plugin is called.",
        source="staging/src/k8s.io/api/resource/v1/types.go:119-128, 243-246, 1764-1775",
        run=name_is_the_drivers,
    ),
    Check(
        id="registration-endpoint",
        title="The DRA socket accepts connections when GetInfo has named it",
        rule="The kubelet connects to the endpoint when the plugin registers, to detect early whether the plugin is "
        "really available.",
        source=f"{MANAGER}:370-415",
        run=endpoint_accepts,
    ),
    Check(
        id="registration-versions",
        title="supported_versions has an entry that a kubelet supports",
        rule="An empty list of supported gRPC services, or one without any that the kubelet supports, is refused.",
        source=f"{MANAGER}:542-563",
        run=version_is_supported,
    ),
    Check(
        id="registration-newest-first",
        title="supported_versions lists the newest version first",
        rule="The kubelet takes the first entry of the plugin's list that it supports.",
        source=f"{MANAGER}:547-554",
        run=newest_version_first,
    ),
    Check(
        id="registration-versions-served",
        title="Every advertised version is served",
        rule="supported_versions are the plugin service API versions the plugin supports.",
        source="staging/src/k8s.io/kubelet/pkg/apis/pluginregistration/v1/api.proto:22-28",
        run=versions_are_served,
    ),
    Check(
        id="registration-repeated",
        title="GetInfo gives the same answer each time",
        rule="After a failure, the kubelet repeats the whole registration.",
        source=f"{GENERATOR}:85-145, test/e2e_node/dra_test.go:140-183",
        run=asked_again,
    ),
    Check(
        id="registration-after-refusal",
        title="A driver that was refused can be registered later",
        rule="must recover and register after registration failure",
        source="test/e2e_node/dra_test.go:140, 163",
        run=refused_then_registered,
    ),
    Check(
        id="registration-kubelet-restart",
        title="The driver serves a kubelet that was restarted",
        rule="must register after Kubelet restart",
        source="test/e2e_node/dra_test.go:111",
        run=kubelet_restarts,
    ),
)
