"""Checks and findings of doctor, state, smoke, hardware-check and conformance. A check is a function over facts that
yields findings; the worst status decides the exit status."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from enum import StrEnum
from functools import partial
from types import ModuleType
from typing import Any, Final, Generic, TypeVar

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from dra_driver.core.convert import convert
from dra_driver.core.errors import ConfigurationError, DraError
from dra_driver.core.text import one_line, wrapped

_LONGEST: Final = 4000
_MOST: Final = 10_000
_COLOURS: Final = {"good": "\x1b[1;32m", "bad": "\x1b[1;31m", "head": "\x1b[1m", "dim": "\x1b[2m"}

Facts = TypeVar("Facts")
Style = Callable[[str, str], str]  # (text, kind) -> text with colours. The kinds are good, bad, head and dim.


class Status(StrEnum):
    """``FAIL``: GPUs do not work because of it. ``WARN``: they may not work. ``UNKNOWN``: the check got no answer.
    ``SKIPPED``: the check does not apply, or it was not allowed to run."""

    OK = "ok"
    WARN = "warn"
    FAIL = "fail"
    UNKNOWN = "unknown"
    SKIPPED = "skipped"


class Layer(StrEnum):
    """The layers between a GPU and a container, in order; each needs the layers before it, so the first broken layer is
    the answer. The names are part of JSON reports."""

    API_SERVER = "api-server"  # the API server answers, and accepts the credentials
    KUBERNETES = "kubernetes"  # version and feature gates
    API = "api"  # resource.k8s.io is served
    CRDS = "crds"  # CustomResourceDefinitions of the driver
    RIGHTS = "rights"  # permissions of the driver's accounts
    DAEMONSET = "daemonset"  # the DaemonSet of node processes, its pods and its image
    NODE = "node"  # nodes: labels, taints, readiness
    DRIVER = "driver"  # NVIDIA's kernel driver and the driver root
    NVML = "nvml"
    UVM = "uvm"
    DEVICE_NODES = "device-nodes"
    HARDWARE = "hardware"  # facts of GPUs and NVIDIA driver, compared with this driver's assumptions
    TOOLKIT = "toolkit"  # NVIDIA Container Toolkit: its CDI hook
    RUNTIME = "runtime"  # container runtime, its CDI switch, its default runtime
    GPUS = "gpus"  # the node process's report on its GPUs: excluded, unhealthy
    SOCKETS = "sockets"  # the kubelet's plugin directories and the driver's sockets
    REGISTRATION = "registration"  # the driver is registered with the kubelet
    SECOND_PUBLISHER = "second-publisher"  # another driver or device plugin offers the same GPUs
    SLICES = "slices"  # ResourceSlices
    CLASSES = "classes"  # DeviceClasses
    POLICIES = "policies"  # GpuPolicies
    WORKLOAD = "workload"  # pods, claims and claim templates as users wrote them; quota and admission
    SCHEDULING = "scheduling"  # the scheduler places the pod
    PREPARE = "prepare"  # the node prepares claims
    CDI = "cdi"  # CDI files and the device ids in them
    IMAGE = "image"  # the node pulls the image of the pod
    CONTAINER = "container"  # the devices that a container sees
    RELEASE = "release"  # the node unprepares the claim


ORDER: Final = {layer: number for number, layer in enumerate(Layer)}  # position of each layer, counted from 0


class Finding(Struct, frozen=True, kw_only=True):
    """The result of one check for one object.

    ``object`` is ``kind/name``, ``kind/namespace/name`` or "cluster". ``seen`` and ``expected`` are phrases without a
    full stop; ``fix`` is a sentence, the next step; ``meaning`` (hardware check only) is the consequence for this
    driver. ``reason`` is a stable CamelCase code; a check with several causes gives each its own. `Check.run`
    sets an empty ``check``, ``layer``, ``object`` and ``reason``, the last from the name of the check.
    """

    status: Status
    seen: str
    expected: str = ""
    fix: str = ""
    object: str = ""
    layer: Layer | None = None
    check: str = ""
    meaning: str = ""
    reason: str = ""


def ok(seen: str, on: str = "") -> Finding:
    return Finding(status=Status.OK, seen=seen, object=on)


def finding(
    status: Status, seen: str, expected: str, fix: str, on: str = "", *, layer: Layer | None = None, reason: str = ""
) -> Finding:
    return Finding(status=status, seen=seen, expected=expected, fix=fix, object=on, layer=layer, reason=reason)


fail = partial(finding, Status.FAIL)
warn = partial(finding, Status.WARN)
unknown = partial(finding, Status.UNKNOWN)


class UnansweredError(DraError):
    """A check cannot read a fact that it needs. ``seen`` describes the failure, ``fix`` the next step, such as the
    missing permission."""

    def __init__(self, seen: str, fix: str) -> None:
        super().__init__(f"{seen}; {fix}")
        self.seen = seen
        self.fix = fix


class Check(Struct, Generic[Facts], frozen=True, kw_only=True):
    """``look`` yields findings without I/O, or raises `UnansweredError`. It yields none if no object exists. ``about``
    is the expectation of a check without an answer. ``name`` is unique, lower case, with hyphens, and part of JSON
    reports."""

    name: str
    layer: Layer
    about: str
    look: Callable[[Facts], Iterable[Finding]]

    def run(self, facts: Facts, on: str = "cluster") -> tuple[Finding, ...]:
        """The findings, about ``on`` unless they name another object; never raises."""
        try:
            results = tuple(self.look(facts))
        except UnansweredError as error:
            results = (unknown(error.seen, self.about, error.fix),)
        except Exception as error:  # noqa: BLE001 - a fence: an object of an unforeseen shape ends only one check
            what = f"{type(error).__name__}: {error}"[:200]
            fix = "Report this as a defect of kubectl dra doctor."
            results = (unknown(f"the check failed: {what}", self.about, fix),)
        return tuple(
            replace(
                item,
                check=item.check or self.name,
                layer=item.layer or self.layer,
                object=item.object or on,
                reason=item.reason or "".join(word.capitalize() for word in (item.check or self.name).split("-")),
            )
            for item in results
        )


def check(name: str, layer: Layer, about: str) -> Callable[[Callable[[Facts], Iterable[Finding]]], Check[Facts]]:
    """Make a check of the decorated function; see `Check`."""
    return lambda look: Check(name=name, layer=layer, about=about, look=look)


def checks_in(*modules: ModuleType) -> tuple[Check[Any], ...]:
    """Return the checks that the modules define, in the order of their definitions."""
    return tuple(found for module in modules for found in vars(module).values() if isinstance(found, Check))


def run_all(checks: Sequence[Check[Facts]], facts: Facts, on: str = "cluster") -> tuple[Finding, ...]:
    """The findings of all checks, by layer; within a layer the findings of the layer's own checks come first."""
    results = [(finding, finding.layer is not each.layer) for each in checks for finding in each.run(facts, on)]
    return tuple(finding for finding, _ in sorted(results, key=lambda item: (_position(item[0]), item[1])))


