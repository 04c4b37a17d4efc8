"""Judges the container runtime of a node: does it answer, does it inject CDI devices, from which folders. Pure.

Sources: the kubelet names CDI devices in a field of CreateContainer. containerd reads it since 1.7.0 (`enable_cdi`,
off; on since 2.0.0), CRI-O since 1.28.0 (always on).
"""

import os
import re
from collections.abc import Iterator
from typing import Final

from dra_driver.core.finding import Finding, Layer, check, fail, ok, unknown, warn
from dra_driver.diagnose.doctor.node_facts import LocalFacts
from dra_driver.diagnose.doctor.node_runtime_facts import RuntimeFacts
from dra_driver.diagnose.doctor.node_text import some

CONTAINERD, CRIO, DOCKER = "containerd", "cri-o", "docker"
FIRST_CDI: Final = {CONTAINERD: (1, 7), CRIO: (1, 28)}
DEFAULT_FOLDERS: Final = ("/etc/cdi", "/var/run/cdi")
"""What runtimes read where their configuration names no folder."""
_VERSION: Final = re.compile(r"v?(\d{1,4})\.(\d{1,4})")
_ON_17: Final = (
    'Set enable_cdi = true in [plugins."io.containerd.grpc.v1.cri"] of /etc/containerd/config.toml, and '
    "restart containerd;"
    " running containers stay."
)
_ON_2: Final = (
    "Remove enable_cdi = false from [plugins.'io.containerd.cri.v1.runtime'] of "
    "/etc/containerd/config.toml, and restart "
    "containerd; running containers stay."
)


@check("runtime-answers", Layer.RUNTIME, "the container runtime answers by CRI")
def _answers(facts: LocalFacts) -> Iterator[Finding]:
    runtime = facts.runtime
    expected = "a container runtime that answers by CRI"
    if runtime.socket is None and not (facts.kubelet.found or facts.kubelet.sees_processes):
        do = "Run it as root on the node, or use --on-node."
        yield unknown("no container runtime's socket can be seen from here", expected, do)
    elif runtime.socket is None:
        do = "Start the container runtime, or name its socket with --cri-socket."
        yield fail(f"no socket at {some(runtime.tried)}", expected, do)
    elif runtime.denied:
        yield unknown(f"{runtime.socket}: {runtime.problem}", expected, "Run it as root.")
    elif runtime.problem:
        do = "Look at the runtime's log (journalctl -u containerd or -u crio)."
        yield fail(f"{runtime.socket}: {runtime.problem}", expected, do)
    else:
        yield ok(f"{runtime.name} {runtime.version} at {runtime.socket}")
    for condition in runtime.not_ready:
        do = "Look at the runtime's log; pods do not start before it is ready."
        yield warn(f"{runtime.name} is not ready: {condition}", "every condition of the runtime holds", do)


@check("cdi-switch", Layer.RUNTIME, "the container runtime injects CDI devices")
def _switch(facts: LocalFacts) -> Iterator[Finding]:
    runtime = facts.runtime
    if not runtime.name:
        return
    version, first = parse_version(runtime.version), FIRST_CDI.get(runtime.name)
    if runtime.name == DOCKER:
        yield warn(
            f"{runtime.name} {runtime.version}, through cri-dockerd",
            "containerd or CRI-O",
            "Use containerd 2 or CRI-O: whether cri-dockerd passes CDI devices on was not tried.",
        )
    elif version is None or first is None:
        do = "Ask its documentation whether it injects CDI devices that the kubelet names."
        yield unknown(f"{runtime.name} {runtime.version}", "containerd 1.7 or newer, or CRI-O 1.28 or newer", do)
    elif version < first:
        yield fail(
            f"{runtime.name} {runtime.version} injects no CDI devices that the kubelet names: containers start without "
            "their GPU",
            f"{runtime.name} {first[0]}.{first[1]} or newer",
            "Upgrade containerd to 2.x (1.7 needs enable_cdi = true as well)."
            if runtime.name == CONTAINERD
            else "Upgrade CRI-O to the minor version of the kubelet.",
        )
    elif runtime.name == CONTAINERD:
        yield from _containerd_switch(runtime, version)
    else:
        yield ok(f"{runtime.name} {runtime.version} has CDI, which is always on")


def _containerd_switch(runtime: RuntimeFacts, version: tuple[int, int]) -> Iterator[Finding]:
    if runtime.cdi is True:
        yield ok(f"CDI is on in containerd {runtime.version}")
    elif runtime.cdi is False:
        is_old = version < (2, 0)
        yield fail(
            f"CDI is off in containerd {runtime.version}{' (enable_cdi is false by default)' if is_old else ''}: "
            "containers start without their GPU",
            "enable_cdi = true",
            _ON_17 if is_old else _ON_2,
        )
    else:
        seen = f"containerd {runtime.version} does not tell whether CDI is on"
        yield unknown(seen, "enable_cdi = true", "Look for enableCDI in what `crictl info` prints.")


@check("cdi-folders", Layer.RUNTIME, "the container runtime reads the driver's CDI folder")
def _folders(facts: LocalFacts) -> Iterator[Finding]:
    runtime, own = facts.runtime, str(facts.view.cdi)
    has_cdi = runtime.cdi is True or runtime.name == CRIO
    if not has_cdi or not runtime.tells_config:
        return
    folders = runtime.cdi_dirs or DEFAULT_FOLDERS
    if _same(own) in {_same(folder) for folder in folders}:
        yield ok(f"{runtime.name} reads CDI files in {', '.join(folders)}")
        return
    yield fail(
        f"{runtime.name} reads CDI files in {', '.join(folders)}, and the driver writes them to {own}",
        f"{own} among the runtime's cdi_spec_dirs",
        f"Set cdiDir of the chart (--cdi-dir, CDI_DIR) to {folders[-1]}, or add {own} to cdi_spec_dirs of "
        f"{runtime.name}.",
    )


@check("default-runtime", Layer.RUNTIME, "a default runtime that gives no GPUs by itself")
def _default_runtime(facts: LocalFacts) -> Iterator[Finding]:
    default = facts.runtime.default_handler
    if default and default.startswith("nvidia"):
        yield warn(
            f"the default runtime is {default}: a pod without a claim gets GPUs by setting NVIDIA_VISIBLE_DEVICES",
            "runc or crun as default runtime; the nvidia runtime for pods that name its RuntimeClass",
            "Set default_runtime_name to runc, or accept-nvidia-visible-devices-envvar-when-unprivileged to false in "
            "/etc/nvidia-container-runtime/config.toml (docs/security.md).",
        )


def parse_version(text: str) -> tuple[int, int] | None:
    """Major and minor of ``1.6.20~ds1`` or ``v2.1.9``; None for another form."""
    match = _VERSION.match(text)
    return (int(match[1]), int(match[2])) if match else None


def _same(folder: str) -> str:
    """One spelling: /var/run is a link to /run everywhere that a kubelet runs."""
    path = os.path.normpath(folder)
    return "/run" + path.removeprefix("/var/run") if path.startswith("/var/run/") else path


CHECKS: Final = (_answers, _switch, _folders, _default_runtime)
