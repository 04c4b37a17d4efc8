"""Check the NVIDIA driver of a node: GPUs on the bus, driver root, kernel module, NVML, UVM, toolkit. Read-only."""

import os
import re
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Final

from msgspec import Struct

from dra_driver.core.errors import DriverUnavailableError
from dra_driver.core.finding import Finding, Layer, Status, check, fail, finding, ok, unknown, warn
from dra_driver.core.text import listed
from dra_driver.diagnose.doctor.node_view import HostView, names, text
from dra_driver.diagnose.hardware import runner
from dra_driver.diagnose.hardware.child import Task
from dra_driver.diagnose.hardware.session import read_only
from dra_driver.diagnose.hardware.values import CheckRecord
from dra_driver.diagnose.node_settings import task_of
from dra_driver.hardware.device_nodes.numbers import Majors
from dra_driver.hardware.driver_root.search import CANDIDATES, NVML, find_library, unsupported

if TYPE_CHECKING:
    from dra_driver.diagnose.doctor.node import LocalFacts


NVML_S: Final = 30.0
"""Without persistence mode, the first call takes seconds for each GPU."""
_NVIDIA: Final = "0x10de"
_DISPLAY: Final = ("0x0300", "0x0302")
"""PCI classes of GPUs: VGA controllers and 3D controllers."""
_RELEASE: Final = re.compile(r"\.so\.(\d+\.\d+(?:\.\d+)*)$")
_MODULE: Final = re.compile(r"^NVRM version:.*?\s(\d{3,4}\.\d+(?:\.\d+)?)\s", re.MULTILINE)
_MINOR: Final = re.compile(r"^Device Minor:\s*(\d{1,3})$", re.MULTILINE)


class PciGpu(Struct, frozen=True, kw_only=True):
    """A GPU of NVIDIA on the PCI bus; ``bound`` is its kernel driver, None for none."""

    address: str
    bound: str | None


class NvmlAnswer(Struct, frozen=True, kw_only=True):
    """``problem`` is why NVML does not work; ``left_out`` are GPUs that do not answer, each with a reason."""

    gpus: int = 0
    left_out: tuple[str, ...] = ()
    problem: str | None = None


class DriverFacts(Struct, frozen=True, kw_only=True):
    """Facts about the driver. ``searched`` are the roots that the node process searches, ``root`` the one with NVML's
    ``library``, None without one. ``others`` are further roots on the host that have it. ``release`` is the version
    in the library's name, ``module`` that of the loaded kernel module. ``pci`` is None if the bus is unreadable.
    """

    searched: tuple[str, ...] = ()
    root: str | None = None
    library: str | None = None
    release: str | None = None
    others: tuple[str, ...] = ()
    unsupported: str | None = None
    pci: tuple[PciGpu, ...] | None = None
    pci_devices: int = 0
    module: str | None = None
    modules: frozenset[str] = frozenset()
    majors: Majors | None = None
    majors_problem: str | None = None
    minors: tuple[int, ...] = ()
    nvml: NvmlAnswer | None = None


AskNvml = Callable[[str], NvmlAnswer]
"""Open NVML from the library at a path, in a separate process."""


def read_driver(view: HostView, ask: AskNvml) -> DriverFacts:
    """Read all facts about the driver. Call NVML only if its library and the kernel module exist."""
    candidates = tuple(dict.fromkeys(CANDIDATES))
    configured, below = view.settings.driver_root, view.settings.host_root.rstrip("/")
    searched = (configured,) if configured else tuple(below + each for each in CANDIDATES)
    root = next((each for each in searched if find_library(each)), None)
    library = find_library(root) if root else None
    majors, majors_problem = _majors(view)
    module = _module_version(view)
    modules = _modules(view)
    return DriverFacts(
        searched=searched,
        root=root,
        library=library,
        release=_release(library),
        others=tuple(each for each in candidates if root is None and find_library(view.here(each))),
        unsupported=unsupported(view.host),
        pci=_pci(view),
        pci_devices=len(names(f"{view.sys}/bus/pci/devices") or ()),
        module=module,
        modules=modules,
        majors=majors,
        majors_problem=majors_problem,
        minors=_minors(view),
        nvml=ask(library) if library and (module or (majors and majors.nvidia is not None)) else None,
    )


