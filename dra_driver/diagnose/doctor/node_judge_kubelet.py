"""Judges the kubelet of a node, its plugin folders and sockets, and other publishers of the same GPUs. Pure."""

import os
from collections.abc import Iterator
from typing import Final

from dra_driver.core.finding import Finding, Layer, check, fail, ok, unknown, warn
from dra_driver.diagnose.doctor.node_facts import LocalFacts
from dra_driver.diagnose.doctor.node_judge_runtime import parse_version
from dra_driver.diagnose.doctor.node_kubelet_facts import KubeletFacts
from dra_driver.diagnose.doctor.node_sockets import PluginSocket, PluginWords
from dra_driver.diagnose.doctor.node_text import some

OLDEST: Final = (1, 34)
"""The first version with resource.k8s.io/v1 (docs/operations.md)."""
GATE: Final = "DynamicResourceAllocation"
SERVICES: Final = ("v1.DRAPlugin", "v1beta1.DRAPlugin")
_START: Final = (
    "Look at the driver's pod on this node (kubectl -n dra-driver get pods -o wide, kubectl logs); it "
    "makes its sockets "
    "within a second of its start."
)


@check("kubelet", Layer.KUBERNETES, "a kubelet of a known version")
def _kubelet(facts: LocalFacts) -> Iterator[Finding]:
    kubelet = facts.kubelet
    if not kubelet.found:
        yield _without_process(kubelet)
        return
    version = parse_version(kubelet.version or "")
    if version and version < OLDEST:
        do = "Upgrade the node, or keep the driver's DaemonSet off it."
        yield fail(f"kubelet {kubelet.version}", f"version {OLDEST[0]}.{OLDEST[1]} or newer", do)
    else:
        yield ok(f"kubelet {kubelet.version or 'of unknown version'} with --root-dir {kubelet.root}")
    if kubelet.config_problem:
        do = "Run it as root."
        yield warn(f"the kubelet's configuration: {kubelet.config_problem}", "a file that can be read", do)


def _without_process(kubelet: KubeletFacts) -> Finding:
    expected = "a running kubelet"
    if kubelet.inside:
        return ok(f"the kubelet is inside {kubelet.inside}, so its settings are not seen")
    if not kubelet.sees_processes:
        do = "Run it as root on the node, or use --on-node."
        return warn("the host's processes cannot be seen from here", expected, do)
    do = "Start the kubelet, and look at its log (journalctl -u kubelet)."
    return fail("no kubelet runs", expected, do)


@check("kubelet-gate", Layer.KUBERNETES, "the kubelet's feature gate for DRA")
def _gate(facts: LocalFacts) -> Iterator[Finding]:
    gates = facts.kubelet.gates
    if gates.get(GATE) is False:
        yield fail(
            f"the feature gate {GATE} is off in the kubelet",
            "on, as by default",
            f"Remove {GATE}: false from featureGates of {facts.kubelet.config or 'the kubelet'} (or "
            "--feature-gates), and "
            "restart the kubelet.",
        )
    elif facts.kubelet.found:
        named = ", ".join(f"{name}={str(on).lower()}" for name, on in sorted(gates.items()) if "DRA" in name)
        yield ok(f"the gate {GATE} is not switched off{f'; {named}' if named else ''}")


@check("plugin-folders", Layer.SOCKETS, "the kubelet's plugin folders")
def _folders(facts: LocalFacts) -> Iterator[Finding]:
    view, sockets = facts.view, facts.sockets
    wanted = f"{facts.kubelet.root.rstrip('/')}/plugins_registry"
    do = f"Set kubelet.rootDir of the chart to {facts.kubelet.root} (KUBELET_REGISTRAR_DIR, KUBELET_PLUGINS_DIR)."
    if facts.kubelet.found and os.path.normpath(view.registry) != os.path.normpath(wanted):
        seen = f"the kubelet looks for plugins in {wanted}, the driver registers in {view.registry}"
        yield fail(seen, "one folder for both", do)
    elif sockets.problem:
        yield unknown(sockets.problem, "the kubelet's plugins_registry", "Run it as root.")
    elif sockets.registry is None:
        do = "Start the kubelet, which makes the folder; or set kubelet.rootDir of the chart to its --root-dir."
        yield fail(f"the folder {sockets.registry_folder} does not exist", "the kubelet's plugins_registry", do)
    else:
        yield ok(f"the kubelet's plugins_registry is {sockets.registry_folder}")


