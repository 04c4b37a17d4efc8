"""Registration: the socket, what GetInfo says, and whether the advertised services exist."""

import re
from pathlib import Path
from typing import Final

from dra_driver.conformance.bench import Bench
from dra_driver.conformance.plugin import DRA_SERVICES, HEALTH_SERVICES, Plugin, PluginInfo, notify
from dra_driver.conformance.values import UnableError, ViolationError, basic
from dra_driver.core.unix_grpc import CallError, Peer, is_served

GENERATOR: Final = "pkg/kubelet/pluginmanager/operationexecutor/operation_generator.go"
MANAGER: Final = "pkg/kubelet/cm/dra/plugin/dra_plugin_manager.go"
MAX_SOCKET_PATH: Final = 107
_SUBDOMAIN: Final = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*", re.IGNORECASE)
_STREAM_OPEN_S: Final = 0.5


@basic("registration-answers", f"{GENERATOR}:88-101")
def answers(bench: Bench) -> None:
    """A socket in the registrar folder answers GetInfo in time.

    The kubelet dials every socket in the folder (10 s) and calls GetInfo (1 s).
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

    no handler registered for plugin type: the kubelet refuses types that it does not know; that of DRA is
    DRAPlugin.
    """
    if (info := bench.info()).type != "DRAPlugin":
        raise ViolationError(
            f"GetInfo says type {info.type!r}, expected 'DRAPlugin'; the kubelet has no handler for it"
        )


@basic("registration-name", "staging/src/k8s.io/api/resource/v1/types.go:119-128, 243-246, 1764-1775")
def name_is_the_drivers(bench: Bench) -> None:
    """The plugin has the name of the driver in its ResourceSlices.

    Driver identifies the DRA driver; must be a DNS subdomain, at most 63 characters. Claims name the driver whose
    kubelet plugin is called.
    """
    info = bench.info()
    if info.name != bench.subject.driver:
        raise ViolationError(f"GetInfo says name {info.name!r}, expected {bench.subject.driver!r}")
    if len(info.name) > 63 or not _SUBDOMAIN.fullmatch(info.name):
        raise ViolationError(f"{info.name!r} is not a DNS subdomain of at most 63 characters")


@basic("registration-endpoint", f"{MANAGER}:370-415")
def endpoint_accepts(bench: Bench) -> None:
    """The DRA socket accepts connections when GetInfo has named it.

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

    An empty list of supported gRPC services, or one without any that the kubelet supports, is refused.
    """
    _chosen(bench.info())


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
        raise ViolationError(f"the second GetInfo says {second}, the first said {first}")


@basic("registration-after-refusal", "test/e2e_node/dra_test.go:140, 163")
def refused_then_registered(bench: Bench) -> None:
    """A driver that was refused can be registered later.

    must recover and register after registration failure
    """
    registrar = bench.registrar()
    try:
        notify(registrar.path, bench.limits, registered=False, error="refused by the conformance suite")
    except CallError as error:  # any answer will do: the kubelet logs it (operation_generator.go:105)
        if error.code in {"DEADLINE_EXCEEDED", "UNIMPLEMENTED"}:
            raise ViolationError(f"a refused registration is not received: {error}") from error
    bench.reconnect()
    answers.run(bench)
    bench.plugin()


@basic("registration-kubelet-restart", "test/e2e_node/dra_test.go:111")
def kubelet_restarts(bench: Bench) -> None:
    """The driver serves a kubelet that was restarted.

    must register after Kubelet restart
    """
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