# The verdict.


def by_layer(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    return tuple(sorted(findings, key=_position))


def first_broken(findings: Iterable[Finding]) -> Finding | None:
    """The failure of the lowest layer; within a layer the first of the list. None without a failure."""
    return min((item for item in findings if item.status is Status.FAIL), key=_position, default=None)


def exit_status(statuses: Iterable[Status], *, unanswered: int) -> int:
    """Return 1 for a failure, ``unanswered`` if a check without a failure got no answer, else 0."""
    seen = set(statuses)
    return 1 if Status.FAIL in seen else unanswered if Status.UNKNOWN in seen else 0


def _position(finding: Finding) -> int:
    return ORDER[finding.layer] if finding.layer is not None else len(ORDER)


# Text.


def plain(text: str, _what: str) -> str:
    return text


def coloured(text: str, what: str) -> str:
    return f"{_COLOURS[what]}{text}\x1b[0m"


def printable(finding: Finding) -> Finding:
    return replace(
        finding,
        object=one_line(finding.object),
        seen=one_line(finding.seen),
        expected=one_line(finding.expected),
        fix=one_line(finding.fix),
    )


def next_steps(finding: Finding, style: Style) -> Iterator[str]:
    """The lines "expected" and "do" below a finding."""
    for title, text in (("expected:", finding.expected), ("do:", finding.fix)):
        if text:
            yield from wrapped(f"  {style(title, 'dim')} {text}", "    ")


# JSON.


def findings_from_wire(wire: object, where: str) -> tuple[Finding, ...]:
    """The findings in a list of any shape. Raises ConfigurationError; ``where`` begins its message."""
    if not isinstance(wire, list) or len(wire) > _MOST:
        raise ConfigurationError(f"{where}: findings must be a list of at most {_MOST}")
    try:
        return tuple(_bounded(each) for each in convert(wire, tuple[Finding, ...]))
    except msgspec.ValidationError as error:
        raise ConfigurationError(f"{where}: findings: {error}") from error


def _bounded(finding: Finding) -> Finding:
    names = ("seen", "expected", "fix", "object", "check", "meaning", "reason")
    return replace(finding, **{name: getattr(finding, name)[:_LONGEST] for name in names})


def text_at(item: Mapping[str, object], name: str, where: str) -> str:
    """The text of a field, shortened to a limit. Raises ConfigurationError."""
    value = item.get(name, "")
    if not isinstance(value, str):
        raise ConfigurationError(f"{where}: {name} must be text")
    return value[:_LONGEST]


def check_document(
    document: object, kind: str, version: int | str, where: str, *, version_key: str = "schemaVersion"
) -> Mapping[str, Any]:
    """Return the document, which must be of this kind and version. Raises ConfigurationError."""
    if not isinstance(document, Mapping) or document.get("kind") != kind:
        raise ConfigurationError(f"{where}: no {kind}")
    if document.get(version_key) != version:
        written_by = f" ({str(document['programVersion'])[:40]})" if document.get("programVersion") else ""
        raise ConfigurationError(
            f"{where}: a {kind} of {version_key} {str(document.get(version_key))[:40]}, this program reads "
            f"{version}; use the version of dra-driver that wrote it{written_by}, or a newer one"
        )
    return document
