"""Reads where the NVIDIA driver is, what the kernel has of it, and what NVML says. Changes nothing."""

import json
import os
import re
import sys
from collections.abc import Callable
from typing import Final

from msgspec import Struct

from dra_driver.core.errors import DriverUnavailableError
from dra_driver.diagnose.doctor.node_text import names, text
from dra_driver.diagnose.doctor.node_view import HostView
from dra_driver.hardware.device_nodes.numbers import Majors
from dra_driver.hardware.driver_root import process
from dra_driver.hardware.driver_root.detect import CANDIDATES, unsupported
from dra_driver.hardware.driver_root.search import find_library

NVML_S: Final = 30.0
"""Without persistence mode, the first call takes seconds for each GPU."""
ANSWER: Final = "dra-driver-doctor-nvml:"
_NVIDIA: Final = "0x10de"
_DISPLAY: Final = ("0x0300", "0x0302")
"""PCI classes of GPUs: VGA controllers and 3D controllers."""
_RELEASE: Final = re.compile(r"\.so\.(\d+\.\d+(?:\.\d+)*)$")
_MODULE: Final = re.compile(r"^NVRM version:.*?\s(\d{3,4}\.\d+(?:\.\d+)?)\s", re.MULTILINE)
_MINOR: Final = re.compile(r"^Device Minor:\s*(\d{1,3})$", re.MULTILINE)


class PciGpu(Struct, frozen=True, kw_only=True):
    """A GPU of NVIDIA on the PCI bus; ``bound`` is the kernel driver that has it, None for none."""

    address: str
    bound: str | None


class NvmlAnswer(Struct, frozen=True, kw_only=True):
    """``problem`` is a sentence when NVML does not work; ``left_out`` are GPUs that do not answer, each with why."""

    gpus: int = 0
    left_out: tuple[str, ...] = ()
    problem: str | None = None


class DriverFacts(Struct, frozen=True, kw_only=True):
    """What was found of the driver.

    ``searched`` are the roots that the node process searches, ``root`` the one that has NVML's ``library``, None
    without one. ``others`` are further roots on the host that have it. ``release`` is the version in the library's
    name, ``module`` that of the loaded kernel module. ``pci`` is None where the bus cannot be seen.
    """

    searched: tuple[str, ...] = ()
    configured: bool = False
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
"""Opens NVML from the library at a path, in another process."""


def read_driver(view: HostView, ask: AskNvml) -> DriverFacts:
    """Everything of the driver; NVML is asked only where its library and the kernel module are there."""
    candidates = tuple(dict.fromkeys(CANDIDATES))
    searched = (
        (view.driver_root,) if view.driver_root else tuple(view.host_root.rstrip("/") + each for each in CANDIDATES)
    )
    root = next((each for each in searched if find_library(each)), None)
    library = find_library(root) if root else None
    majors, majors_problem = _majors(view)
    module = _module(view)
    modules = _modules(view)
    return DriverFacts(
        searched=searched,
        configured=view.driver_root is not None,
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
    """Count GPUs in a process of its own: a call may hang for ever, and the library may end the process."""
    command = [sys.executable, "-P", "-m", "dra_driver.diagnose.doctor.node_nvml_child", library]
    kept = {name: value for name, value in os.environ.items() if name.startswith(("PATH", "MOCK_NVML", "LD_"))}
    try:
        ended = process.run(command, environment=kept, within_s=NVML_S)
    except OSError as error:
        return NvmlAnswer(problem=f"the process that asks NVML cannot be started: {error.strerror}")
    if ended.status is None:
        return NvmlAnswer(problem=f"NVML gave no answer within {NVML_S:.0f} s: the driver or a GPU hangs")
    return parsed(ended.output, ended.status)


def parsed(output: str, status: int) -> NvmlAnswer:
    """The child's answer in what it printed."""
    line = next((line for line in output.splitlines() if line.startswith(ANSWER)), None)
    try:
        wire = json.loads(line.removeprefix(ANSWER)) if line else None
        if isinstance(wire, dict):
            return NvmlAnswer(gpus=int(wire["gpus"]), left_out=tuple(map(str, wire["left"])), problem=wire["problem"])
    except (ValueError, KeyError, TypeError):
        pass
    return NvmlAnswer(problem=f"the process that asks NVML ended with status {status}: {process.shown(output)}")


def _majors(view: HostView) -> tuple[Majors | None, str | None]:
    try:
        return Majors.read(view.proc_devices), None
    except DriverUnavailableError as error:
        return None, str(error)


def _module(view: HostView) -> str | None:
    """The version of the loaded kernel module: sysfs has it for proprietary and open modules alike."""
    found = text(f"{view.sys}/module/nvidia/version")
    if found:
        return found.split()[0]
    match = _MODULE.search((text(f"{view.proc}/driver/nvidia/version") or "") + " ")
    return match[1] if match else None


def _modules(view: HostView) -> frozenset[str]:
    """Loaded modules that have to do with GPUs."""
    lines = (text(f"{view.proc}/modules") or "").splitlines()
    loaded = {line.split()[0] for line in lines if line.strip()}
    return frozenset(
        name for name in loaded if name.startswith("nvidia") or name in {"nouveau", "nova_core", "vfio_pci"}
    )


def _minors(view: HostView) -> tuple[int, ...]:
    """Minors of the GPUs that the kernel module has."""
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
        return os.readlink(link).rpartition("/")[2]  # noqa: PTH115 - the text of the link is wanted
    except OSError:
        return None


def _release(library: str | None) -> str | None:
    match = _RELEASE.search(library or "")
    return match[1] if match else None