def ask_nvml(library: str) -> NvmlAnswer:
    """Count GPUs in a separate process: a call may hang, and the library may end the process."""
    try:
        reading = runner.run(Task(reader="survey:counted", folder="", library=library), NVML_S)
    except OSError as error:
        return NvmlAnswer(problem=f"cannot start the process that calls NVML: {error.strerror}")
    count, left = reading.facts.get("gpus", 0), reading.facts.get("left", ())
    return NvmlAnswer(gpus=count, left_out=tuple(left), problem=reading.problem or None)


def read_hardware(view: HostView) -> tuple[CheckRecord, ...]:
    """Run the read-only checks of the hardware check, each in a separate process with a time limit."""
    try:
        return read_only(task_of(view.settings)[0], runner.run)
    except OSError as error:
        return (CheckRecord.unread(f"cannot start its processes: {error.strerror}"),)


def _majors(view: HostView) -> tuple[Majors | None, str | None]:
    try:
        return Majors.read(view.settings.proc_devices), None
    except DriverUnavailableError as error:
        return None, str(error)


def _module_version(view: HostView) -> str | None:
    """The version of the loaded kernel module, proprietary or open, from sysfs."""
    found = text(f"{view.sys}/module/nvidia/version")
    if found:
        return found.split()[0]
    match = _MODULE.search((text(f"{view.proc}/driver/nvidia/version") or "") + " ")
    return match[1] if match else None


def _modules(view: HostView) -> frozenset[str]:
    lines = (text(f"{view.proc}/modules") or "").splitlines()
    loaded = {line.split()[0] for line in lines if line.strip()}
    return frozenset(
        name for name in loaded if name.startswith("nvidia") or name in {"nouveau", "nova_core", "vfio_pci"}
    )


def _minors(view: HostView) -> tuple[int, ...]:
    folder = f"{view.proc}/driver/nvidia/gpus"
    found = (_MINOR.search(text(f"{folder}/{name}/information") or "") for name in names(folder) or ())
    return tuple(sorted(int(match[1]) for match in found if match))


def _pci(view: HostView) -> tuple[PciGpu, ...] | None:
    folder = f"{view.sys}/bus/pci/devices"
    addresses = names(folder)
    if addresses is None:
        return None
    return tuple(
        PciGpu(address=address, bound=_bound(f"{folder}/{address}/driver"))
        for address in addresses
        if text(f"{folder}/{address}/vendor") == _NVIDIA
        and (text(f"{folder}/{address}/class") or "").startswith(_DISPLAY)
    )


def _bound(link: str) -> str | None:
    try:
        return os.readlink(link).rpartition("/")[2]  # noqa: PTH115 - needs the text of the link
    except OSError:
        return None


def _release(library: str | None) -> str | None:
    match = _RELEASE.search(library or "")
    return match[1] if match else None


_OPEN: Final = frozenset({"nouveau", "nova_core", "nova-core"})
_NVIDIA_BOUND: Final = "GPUs bound to the kernel driver nvidia"


@check("machine", Layer.DRIVER, "a kind of machine that NVIDIA's driver supports")
def _machine(facts: "LocalFacts") -> Iterator[Finding]:
    if facts.driver.unsupported and not facts.view.simulated:
        what, _, instead = facts.driver.unsupported.partition(";")
        do = f"{instead.strip()[:1].upper()}{instead.strip()[1:]}."
        yield fail(what, "Linux on a machine with a discrete NVIDIA GPU", do)


@check("gpus-on-bus", Layer.DRIVER, "NVIDIA GPUs bound to NVIDIA's driver")
def _bus(facts: "LocalFacts") -> Iterator[Finding]:
    driver = facts.driver
    if facts.view.simulated:
        yield ok("the node process simulates its GPUs (SIMULATE): no driver is needed")
        return
    works = driver.nvml is not None and driver.nvml.gpus > 0
    if driver.pci is None:
        if not works:
            do = "Run it with access to /sys of the node."
            yield unknown("cannot read the PCI bus", "GPUs of vendor 10de on the PCI bus", do, reason="PciUnreadable")
    elif not driver.pci and not works:
        seen = f"no NVIDIA GPU among {driver.pci_devices} PCI devices"
        do = (
            "Use a node with an NVIDIA GPU, pass the GPU through to this virtual machine, or keep the driver's "
            "DaemonSet off this node (nodes.selector of the chart)."
        )
        yield fail(seen, "a display or 3D controller of vendor 10de (lspci -d 10de:)", do, reason="NoGpuOnBus")
    else:
        yield from _bindings(driver, driver.pci)


