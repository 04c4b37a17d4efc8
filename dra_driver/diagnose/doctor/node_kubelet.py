"""Check the kubelet of a node, its plugin directories and sockets, and other publishers of the same GPUs. Read-only.

The kubelet's ``/configz`` needs permissions that a node's processes do not have, so this module reads its process,
flags and files. Flags and fields: kubernetes/kubernetes v1.36, cmd/kubelet/app/options/options.go and
staging/src/k8s.io/kubelet/config/v1beta1/types.go."""

import os
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final

from msgspec import Struct, field

from dra_driver.core import yaml_text
from dra_driver.core._pb.pluginregistration import api_pb2 as pb
from dra_driver.core.finding import Finding, Layer, check, fail, ok, unknown, warn
from dra_driver.core.text import listed
from dra_driver.core.unix_grpc import CallError, Peer, Service, shown
from dra_driver.core.unix_socket import is_served
from dra_driver.diagnose.doctor.node_view import HostView, is_socket, names, parse_version, text
from dra_driver.hardware.driver_root import process
from dra_driver.hardware.driver_root.process import enter_root

if TYPE_CHECKING:
    from dra_driver.diagnose.doctor.node import LocalFacts


DEFAULT_ROOT: Final = "/var/lib/kubelet"
VERSION_S: Final = 5.0
WITH_KUBELET: Final = frozenset({"k3s", "k3s-server", "k3s-agent", "kubelite"})
"""Processes of k3s and MicroK8s that contain the kubelet; k0s and RKE2 start a process named kubelet."""
_MOST_PROCESSES: Final = 100_000
_MOST_FILES: Final = 32


class KubeletFacts(Struct, frozen=True, kw_only=True):
    """``found``: the kubelet runs. ``inside`` is the process that contains it, None for none. ``sees_processes``: this
    process can list the host's processes (it sees kernel threads), so a kubelet that is not in the list does not run.
    ``gates`` are set by its flags or files. ``version`` is None if its program does not report one.
    ``runtime_socket`` is the path of the container runtime that it uses."""

    found: bool = False
    inside: str | None = None
    sees_processes: bool = False
    version: str | None = None
    root: str = DEFAULT_ROOT
    config: str | None = None
    config_problem: str | None = None
    gates: Mapping[str, bool] = field(default_factory=dict)
    runtime_socket: str | None = None


AskVersion = Callable[[HostView, str], str | None]
"""Return the version that the program of the process with this id prints; None if it cannot be run."""


def read_kubelet(view: HostView, ask: "AskVersion | None" = None) -> KubeletFacts:
    """Return the first process named ``kubelet``; else the process that contains a kubelet, without its settings."""
    pid = next(_processes(view.proc, {"kubelet"}), None)
    if pid is None:
        other = next(_processes(view.proc, WITH_KUBELET), None)
        inside = text(f"{view.proc}/{other}/comm") if other else None
        return KubeletFacts(inside=inside, sees_processes=text(f"{view.proc}/2/comm") == "kthreadd")
    flags = flags_of(text(f"{view.proc}/{pid}/cmdline") or "")
    config = flags.get("config")
    wire, problem = _config(view, config, flags.get("config-dir")) if config else ({}, None)
    gates = {**_gates(wire.get("featureGates")), **_gates(_pairs(flags.get("feature-gates", "")))}
    endpoint = flags.get("container-runtime-endpoint") or wire.get("containerRuntimeEndpoint")
    return KubeletFacts(
        found=True,
        version=(ask or kubelet_version)(view, pid),
        root=flags.get("root-dir", DEFAULT_ROOT),
        config=config,
        config_problem=problem,
        gates=gates,
        runtime_socket=endpoint.removeprefix("unix://") if isinstance(endpoint, str) and endpoint else None,
    )


def flags_of(cmdline: str) -> dict[str, str]:
    """Flags by name, from a command line in ``/proc``; the last of several counts."""
    words = cmdline.split("\0")[1:]
    found: dict[str, str] = {}
    for word, following in zip(words, [*words[1:], ""], strict=False):
        if word.startswith("-"):
            name, equals, value = word.lstrip("-").partition("=")
            found[name] = value if equals else "" if following.startswith("-") else following
    return found


def _processes(proc: str, called: Collection[str]) -> Iterator[str]:
    numbers = (name for name in (names(proc) or [])[:_MOST_PROCESSES] if name.isdecimal())
    return (number for number in numbers if text(f"{proc}/{number}/comm") in called)


