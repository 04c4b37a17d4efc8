"""Check the kernel's files about NVIDIA's devices, nodes that NVML makes, and the driver's installed files.

Checks 6, 7 and 8. The judges do no I/O."""

import json
import os
import re
import shutil
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Final

from dra_driver.core.errors import DriverUnavailableError
from dra_driver.core.files import read_start
from dra_driver.core.finding import Finding, Status
from dra_driver.diagnose.hardware import mounts
from dra_driver.diagnose.hardware.child import Task
from dra_driver.diagnose.hardware.nvml_session import opened
from dra_driver.diagnose.hardware.values import Facts, Topics, few, hardware_check, judgement, survey_gpus
from dra_driver.hardware.cdi import discover
from dra_driver.hardware.device_nodes.folder import parse_params
from dra_driver.hardware.device_nodes.numbers import Majors, expected_numbers
from dra_driver.hardware.driver_root import process, search
from dra_driver.hardware.driver_root.search import PROGRAM_FOLDERS, find_program
from dra_driver.hardware.gpu.holders import link_target
from dra_driver.hardware.gpu.nvml import probes

CTK: Final = "nvidia-ctk"
TOOLKIT_FOLDERS: Final = ("/usr/bin", "/usr/local/nvidia/toolkit")
_CAPABILITIES: Final = ("mig/config", "mig/monitor", "fabric-imex-mgmt", "fabric-mgmt")
_PROGRAM_S: Final = 20.0
_MAX_FILE: Final = 1 << 18
_MAX_LISTED: Final = 16


def read_kernel(task: Task) -> Topics:
    """Device numbers, modules, nodes and links, from the kernel's files."""
    yield "proc_devices", _text(task.proc_devices)
    modules = _text("/proc/modules").splitlines()
    yield "modules", [line.split(None, 5)[:3] for line in modules if line.startswith("nvidia")]
    dev = Path(f"{task.dev_root.rstrip('/')}/dev")
    yield "nodes", mounts.device_files(dev)
    yield "links", _char_links(dev / "char")
    driver = Path(task.proc_driver)
    yield "params", _text(driver / "nvidia/params")
    folder = driver / "nvidia/capabilities"
    yield "capabilities", {name: _text(folder / name) for name in _CAPABILITIES if (folder / name).exists()}
    minors = _text(driver / "nvidia-caps/mig-minors").splitlines()
    yield "mig_minors", {"lines": len(minors), "first": minors[:_MAX_LISTED]}


def read_files(task: Task) -> Topics:
    """The driver's files in three lists: this driver's, nvidia-ctk's and the linker cache's."""
    with opened(task.library):
        yield "nvml", probes.ask(probes.pynvml.nvmlSystemGetDriverVersion)
    yield "own", _own(task)
    yield "ctk", _ctk(task)
    yield "ldconfig", _ldconfig(task)


def _own(task: Task) -> Facts:
    try:
        found = discover(task.driver_root)
    except DriverUnavailableError as error:
        return {"error": str(error)}
    return {
        "version": found.version,
        "multiarch": found.multiarch,
        "libraries": [[library.path, library.soname] for library in found.libraries],
        "files": [[file.path, file.container_path] for file in found.files],
        "sockets": [[file.path, file.container_path] for file in found.sockets],
    }


def _ctk(task: Task) -> Facts:
    """The mounts of ``nvidia-ctk cdi generate``: ``mounts`` as host and container path, or ``error``."""
    root = next((root for root in dict.fromkeys((task.host, "/")) if _toolkit(root)), None)
    if root is None:
        return {"error": f"no {CTK} in {', '.join(TOOLKIT_FOLDERS)}"}
    # Below another root it runs with that root, as on the host.
    command = [_toolkit(root) or "", "cdi", "generate", "--format=json"]
    if task.driver_root.host_root:
        command.append(f"--driver-root={task.driver_root.host_root}")
    entered = [] if search.is_own(root) else [shutil.which("chroot", path=search.OWN_PATH) or "chroot", root]
    # Into a file of this process, and without its log: it prints more than `Running` keeps.
    file = Path(task.folder, "ctk.json")
    try:
        ended = process.Running(
            ["/bin/sh", "-c", 'exec "$@" > "$0" 2>/dev/null', str(file), *entered, *command],
            environment={"PATH": search.OWN_PATH, "LC_ALL": "C"},
            within_s=_PROGRAM_S,
        ).wait()
    except OSError as error:
        return {"error": f"cannot start {CTK}: {error}"}
    text = _text(file, 4 << 20)
    return _parsed_ctk(text, ended.status) | {"command": command}


