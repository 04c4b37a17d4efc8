"""Judge the kernel's files, nodes that NVML makes, and the files of the driver's installation. Pure."""

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from dra_driver.diagnose.hardware.judging import few, judgement, survey_gpus
from dra_driver.diagnose.hardware.values import Facts, Judgement
from dra_driver.hardware.device_nodes.numbers import Majors
from dra_driver.hardware.device_nodes.params import parse_params

_GPU_NODE: Final = re.compile(r"/dev/nvidia(\d+)")
_CAP_NODE: Final = re.compile(r"/dev/nvidia-caps/nvidia-cap(\d+)")
_FIXED: Final = {"/dev/nvidiactl": ("nvidia", 255), "/dev/nvidia-modeset": ("nvidia", 254)}
_UVM: Final = {"/dev/nvidia-uvm": 0, "/dev/nvidia-uvm-tools": 1}
# Left out on purpose (cdi/layout.py), or not part of the driver: modules of the X server, glvnd, 32-bit libraries.
_NOT_OURS: Final = re.compile(
    r"xorg|nvidia_drv\.so|libglxserver_nvidia|/vulkan/|/egl/|glvnd|/X11/|lib32|i386-linux-gnu|libnvidia-wine"
)


def kernel(facts: Facts, survey: Facts) -> Judgement:
    """Check 7: device numbers and capability files are read as the nodes have them."""
    majors = Majors.parse(facts["proc_devices"])
    differences = [*_number_differences(facts, majors), *_node_differences(facts, survey)]
    return judgement(
        differences,
        f"majors: nvidia {majors.nvidia}, uvm {majors.uvm}, caps {majors.caps}; {len(facts['nodes'])} nodes, "
        f"{len(facts['links'])} links in /dev/char, {facts['mig_minors']['lines']} MIG minors; {_notes(facts, majors)}",
        right="containers get nodes with the kernel's numbers",
        wrong="containers would get nodes with wrong numbers, or a node is missing on the host",
    )


def _number_differences(facts: Facts, majors: Majors) -> Iterator[str]:
    if majors.nvidia is None:
        yield "/proc/devices lists neither nvidia nor nvidia-frontend"
    for node in facts["nodes"]:
        expected = _expected(node["path"], majors)
        # A node may outlive its module; it has no number then.
        if expected is not None and expected[0] is not None and (node["major"], node["minor"]) != expected:
            yield f"{node['path']} is {node['major']}:{node['minor']}, computed {expected[0]}:{expected[1]}"
    problem = parse_params(facts["params"]).problem
    if problem is not None:
        yield f"/proc/driver/nvidia/params {problem}"
    for name, text in facts["capabilities"].items():
        if not re.search(r"DeviceFileMinor:\s*\d+", text):
            yield f"/proc/driver/nvidia/capabilities/{name} has no DeviceFileMinor: {text[:60]!r}"
    for line in facts["mig_minors"]["first"]:
        if not re.fullmatch(r"\S+\s+\d+", line.strip()):
            yield f"line of mig-minors in another form: {line[:60]!r}"


def _node_differences(facts: Facts, survey: Facts) -> Iterator[str]:
    present = {node["path"] for node in facts["nodes"]}
    for gpu in survey_gpus(survey):
        minor = gpu["answers"]["nvmlDeviceGetMinorNumber"].get("value")
        if minor is not None and present and f"/dev/nvidia{minor}" not in present:
            yield f"GPU {gpu['index']} has minor {minor}, and /dev/nvidia{minor} does not exist"


def _expected(path: str, majors: Majors) -> tuple[int | None, int] | None:
    """Major and minor that this driver would compute for a node; None for a node that it does not give."""
    if match := _GPU_NODE.fullmatch(path):
        return majors.nvidia, int(match[1])
    if match := _CAP_NODE.fullmatch(path):
        return majors.caps, int(match[1])
    if path in _UVM:
        return majors.uvm, _UVM[path]
    return (majors.nvidia, _FIXED[path][1]) if path in _FIXED else None


