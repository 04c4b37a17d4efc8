"""Reads what can be known of the kubelet without asking it: its process, its flags and its configuration file.

Its ``/configz`` needs rights that a node's own processes do not have. Flags and fields: kubernetes/kubernetes v1.36,
cmd/kubelet/app/options/options.go and staging/src/k8s.io/kubelet/config/v1beta1/types.go.
"""

import os
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import yaml
from msgspec import Struct, field

from dra_driver.diagnose.doctor.node_text import names, text
from dra_driver.diagnose.doctor.node_view import HostView
from dra_driver.hardware.driver_root import process
from dra_driver.hardware.driver_root.enter import enter

DEFAULT_ROOT: Final = "/var/lib/kubelet"
VERSION_S: Final = 5.0
WITH_KUBELET: Final = frozenset({"k3s", "k3s-server", "k3s-agent", "kubelite"})
"""Processes of k3s and MicroK8s that have the kubelet inside; k0s and RKE2 start one of its own name."""
_MOST_PROCESSES: Final = 100_000
_MOST_FILES: Final = 32


class KubeletFacts(Struct, frozen=True, kw_only=True):
    """``found``: its process was seen. ``inside`` is the process that has it inside, None for none. ``sees_processes``:
    the host's processes can be seen (its kernel threads are), so that one that was not seen does not run. ``gates`` are
    those that its flags or files name. ``version`` is None where its program cannot be asked. ``runtime_socket`` is the
    path of the container runtime that it uses."""

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
"""What the program of the process with this id says of its version; None where it cannot be asked."""


def read_kubelet(view: HostView, ask: "AskVersion | None" = None) -> KubeletFacts:
    """The first process that is called ``kubelet``; else the one that has a kubelet inside, whose settings are its
    own."""
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
    """Flags by name, of a command line as ``/proc`` has it; the last of several counts."""
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


def _config(view: HostView, path: str, folder: str | None) -> tuple[dict[str, Any], str | None]:
    """The configuration, with the files of ``--config-dir`` over it, and why it could not be read."""
    merged: dict[str, Any] = {}
    parts = [f"{folder}/{name}" for name in names(view.here(folder)) or () if name.endswith(".conf")] if folder else []
    for each in (path, *parts[:_MOST_FILES]):
        content = text(view.here(each))
        if content is None:
            return merged, f"{each} cannot be read"
        try:
            wire = yaml.safe_load(content)
        except (yaml.YAMLError, RecursionError, ValueError):
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
    """``A=true,B=false`` as a kubelet's flag has it."""
    pairs = (pair.partition("=") for pair in value.split(",") if "=" in pair)
    return {name.strip(): on.strip().lower() == "true" for name, _, on in pairs}


def kubelet_version(view: HostView, pid: str) -> str | None:
    """What the kubelet's own program prints; None without the right to see which program it is."""
    try:
        program = os.readlink(f"{view.proc}/{pid}/exe")  # noqa: PTH115
        ended = process.run([*enter(view.host), program, "--version"], environment={}, within_s=VERSION_S)
    except OSError:
        return None
    word = ended.output.strip().rpartition(" ")[2]
    return word if ended.status == 0 and word.startswith("v") and Path(program).name == "kubelet" else None