def _parsed_ctk(text: str, status: int | None) -> dict[str, object]:
    try:
        edits = json.loads(text)["containerEdits"]
        listed = [[one["hostPath"], one["containerPath"]] for one in edits.get("mounts", ())]
        hooks = [" ".join(one.get("args", ())) for one in edits.get("hooks", ())]
        nodes = [one["path"] for one in edits.get("deviceNodes", ())]
    except (ValueError, KeyError, TypeError) as error:
        return {"error": f"{CTK} ended with status {status}, and its output is unreadable: {error}"}
    return {"status": status, "mounts": listed, "hooks": hooks, "nodes": nodes}


def _toolkit(root: str) -> str | None:
    """The program's path below ``root``, as a process with that root sees it."""
    prefix = root.rstrip("/")
    return next(
        (f"{folder}/{CTK}" for folder in TOOLKIT_FOLDERS if os.access(f"{prefix}{folder}/{CTK}", os.X_OK)), None
    )


def _ldconfig(task: Task) -> Facts:
    """``libraries``: path by name, of NVIDIA's 64-bit libraries in the linker's cache of the driver root."""
    program = find_program("/", "ldconfig") or find_program(task.root, "ldconfig")
    if program is None:
        return {"error": "no ldconfig"}
    cache = f"{task.root.rstrip('/')}/etc/ld.so.cache"
    try:
        ended = process.run(
            ["/bin/sh", "-c", 'exec "$0" "$@" | grep -E "nvidia|libcuda|libnv"', program, "-p", "-C", cache],
            environment={"PATH": search.OWN_PATH, "LC_ALL": "C"},
            within_s=_PROGRAM_S,
        )
    except OSError as error:
        return {"error": f"cannot start ldconfig: {error}"}
    found: dict[str, str] = {}
    for line in ended.output.splitlines():
        name, arrow, path = line.strip().partition(" => ")
        if arrow and ("x86-64" in name or "AArch64" in name):
            found.setdefault(name.split()[0], path.strip())
    return {"status": ended.status, "libraries": found}


def _char_links(folder: Path) -> dict[str, str]:
    try:
        names = sorted(os.listdir(folder))  # noqa: PTH208 - names, not paths
    except OSError:
        return {}
    links = {name: link_target(f"{folder}/{name}") for name in names}
    return {name: target for name, target in links.items() if "nvidia" in target}


def _text(path: Path | str, limit: int = _MAX_FILE) -> str:
    return read_start(path, limit) or ""


HELPER: Final = "nvidia-modprobe"


def read_missing_nodes(task: Task) -> Topics:
    """Open NVML in a mount namespace whose /dev has no node of NVIDIA, with nvidia-modprobe covered.

    Topics ``existing`` (nodes outside), ``covered`` (programs), ``init``, ``count``, and ``made`` (nodes afterwards).
    """
    dev = Path("/dev")
    existing = mounts.device_files(Path(f"{task.dev_root.rstrip('/')}/dev"))
    yield "existing", existing
    mounts.enter()
    roots = dict.fromkeys(("", task.root.rstrip("/"), task.host.rstrip("/")))
    yield "covered", mounts.hide(f"{root}{folder}/{HELPER}" for root in roots for folder in PROGRAM_FOLDERS)
    mounts.plain_dev(dev)
    if task.dev_root.strip("/"):
        mounts.plain_dev(Path(f"{task.dev_root.rstrip('/')}/dev"))
    load = probes.load(task.library)
    yield "init", load
    if "value" in load:
        yield "count", probes.ask(probes.pynvml.nvmlDeviceGetCount)
        count = probes.ask(probes.pynvml.nvmlDeviceGetCount).get("value", 0)
        yield "handles", [probes.ask(partial(probes.answers_at, index)) for index in range(count)]
    yield "made", mounts.device_files(dev)


# Excluded (cdi/libraries.py), or not part of the driver: modules of the X server, glvnd, 32-bit libraries.
_NOT_OURS: Final = re.compile(
    r"xorg|nvidia_drv\.so|libglxserver_nvidia|/vulkan/|/egl/|glvnd|/X11/|lib32|i386-linux-gnu|libnvidia-wine"
)