@check("stale-sockets", Layer.SOCKETS, "sockets that a process serves")
def _dead(facts: LocalFacts) -> Iterator[Finding]:
    """Sockets of this driver that a killed process left; those of other drivers slow the kubelet down alone."""
    dead = [each.path for each in facts.sockets.registry or () if not each.served]
    own_dead = [path for path in dead if _is_own_name(facts, path)]
    own_dead += [path for path, served in facts.sockets.own if not served]
    works = any(each.endpoint_served for each, _ in _own(facts))
    if own_dead:
        make = warn if works else fail
        seen = f"no process listens on {some(own_dead)}"
        do = f"Remove {'them' if len(own_dead) > 1 else 'it'}; a start of the node process does so. " + _START
        yield make(seen, "sockets that the running node process serves", do)
    others = [path for path in dead if not _is_own_name(facts, path)]
    if others:
        do = "Start that driver, or remove its socket: the kubelet dials it for ever."
        yield warn(f"no process listens on {some(others)}, of another driver", "served sockets", do)


@check("registration-socket", Layer.REGISTRATION, "a registration socket that answers")
def _registration(facts: LocalFacts) -> Iterator[Finding]:
    registry, driver = facts.sockets.registry, facts.view.driver
    if registry is None:
        return
    own = _own(facts)
    for each, words in own:
        yield from _own_socket(each, words)
    for each in registry:
        if each.served and each.problem and _is_own_name(facts, each.path):
            yield fail(f"{each.path} gives no answer: {each.problem}", "an answer to GetInfo", _START)
    served_own_name = any(each.served and _is_own_name(facts, each.path) for each in registry)
    if not own and not served_own_name:
        present = [each.words.driver for each in registry if each.words]
        others = f" (of {some(present)} there is)" if present else ""
        yield fail(f"no registration socket of {driver} is served{others}", "one per node process", _START)


def _own_socket(socket: PluginSocket, words: PluginWords) -> Iterator[Finding]:
    known = [version for version in words.versions if version in SERVICES]
    if not known:
        do = "Use a version of the driver and a kubelet that have a service in common."
        yield fail(f"{socket.path} offers {some(words.versions) or 'no service'}", " or ".join(SERVICES), do)
    elif not socket.endpoint_served:
        seen = f"{socket.path} names {words.endpoint}, on which no process listens"
        yield fail(seen, "a served DRA socket", _START)
    else:
        yield ok(f"{words.driver} answers at {socket.path} with {', '.join(known)}")


@check("device-plugin", Layer.SECOND_PUBLISHER, "no second publisher of the GPUs")
def _second_publisher(facts: LocalFacts) -> Iterator[Finding]:
    expected = "no device plugin for NVIDIA GPUs on this node"
    sockets = facts.sockets.device_plugins
    if sockets is None:
        yield unknown(f"{facts.view.device_plugins} cannot be read", expected, "Run it as root.")
        return
    served = [path for path, is_served in sockets if is_served]
    dead = [path for path, is_served in sockets if not is_served]
    if served and not facts.view.second_publisher_allowed:
        yield fail(
            f"a device plugin serves {some(served)}: a GPU could be given to two pods, so the driver withdraws "
            "its devices",
            expected,
            "Keep the device plugin off this node (its node selector or affinity), or the driver's DaemonSet.",
        )
    elif served:
        do = "Divide the GPUs by hand (NVIDIA_VISIBLE_DEVICES of the plugin), or end the migration."
        yield warn(f"a device plugin serves {some(served)}, which ALLOW_SECOND_PUBLISHER permits", expected, do)
    elif dead:
        do = "Remove it: a device plugin that was uninstalled left it."
        yield warn(f"no process listens on {some(dead)} of a device plugin", expected, do)
    else:
        yield ok("no device plugin of NVIDIA has a socket here")


def _own(facts: LocalFacts) -> list[tuple[PluginSocket, PluginWords]]:
    sockets = facts.sockets.registry or ()
    return [(each, each.words) for each in sockets if each.words and each.words.driver == facts.view.driver]


def _is_own_name(facts: LocalFacts, path: str) -> bool:
    """By the name of the file, as no process says whose a dead socket is."""
    return path.rpartition("/")[2].startswith(f"{facts.view.driver}-")


CHECKS: Final = (_kubelet, _gate, _folders, _dead, _registration, _second_publisher)