def _config(view: HostView, path: str, folder: str | None) -> tuple[dict[str, object], str | None]:
    """Return the configuration, merged with the files of ``--config-dir``, and the read error, if any."""
    merged: dict[str, object] = {}
    parts = [f"{folder}/{name}" for name in names(view.here(folder)) or () if name.endswith(".conf")] if folder else []
    for each in (path, *parts[:_MOST_FILES]):
        content = text(view.here(each))
        if content is None:
            return merged, f"cannot read {each}"
        try:
            wire = yaml_text.load(content)
        except ValueError:
            return merged, f"{each} is not YAML"
        if isinstance(wire, dict):
            gates = {**_gates(merged.get("featureGates")), **_gates(wire.get("featureGates"))}
            merged = {**merged, **wire, "featureGates": gates}
    return merged, None


def _gates(value: object) -> dict[str, bool]:
    if not isinstance(value, dict):
        return {}
    return {str(name): on for name, on in value.items() if isinstance(on, bool)}


def _pairs(value: str) -> dict[str, bool]:
    """``A=true,B=false`` in the form of a kubelet flag."""
    pairs = (pair.partition("=") for pair in value.split(",") if "=" in pair)
    return {name.strip(): on.strip().lower() == "true" for name, _, on in pairs}


def kubelet_version(view: HostView, pid: str) -> str | None:
    """Return the version that the kubelet's program prints; None without the permission to see the program."""
    try:
        program = os.readlink(f"{view.proc}/{pid}/exe")  # noqa: PTH115
        ended = process.run([*enter_root(view.host), program, "--version"], environment={}, within_s=VERSION_S)
    except OSError:
        return None
    word = ended.output.strip().rpartition(" ")[2]
    return word if ended.status == 0 and word.startswith("v") and Path(program).name == "kubelet" else None


REGISTRATION: Final = Service(pb, "Registration")
GET_INFO_S: Final = 5.0
_MOST_SOCKETS: Final = 64


class PluginWords(Struct, frozen=True, kw_only=True):
    """A plugin's answer: its driver's name, its DRA socket, its services."""

    driver: str
    endpoint: str
    versions: tuple[str, ...] = ()


class PluginSocket(Struct, frozen=True, kw_only=True):
    """A registration socket. ``served``: a process accepts connections. ``words`` is its answer, ``problem`` the error
    instead. ``endpoint_served`` is about the DRA socket in the answer, for this driver only."""

    path: str
    served: bool
    words: PluginWords | None = None
    endpoint_served: bool = False
    problem: str | None = None


class SocketFacts(Struct, frozen=True, kw_only=True):
    """``registry`` is None if the kubelet's directory is missing, or unreadable: then ``problem`` is the error. ``own``
    are the sockets in the driver's directory, ``device_plugins`` the sockets of other publishers of NVIDIA GPUs (None
    if unreadable): path and whether a process listens."""

    registry_folder: str = ""
    registry: tuple[PluginSocket, ...] | None = None
    problem: str | None = None
    own: tuple[tuple[str, bool], ...] = ()
    device_plugins: tuple[tuple[str, bool], ...] | None = ()


GetInfo = Callable[[str], PluginWords]
"""Call GetInfo on a registration socket. Raises CallError."""


def get_info(path: str) -> PluginWords:
    """Call GetInfo, the kubelet's first call to a plugin. Raises CallError."""
    peer = Peer(path)
    try:
        answer = peer.call(REGISTRATION, "GetInfo", pb.InfoRequest(), GET_INFO_S)
    finally:
        peer.close()
    versions = tuple(shown(each) for each in answer.supported_versions[:_MOST_SOCKETS])
    return PluginWords(driver=shown(answer.name), endpoint=str(answer.endpoint) or path, versions=versions)


def read_sockets(view: HostView, ask: GetInfo = get_info) -> SocketFacts:
    """Check all sockets. Takes at most some seconds for each process that hangs."""
    registry, problem = None, None
    try:
        os.listdir(view.registry)  # noqa: PTH208 - raises if unreadable
        registry = tuple(_asked_plugin(view, path, ask) for path in sockets_in(str(view.registry))[:_MOST_SOCKETS])
    except (FileNotFoundError, NotADirectoryError):
        pass
    except OSError as error:
        problem = f"cannot read {view.registry}: {error.strerror}"
    return SocketFacts(
        registry_folder=str(view.registry),
        registry=registry,
        problem=problem,
        own=_looked(sockets_in(str(view.own_folder))),
        device_plugins=_device_plugins(view),
    )


def sockets_in(folder: str) -> list[str]:
    """Paths of the directory's sockets without hidden ones, as in the kubelet; none for a missing directory."""
    return [
        f"{folder}/{name}" for name in names(folder) or () if not name.startswith(".") and is_socket(f"{folder}/{name}")
    ]


def _device_plugins(view: HostView) -> tuple[tuple[str, bool], ...] | None:
    try:
        os.listdir(view.device_plugins)  # noqa: PTH208 - raises if unreadable
    except PermissionError:
        return None
    except OSError:
        return ()
    return _looked([path for path in sockets_in(view.device_plugins) if Path(path).name.startswith("nvidia-")])