@hardware_check(7, "device numbers", read_kernel, 15.0)
def kernel(facts: Facts, survey: Facts) -> Finding:
    """Numbers in /proc match the nodes in /dev."""
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
        numbers, expected = (node["major"], node["minor"]), expected_numbers(node["path"], majors)
        # A node can remain after its module is unloaded; it has no number then.
        if expected is not None and numbers != (expected.major, expected.minor):
            yield f"{node['path']} is {numbers[0]}:{numbers[1]}, computed {expected.major}:{expected.minor}"
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


def _notes(facts: Facts, majors: Majors) -> str:
    """Notes for the administrator that concern no assumption of the driver."""
    notes = []
    nodes = {node["path"]: node for node in facts["nodes"]}
    if majors.uvm is None:
        notes.append("nvidia-uvm is not loaded, but CUDA needs it")
    unlinked = [path for path, node in nodes.items() if f"{node['major']}:{node['minor']}" not in facts["links"]]
    if unlinked:
        notes.append(f"no link in /dev/char for {len(unlinked)} nodes, so systemctl daemon-reload removes GPUs")
    if not parse_params(facts["params"]).modify:
        notes.append("ModifyDeviceFiles is 0: only the administrator creates nodes")
    return "; ".join(notes) or "nothing is missing"


@hardware_check(6, "missing device nodes", read_missing_nodes, 30.0, frozenset({"root"}))
def missing_nodes(facts: Facts, _survey: Facts) -> Finding:
    """NVML as root makes missing nodes with the kernel's numbers, or none."""
    made = {node["path"]: (node["major"], node["minor"]) for node in facts["made"]}
    existing = {node["path"]: (node["major"], node["minor"]) for node in facts["existing"]}
    opened = "value" in facts["init"] and facts.get("count", {}).get("value", 0) > 0
    differences = [
        f"{path} was made with {made[path]}, the host has {existing[path]}"
        for path in made
        if path in existing and made[path] != existing[path]
    ]
    if made and not opened:
        differences.append(f"NVML made {', '.join(made)}, but could not open the GPUs")
    unknown = "" if existing else "this machine has no device node of NVIDIA"
    if opened and not made:
        unknown = "NVML needs no device node on this machine, so this is not NVIDIA's library"
    return judgement(
        differences,
        f"without nodes and nvidia-modprobe, NVML made {', '.join(made) or 'none'}"
        + ("" if "value" in facts["init"] else f", and opening failed with code {facts['init'].get('code')}"),
        right="NVML makes missing nodes of GPUs" if made else "nodes must exist before NVML is opened",
        wrong="on a fresh node, the node process may not find its GPUs until another program creates the nodes",
        unknown=unknown,
    )


@hardware_check(8, "files of the driver", read_files, 60.0)
def files(facts: Facts, _survey: Facts) -> Finding:
    """Version and files match NVML, nvidia-ctk and the linker's cache."""
    own, ctk, linker = facts["own"], facts["ctk"], facts["ldconfig"]
    if "error" in own:
        return Finding(status=Status.FAIL, seen=own["error"], meaning="claims cannot be prepared on this node")
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
        right="containers get the same files as with NVIDIA's runtime",
        wrong="containers would lack files, or get files of another version",
    )


def _against_ctk(own: Facts, ctk: Facts) -> Iterator[str]:
    ours = {path for path, _ in own["libraries"]} | {target for _, target in (*own["files"], *own["sockets"])}
    theirs = {target for _, target in ctk["mounts"]}
    yield from _listed("nvidia-ctk has", theirs - ours)
    yield from _listed("nvidia-ctk lacks", ours - theirs)


def _listed(what: str, paths: Iterable[str]) -> Iterator[str]:
    names = sorted(path for path in paths if not _NOT_OURS.search(path))
    if names:
        yield f"{what} {len(names)}: {few(names)}"


def _against_linker(own: Facts, linker: Mapping[str, str]) -> Iterator[str]:
    """Libraries whose SONAME, read by this driver, has another file name in the linker's cache."""
    files = {soname: path.rpartition("/")[2] for path, soname in own["libraries"] if soname}
    missing = [soname for soname in files if linker and soname not in linker and not soname.startswith("libvdpau")]
    if missing:
        yield f"the linker's cache has no {few(missing)}"