def _bindings(driver: DriverFacts, gpus: tuple[PciGpu, ...]) -> Iterator[Finding]:
    open_driver = [gpu for gpu in gpus if gpu.bound in _OPEN]
    vfio = [gpu for gpu in gpus if gpu.bound == "vfio-pci"]
    free = [gpu for gpu in gpus if gpu.bound is None] if driver.module else []
    if open_driver:
        seen = f"{_named(open_driver)} bound to {open_driver[0].bound}"
        do = "Blacklist that module in /etc/modprobe.d, rebuild the initramfs, and reboot."
        yield fail(seen, _NVIDIA_BOUND, do, reason="OpenDriverBound")
    if vfio:
        make = fail if len(vfio) == len(gpus) else warn
        do = "To use it in containers, unbind it from vfio-pci and bind it to nvidia (driverctl unset-override)."
        yield make(f"{_named(vfio)} bound to vfio-pci, for virtual machines", _NVIDIA_BOUND, do, reason="VfioBound")
    if free:
        make = fail if len(free) == len(gpus) else warn
        do = "Search the kernel's log (dmesg) for NVRM: this driver may not support the GPU, or the GPU is defective."
        seen = f"{_named(free)} bound to no kernel driver although nvidia is loaded"
        yield make(seen, _NVIDIA_BOUND, do, reason="NoDriverBound")
    if gpus and not open_driver and not vfio and not free:
        yield ok(f"{len(gpus)} GPU{'' if len(gpus) == 1 else 's'} of NVIDIA on the PCI bus")


@check("driver-root", Layer.DRIVER, "NVIDIA's libraries below the driver root")
def _root(facts: "LocalFacts") -> Iterator[Finding]:
    driver, view = facts.driver, facts.view
    if view.simulated or driver.unsupported:
        return
    if driver.root is not None:
        release = f" {driver.release}" if driver.release else ""
        yield ok(f"{NVML}{release} is at {driver.library}")
        return
    configured = view.settings.driver_root_on_host or view.settings.driver_root
    searched = configured if configured else listed([each or "/" for each in driver.searched])
    expected = f"{NVML} in a library directory below the driver root"
    if configured and driver.others:
        seen = f"{NVML} is missing below the driver root {configured}, and is below {listed(driver.others)}"
        do = (
            f"Set driver.root of the chart (--driver-root, DRIVER_ROOT) to {driver.others[0]}, or leave it empty to "
            "search for the root."
        )
        yield fail(seen, expected, do, reason="OtherDriverRoot")
    elif driver.module:
        seen = f"no {NVML} below {searched}, although the kernel module {driver.module} is loaded"
        do = (
            "Install the driver's libraries of the same version, wait for the driver container, or set driver.root of "
            "the chart (DRIVER_ROOT) to their directory."
        )
        yield fail(seen, expected, do, reason="LibrariesMissing")
    else:
        do = "Install the NVIDIA driver on the node (docs/driver-roots.md lists the searched directories)."
        yield fail(f"no NVIDIA driver below {searched}", expected, do, reason="DriverNotInstalled")


@check("kernel-module", Layer.DRIVER, "the kernel module nvidia is loaded")
def _module(facts: "LocalFacts") -> Iterator[Finding]:
    driver = facts.driver
    if facts.view.simulated or driver.unsupported:
        return
    if driver.module or (driver.majors is not None and driver.majors.nvidia is not None):
        yield ok(f"kernel module nvidia {driver.module or 'of unknown version'} is loaded")
    elif driver.majors_problem:
        seen = driver.majors_problem
        do = "Run it on the node as root."
        yield unknown(seen, "the kernel module nvidia in /proc/devices", do, reason="ModulesUnreadable")
    else:
        instead = sorted(driver.modules & _OPEN)
        seen = f"the kernel module nvidia is not loaded{f', {instead[0]} is' if instead else ''}"
        do = (
            "Run `modprobe nvidia` on the node. If it fails, the module was not built for this kernel (dkms "
            "status), or Secure Boot rejects it (dmesg)."
        )
        yield fail(seen, "the module nvidia (lsmod, /proc/devices)", do, reason="ModuleNotLoaded")


@check("driver-versions", Layer.DRIVER, "kernel module and libraries of one version")
def _versions(facts: "LocalFacts") -> Iterator[Finding]:
    module, release = facts.driver.module, facts.driver.release
    if facts.view.simulated or module is None or release is None:
        return
    if module == release:
        yield ok(f"kernel module and libraries are both {release}")
    else:
        yield fail(
            f"the loaded kernel module is {module}, the libraries are {release}",
            "one version of both (nvidia-smi reports: Driver/library version mismatch)",
            "Drain the node and reboot it; or end every program with a GPU and load the new module (rmmod nvidia_uvm "
            "nvidia_drm nvidia_modeset nvidia, then modprobe nvidia).",
        )