def _looked(paths: list[str]) -> tuple[tuple[str, bool], ...]:
    return tuple((path, is_served(path)) for path in paths[:_MOST_SOCKETS])


def _asked_plugin(view: HostView, path: str, ask: GetInfo) -> PluginSocket:
    if not is_served(path):
        return PluginSocket(path=path, served=False)
    try:
        words = ask(path)
    except CallError as error:
        return PluginSocket(path=path, served=True, problem=str(error))
    # The pod of --on-node does not mount other plugins' directories: test only this driver's endpoint.
    endpoint_served = words.driver == view.driver and is_served(words.endpoint)
    return PluginSocket(path=path, served=True, words=words, endpoint_served=endpoint_served)


OLDEST: Final = (1, 34)
"""The first version with resource.k8s.io/v1 (docs/operations.md)."""
GATE: Final = "DynamicResourceAllocation"
SERVICES: Final = ("v1.DRAPlugin", "v1beta1.DRAPlugin")
_START: Final = (
    "Check the driver's pod on this node (kubectl -n dra-driver get pods -o wide, kubectl logs); it creates its "
    "sockets within a second of its start."
)


@check("kubelet", Layer.KUBERNETES, "a kubelet of a supported version")
def _kubelet(facts: "LocalFacts") -> Iterator[Finding]:
    kubelet = facts.kubelet
    if not kubelet.found:
        yield _without_process(kubelet)
        return
    version = parse_version(kubelet.version or "")
    if version and version < OLDEST:
        do = "Upgrade the node, or keep the driver's DaemonSet off it."
        yield fail(f"kubelet {kubelet.version}", f"version {OLDEST[0]}.{OLDEST[1]} or newer", do, reason="OldKubelet")
    else:
        yield ok(f"kubelet {kubelet.version or 'of unknown version'} with --root-dir {kubelet.root}")
    if kubelet.config_problem:
        do = "Run it as root."
        seen = f"the kubelet's configuration: {kubelet.config_problem}"
        yield warn(seen, "a readable file", do, reason="KubeletConfigUnreadable")


def _without_process(kubelet: KubeletFacts) -> Finding:
    expected = "a running kubelet"
    if kubelet.inside:
        return ok(f"the kubelet runs inside {kubelet.inside}, so its settings are unknown")
    if not kubelet.sees_processes:
        do = "Run it as root on the node, or use --on-node."
        return warn("cannot list the host's processes", expected, do, reason="ProcessesHidden")
    do = "Start the kubelet, and read its log (journalctl -u kubelet)."
    return fail("no kubelet runs", expected, do, reason="KubeletNotRunning")


@check("kubelet-gate", Layer.KUBERNETES, "the kubelet's feature gate for DRA")
def _gate(facts: "LocalFacts") -> Iterator[Finding]:
    gates = facts.kubelet.gates
    if gates.get(GATE) is False:
        do = (
            f"Remove {GATE}: false from featureGates of {facts.kubelet.config or 'the kubelet'} (or --feature-gates), "
            "and restart the kubelet."
        )
        yield fail(f"the feature gate {GATE} is off in the kubelet", "enabled, as by default", do)
    elif facts.kubelet.found:
        named = ", ".join(f"{name}={str(on).lower()}" for name, on in sorted(gates.items()) if "DRA" in name)
        yield ok(f"the gate {GATE} is not disabled{f'; {named}' if named else ''}")


@check("plugin-folders", Layer.SOCKETS, "the kubelet's plugin directories")
def _folders(facts: "LocalFacts") -> Iterator[Finding]:
    view, sockets = facts.view, facts.sockets
    wanted = f"{facts.kubelet.root.rstrip('/')}/plugins_registry"
    do = f"Set kubelet.rootDir of the chart to {facts.kubelet.root} (KUBELET_REGISTRAR_DIR, KUBELET_PLUGINS_DIR)."
    if facts.kubelet.found and os.path.normpath(view.registry) != os.path.normpath(wanted):
        seen = f"the kubelet searches {wanted} for plugins, the driver registers in {view.registry}"
        yield fail(seen, "the same directory in both", do, reason="OtherPluginDirectory")
    elif sockets.problem:
        yield unknown(sockets.problem, "the kubelet's plugins_registry", "Run it as root.", reason="RegistryUnreadable")
    elif sockets.registry is None:
        do = "Start the kubelet, which creates it; or set kubelet.rootDir of the chart to its --root-dir."
        seen = f"the directory {sockets.registry_folder} does not exist"
        yield fail(seen, "the kubelet's plugins_registry", do, reason="NoRegistry")
    else:
        yield ok(f"the kubelet's plugins_registry is {sockets.registry_folder}")


