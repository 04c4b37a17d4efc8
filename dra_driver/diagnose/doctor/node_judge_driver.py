"""Judges the NVIDIA driver of a node: GPUs on the bus, driver root, kernel module, NVML, UVM, toolkit. Pure."""

from collections.abc import Iterator
from typing import Final

from dra_driver.core.finding import Finding, Layer, check, fail, ok, unknown, warn
from dra_driver.diagnose.doctor.node_driver_facts import DriverFacts, PciGpu
from dra_driver.diagnose.doctor.node_facts import LocalFacts
from dra_driver.diagnose.doctor.node_text import some
from dra_driver.hardware.driver_root.search import NVML

_OPEN: Final = frozenset({"nouveau", "nova_core", "nova-core"})
_NVIDIA_BOUND: Final = "GPUs bound to the kernel driver nvidia"


@check("machine", Layer.DRIVER, "a kind of machine that NVIDIA's driver serves")
def _machine(facts: LocalFacts) -> Iterator[Finding]:
    if facts.driver.unsupported and not facts.view.simulated:
        what, _, instead = facts.driver.unsupported.partition(";")
        yield fail(
            what,
            "Linux on a machine with a discrete NVIDIA GPU",
            f"{instead.strip()[:1].upper()}{instead.strip()[1:]}.",
        )


@check("gpus-on-bus", Layer.DRIVER, "NVIDIA GPUs bound to NVIDIA's driver")
def _bus(facts: LocalFacts) -> Iterator[Finding]:
    driver = facts.driver
    if facts.view.simulated:
        yield ok("the node process simulates its GPUs (SIMULATE): no driver is needed")
        return
    works = driver.nvml is not None and driver.nvml.gpus > 0
    if driver.pci is None:
        if not works:
            do = "Run it where /sys of the node can be read."
            yield unknown("the PCI bus cannot be seen", "GPUs of vendor 10de on the PCI bus", do)
    elif not driver.pci and not works:
        yield fail(
            f"no NVIDIA GPU among {driver.pci_devices} PCI devices",
            "a display or 3D controller of vendor 10de (lspci -d 10de:)",
            "Use a node with an NVIDIA GPU, pass the GPU through to this virtual machine, or keep the driver's "
            "DaemonSet "
            "off this node (nodes.selector of the chart).",
        )
    else:
        yield from _bindings(driver, driver.pci)


def _bindings(driver: DriverFacts, gpus: tuple[PciGpu, ...]) -> Iterator[Finding]:
    open_driver = [gpu for gpu in gpus if gpu.bound in _OPEN]
    vfio = [gpu for gpu in gpus if gpu.bound == "vfio-pci"]
    free = [gpu for gpu in gpus if gpu.bound is None] if driver.module else []
    if open_driver:
        yield fail(
            f"{_named(open_driver)} bound to {open_driver[0].bound}",
            _NVIDIA_BOUND,
            "Keep that module from loading (blacklist it in /etc/modprobe.d, rebuild the initramfs), and reboot.",
        )
    if vfio:
        make = fail if len(vfio) == len(gpus) else warn
        yield make(
            f"{_named(vfio)} bound to vfio-pci, for virtual machines",
            _NVIDIA_BOUND,
            "If containers are to use it, unbind it from vfio-pci and bind it to nvidia (driverctl unset-override).",
        )
    if free:
        make = fail if len(free) == len(gpus) else warn
        do = "Look for NVRM in the kernel's log (dmesg): the GPU may be unsupported by this driver, or defective."
        yield make(f"{_named(free)} bound to no kernel driver although nvidia is loaded", _NVIDIA_BOUND, do)
    if gpus and not open_driver and not vfio and not free:
        yield ok(f"{len(gpus)} GPU{'' if len(gpus) == 1 else 's'} of NVIDIA on the PCI bus")


@check("driver-root", Layer.DRIVER, "NVIDIA's libraries below the driver root")
def _root(facts: LocalFacts) -> Iterator[Finding]:
    driver, view = facts.driver, facts.view
    if view.simulated or driver.unsupported:
        return
    if driver.root is not None:
        release = f" {driver.release}" if driver.release else ""
        yield ok(f"{NVML}{release} is at {driver.library}")
        return
    configured = view.driver_root_on_host or view.driver_root
    searched = configured if configured else some([each or "/" for each in driver.searched])
    expected = f"{NVML} in a library folder below the driver root"
    if configured and driver.others:
        yield fail(
            f"no {NVML} below the driver root {configured}, but below {some(driver.others)}",
            expected,
            f"Set driver.root of the chart (--driver-root, DRIVER_ROOT) to {driver.others[0]}, or leave it empty "
            "so that "
            "it is searched.",
        )
    elif driver.module:
        yield fail(
            f"no {NVML} below {searched}, although the kernel module {driver.module} is loaded",
            expected,
            "Install the driver's libraries of the same version, wait for the driver container, or set driver.root of "
            "the chart (DRIVER_ROOT) to the folder that has them.",
        )
    else:
        do = "Install the NVIDIA driver on the node (docs/driver-roots.md has the places that are searched)."
        yield fail(f"no NVIDIA driver below {searched}", expected, do)