@check("nvml", Layer.NVML, "NVML counts the GPUs")
def _nvml(facts: "LocalFacts") -> Iterator[Finding]:
    answer, driver = facts.driver.nvml, facts.driver
    if facts.view.simulated or answer is None:
        return
    if answer.problem:
        do = "Run nvidia-smi on the node, and search the kernel's log (dmesg) for NVRM and Xid."
        yield fail(f"NVML does not work: {answer.problem}", "NVML counts the node's GPUs", do, reason="NvmlFailed")
        return
    if not answer.gpus:
        do = "Search the kernel's log (dmesg) for NVRM, or run nvidia-smi. The driver may not support the GPU."
        yield fail("NVML works but finds no GPU", "at least one GPU", do, reason="NvmlWithoutGpus")
    else:
        yield ok(f"NVML counts {answer.gpus} GPU{'' if answer.gpus == 1 else 's'}")
    for left in answer.left_out:
        do = "Search the kernel's log (dmesg) for Xid; a reset of the GPU or a reboot may help."
        yield warn(f"NVML omits a GPU: {left}", "every GPU answers", do, reason="GpuLeftOut")
    bound = sum(gpu.bound == "nvidia" for gpu in driver.pci or ())
    if answer.gpus and bound > answer.gpus + len(answer.left_out):
        do = "Search the kernel's log (dmesg) for NVRM: the driver detached from the missing GPU."
        yield warn(
            f"{bound} GPUs are bound to nvidia, NVML counts {answer.gpus}", "as many in NVML", do, reason="GpuMissing"
        )


@check("uvm", Layer.UVM, "the kernel module nvidia-uvm is loaded")
def _uvm(facts: "LocalFacts") -> Iterator[Finding]:
    majors = facts.driver.majors
    if facts.view.simulated or majors is None or majors.nvidia is None:
        return
    if majors.uvm is not None:
        yield ok(f"nvidia-uvm is loaded (major {majors.uvm})")
    else:
        yield fail(
            "the kernel module nvidia-uvm is not loaded: nvidia-smi works, CUDA in containers does not",
            "nvidia-uvm in /proc/devices",
            "Run `nvidia-modprobe -u -c0` or `modprobe nvidia-uvm` on the node, and have it loaded at boot "
            "(/etc/modules-load.d).",
        )


@check("toolkit", Layer.TOOLKIT, "a usable CDI hook")
def _toolkit(facts: "LocalFacts") -> Iterator[Finding]:
    found = facts.files.hook
    expected = "NVIDIA's CDI hook 1.17.8 or newer, or none"
    if found.problem:
        seen = found.problem
        yield fail(seen, expected, "Correct driver.cdiHook of the chart (NVIDIA_CDI_HOOK_PATH).", reason="HookUnusable")
    elif found.note:
        do = "Install the NVIDIA Container Toolkit 1.17.8 or newer on the node."
        yield warn(found.note, expected, do, reason="HookNotUsed")
    elif found.hook:
        yield ok(f"CDI hook {found.hook}")
    else:
        yield ok("no CDI hook of NVIDIA: the driver mounts libraries under each of their names")


def _named(gpus: list[PciGpu]) -> str:
    addresses = listed([gpu.address for gpu in gpus])
    return f"GPU {addresses} is" if len(gpus) == 1 else f"GPUs {addresses} are"


@check("hardware-check", Layer.HARDWARE, "the driver's assumptions about GPUs and NVIDIA driver")
def _hardware(facts: "LocalFacts") -> Iterator[Finding]:
    """A difference between the driver's assumptions and the machine is a warning: GPUs may work anyway."""
    for record in facts.hardware:
        seen = f"check {record.number}, {record.finding.check}: {record.finding.seen}"
        if record.finding.status is Status.OK:
            yield ok(seen)
        elif record.finding.status is not Status.SKIPPED:
            status = Status.WARN if record.finding.status is Status.FAIL else Status.UNKNOWN
            fix = f"Run `dra-driver hardware-check` and report it (docs/hardware-check.md): {record.finding.meaning}."
            yield finding(status, seen, record.finding.expected, fix)