@check("stale-sockets", Layer.SOCKETS, "sockets that a process serves")
def _dead(facts: "LocalFacts") -> Iterator[Finding]:
    """Report sockets of this driver that a killed process left. Other drivers' sockets only slow the kubelet down."""
    dead = [each.path for each in facts.sockets.registry or () if not each.served]
    own_dead = [path for path in dead if _is_own_name(facts, path)]
    own_dead += [path for path, served in facts.sockets.own if not served]
    works = any(each.endpoint_served for each, _ in _own(facts))
    if own_dead:
        make = warn if works else fail
        seen = f"no process listens on {listed(own_dead)}"
        do = f"Remove {'them' if len(own_dead) > 1 else 'it'}, or start the node process, which does so. " + _START
        yield make(seen, "sockets that the running node process serves", do, reason="StaleSockets")
    others = [path for path in dead if not _is_own_name(facts, path)]
    if others:
        do = "Start that driver, or remove its socket: the kubelet dials it again and again."
        seen = f"no process listens on {listed(others)}, of another driver"
        yield warn(seen, "served sockets", do, reason="StaleSocketsOfOthers")


@check("registration-socket", Layer.REGISTRATION, "an answer on the registration socket")
def _registration(facts: "LocalFacts") -> Iterator[Finding]:
    registry, driver = facts.sockets.registry, facts.view.driver
    if registry is None:
        return
    own = _own(facts)
    for each, words in own:
        yield from _own_socket(each, words)
    for each in registry:
        if each.served and each.problem and _is_own_name(facts, each.path):
            yield fail(
                f"{each.path} does not answer: {each.problem}", "an answer to GetInfo", _START, reason="NoAnswer"
            )
    served_own_name = any(each.served and _is_own_name(facts, each.path) for each in registry)
    if not own and not served_own_name:
        present = [each.words.driver for each in registry if each.words]
        others = f" (served: {listed(present)})" if present else ""
        seen = f"no registration socket of {driver} is served{others}"
        yield fail(seen, "one per node process", _START, reason="NoRegistrationSocket")


def _own_socket(socket: PluginSocket, words: PluginWords) -> Iterator[Finding]:
    known = [version for version in words.versions if version in SERVICES]
    if not known:
        do = "Use versions of driver and kubelet that have a service in common."
        seen = f"{socket.path} offers {listed(words.versions) or 'no service'}"
        yield fail(seen, " or ".join(SERVICES), do, reason="NoCommonService")
    elif not socket.endpoint_served:
        seen = f"{socket.path} names {words.endpoint}, but no process listens on it"
        yield fail(seen, "a served DRA socket", _START, reason="EndpointNotServed")
    else:
        yield ok(f"{words.driver} answers at {socket.path} with {', '.join(known)}")


@check("device-plugin", Layer.SECOND_PUBLISHER, "no second publisher of the GPUs")
def _second_publisher(facts: "LocalFacts") -> Iterator[Finding]:
    expected = "no device plugin for NVIDIA GPUs on this node"
    sockets = facts.sockets.device_plugins
    if sockets is None:
        yield unknown(
            f"cannot read {facts.view.device_plugins}", expected, "Run it as root.", reason="DevicePluginsUnreadable"
        )
        return
    served = [path for path, is_served in sockets if is_served]
    dead = [path for path, is_served in sockets if not is_served]
    if served and not facts.view.settings.allow_second_publisher:
        seen = (
            f"a device plugin serves {listed(served)}: a GPU could be allocated to two pods, so the driver withdraws "
            "its devices"
        )
        do = "Keep the device plugin (its node selector or affinity) or the driver's DaemonSet off this node."
        yield fail(seen, expected, do, reason="DevicePluginRuns")
    elif served:
        do = "Divide the GPUs manually (NVIDIA_VISIBLE_DEVICES of the plugin), or end the migration."
        seen = f"a device plugin serves {listed(served)}, which ALLOW_SECOND_PUBLISHER permits"
        yield warn(seen, expected, do, reason="DevicePluginAllowed")
    elif dead:
        do = "Remove it: an uninstalled device plugin left it."
        yield warn(
            f"no process listens on {listed(dead)} of a device plugin", expected, do, reason="StaleDevicePluginSocket"
        )
    else:
        yield ok("no device plugin of NVIDIA has a socket on this node")


def _own(facts: "LocalFacts") -> list[tuple[PluginSocket, PluginWords]]:
    sockets = facts.sockets.registry or ()
    return [(each, each.words) for each in sockets if each.words and each.words.driver == facts.view.driver]


def _is_own_name(facts: "LocalFacts", path: str) -> bool:
    """By the name of the file: no process answers on a dead socket."""
    return path.rpartition("/")[2].startswith(f"{facts.view.driver}-")