@check("kernel-module", Layer.DRIVER, "the kernel module nvidia is loaded")
def _module(facts: LocalFacts) -> Iterator[Finding]:
    driver = facts.driver
    if facts.view.simulated or driver.unsupported:
        return
    if driver.module or (driver.majors is not None and driver.majors.nvidia is not None):
        yield ok(f"kernel module nvidia {driver.module or 'of unknown version'} is loaded")
    elif driver.majors_problem:
        yield unknown(driver.majors_problem, "the kernel module nvidia in /proc/devices", "Run it on the node as root.")
    else:
        instead = sorted(driver.modules & _OPEN)
        yield fail(
            f"the kernel module nvidia is not loaded{f', {instead[0]} is' if instead else ''}",
            "the module nvidia (lsmod, /proc/devices)",
            "Run `modprobe nvidia` on the node. Where that fails, the module was not built for this kernel (dkms "
            "status), "
            "or Secure Boot refuses it (dmesg).",
        )


@check("driver-versions", Layer.DRIVER, "kernel module and libraries of one version")
def _versions(facts: LocalFacts) -> Iterator[Finding]:
    module, release = facts.driver.module, facts.driver.release
    if facts.view.simulated or module is None or release is None:
        return
    if module == release:
        yield ok(f"kernel module and libraries are both {release}")
    else:
        yield fail(
            f"the loaded kernel module is {module}, the libraries are {release}",
            "one version of both (nvidia-smi says: Driver/library version mismatch)",
            "Drain the node and reboot it; or end every program with a GPU and load the new module (rmmod nvidia_uvm "
            "nvidia_drm nvidia_modeset nvidia, then modprobe nvidia).",
        )


@check("nvml", Layer.NVML, "NVML counts the GPUs")
def _nvml(facts: LocalFacts) -> Iterator[Finding]:
    answer, driver = facts.driver.nvml, facts.driver
    if facts.view.simulated or answer is None:
        return
    if answer.problem:
        do = "Run nvidia-smi on the node, and look for NVRM and Xid in the kernel's log (dmesg)."
        yield fail(f"NVML does not work: {answer.problem}", "NVML counts the node's GPUs", do)
        return
    if not answer.gpus:
        do = "Look for NVRM in the kernel's log (dmesg); nvidia-smi says the same. The driver may not support the GPU."
        yield fail("NVML works and finds no GPU", "at least one GPU", do)
    else:
        yield ok(f"NVML counts {answer.gpus} GPU{'' if answer.gpus == 1 else 's'}")
    for left in answer.left_out:
        do = "Look for Xid in the kernel's log (dmesg); a reset of the GPU or a reboot may help."
        yield warn(f"a GPU is left out: {left}", "every GPU answers", do)
    bound = sum(gpu.bound == "nvidia" for gpu in driver.pci or ())
    if answer.gpus and bound > answer.gpus + len(answer.left_out):
        do = "Look for NVRM in the kernel's log (dmesg): the driver gave up the missing one."
        yield warn(f"{bound} GPUs are bound to nvidia, NVML counts {answer.gpus}", "as many in NVML", do)


@check("uvm", Layer.UVM, "the kernel module nvidia-uvm is loaded")
def _uvm(facts: LocalFacts) -> Iterator[Finding]:
    majors = facts.driver.majors
    if facts.view.simulated or majors is None or majors.nvidia is None:
        return
    if majors.uvm is not None:
        yield ok(f"nvidia-uvm is loaded (major {majors.uvm})")
    else:
        yield fail(
            "the kernel module nvidia-uvm is not loaded: nvidia-smi works, and CUDA in containers does not",
            "nvidia-uvm in /proc/devices",
            "Run `nvidia-modprobe -u -c0` or `modprobe nvidia-uvm` on the node, and have it loaded at boot "
            "(/etc/modules-load.d).",
        )


@check("toolkit", Layer.TOOLKIT, "a CDI hook that can be used")
def _toolkit(facts: LocalFacts) -> Iterator[Finding]:
    found = facts.files.hook
    expected = "NVIDIA's CDI hook 1.17.8 or newer, or none"
    if found.problem:
        yield fail(found.problem, expected, "Correct driver.cdiHook of the chart (NVIDIA_CDI_HOOK_PATH).")
    elif found.note:
        yield warn(found.note, expected, "Install the NVIDIA Container Toolkit 1.17.8 or newer on the node.")
    elif found.hook:
        yield ok(f"CDI hook {found.hook}")
    else:
        yield ok("no CDI hook of NVIDIA: libraries are mounted under each of their names")


def _named(gpus: list[PciGpu]) -> str:
    return (
        f"GPU{'' if len(gpus) == 1 else 's'} {some([gpu.address for gpu in gpus])} {'is' if len(gpus) == 1 else 'are'}"
    )


CHECKS: Final = (_machine, _bus, _root, _module, _versions, _nvml, _uvm, _toolkit)