def _notes(facts: Facts, majors: Majors) -> str:
    """What an administrator may want to change, and no assumption of the driver is about."""
    notes = []
    nodes = {node["path"]: node for node in facts["nodes"]}
    if majors.uvm is None:
        notes.append("nvidia-uvm is not loaded, without which CUDA fails")
    unlinked = [path for path, node in nodes.items() if f"{node['major']}:{node['minor']}" not in facts["links"]]
    if unlinked:
        notes.append(f"no link in /dev/char for {len(unlinked)} nodes, so systemctl daemon-reload takes GPUs away")
    if not parse_params(facts["params"]).modify:
        notes.append("ModifyDeviceFiles is 0: nodes are made by the administrator alone")
    return "; ".join(notes) or "nothing is missing"


def missing_nodes(facts: Facts, _survey: Facts) -> Judgement:
    """Check 6: NVML as root makes all nodes that it needs with the kernel's numbers, or none."""
    made = {node["path"]: (node["major"], node["minor"]) for node in facts["made"]}
    existing = {node["path"]: (node["major"], node["minor"]) for node in facts["existing"]}
    opened = "value" in facts["init"] and facts.get("count", {}).get("value", 0) > 0
    differences = [
        f"{path} was made with {made[path]}, the host has {existing[path]}"
        for path in made
        if path in existing and made[path] != existing[path]
    ]
    if made and not opened:
        differences.append(f"NVML made {', '.join(made)} and could still not open the GPUs")
    unknown = "" if existing else "this machine has no device node of NVIDIA"
    if opened and not made:
        unknown = "NVML needs no device node here, so this is not NVIDIA's library"
    return judgement(
        differences,
        f"without nodes and nvidia-modprobe, NVML made {', '.join(made) or 'none'}"
        + ("" if "value" in facts["init"] else f", and opening failed with code {facts['init'].get('code')}"),
        right="NVML makes missing nodes of GPUs" if made else "nodes must exist before NVML is opened",
        wrong="whether a node process on a fresh node finds its GPUs depends on what made the nodes",
        unknown=unknown,
    )


def files(facts: Facts, _survey: Facts) -> Judgement:
    """Check 8: the version is NVML's, and the lists are those of NVIDIA's own tool and of the linker."""
    own, ctk, linker = facts["own"], facts["ctk"], facts["ldconfig"]
    if "error" in own:
        return Judgement(verdict="differs", seen=own["error"], meaning="claims cannot be prepared on this node")
    differences = []
    version = facts["nvml"].get("value")
    if version != own["version"]:
        differences.append(f"files have version {own['version']}, NVML says {version}")
    differences += _against_ctk(own, ctk) if "mounts" in ctk else ()
    differences += _against_linker(own, linker.get("libraries", {}))
    compared = "nvidia-ctk" if "mounts" in ctk else f"not with nvidia-ctk ({ctk['error']})"
    return judgement(
        differences,
        f"version {own['version']}, {len(own['libraries'])} libraries, {len(own['files'])} other files; compared: "
        f"{compared}, linker's cache ({len(linker.get('libraries', {}))} names)",
        right="containers get the files that NVIDIA's runtime would give them",
        wrong="containers would lack files, or get those of another version",
    )


def _against_ctk(own: Mapping[str, Any], ctk: Mapping[str, Any]) -> Iterator[str]:
    ours = {path for path, _ in own["libraries"]} | {target for _, target in (*own["files"], *own["sockets"])}
    theirs = {target for _, target in ctk["mounts"]}
    yield from _listed("nvidia-ctk has", theirs - ours)
    yield from _listed("nvidia-ctk lacks", ours - theirs)


def _listed(what: str, paths: Iterable[str]) -> Iterator[str]:
    names = sorted(path for path in paths if not _NOT_OURS.search(path))
    if names:
        yield f"{what} {len(names)}: {few(names)}"


def _against_linker(own: Mapping[str, Any], linker: Mapping[str, str]) -> Iterator[str]:
    """A SONAME that this driver read from a file, and the linker knows under another file name."""
    files = {soname: path.rpartition("/")[2] for path, soname in own["libraries"] if soname}
    missing = [soname for soname in files if linker and soname not in linker and not soname.startswith("libvdpau")]
    if missing:
        yield f"the linker's cache has no {few(missing)}"
