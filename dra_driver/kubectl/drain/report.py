"""Report the progress of a drain or undrain as text and JSON."""

from collections.abc import Callable, Sequence
from typing import Final, Literal

from msgspec import Struct, field

from dra_driver.core.convert import convert
from dra_driver.core.document import JsonDocument, camel
from dra_driver.core.model.drain import DETACH_ANNOTATION, DRAIN_ANNOTATION
from dra_driver.kubectl.drain.view import DeviceHolder

Say = Callable[[str], None]
DrainResult = Literal["unfinished", "done", "failed", "interrupted"]
_FORMS: Final = {"whole": "whole GPU", "partition": "partition", "share": "share", "admin": "admin access"}


class NotEvicted(Struct, frozen=True, kw_only=True, rename=camel):
    """``pod`` is ``namespace/name``."""

    pod: str
    reason: str


class DrainReport(Struct, kw_only=True):
    """Progress of the command, correct after each step. ``gpus`` are UUIDs. ``cordoned``: by this command.

    ``items`` are the claims that use the GPUs. ``refusals`` are reasons by ``namespace/name`` of the pod.
    ``annotation`` is the Node's current value. ``free`` and ``detached`` are None while unknown or not requested.
    """

    command: Literal["drain", "undrain", "gpu"]
    node: str
    driver: str
    gpus: tuple[str, ...] = ()
    cordoned: bool = False
    annotation: str | None = None
    tainted: bool = False
    items: tuple[DeviceHolder, ...] = ()
    evicted: list[str] = field(default_factory=list)
    refusals: dict[str, str] = field(default_factory=dict)
    free: bool | None = None
    detached: bool | None = None
    detach_asked: bool = False
    result: DrainResult = "unfinished"
    dry_run: bool = False
    message: str = ""
    next_steps: tuple[str, ...] = ()
    only: tuple[str, ...] = ()

    @property
    def not_evicted(self) -> list[NotEvicted]:
        return [NotEvicted(pod=pod, reason=why) for pod, why in self.refusals.items()]

    @property
    def undo(self) -> str:
        """The command that returns the GPUs; with ``--gpu`` for each of ``only``, the GPUs that the user named."""
        return " ".join([f"kubectl dra undrain {self.node}", *(f"--gpu {gpu}" for gpu in self.only)])


class DrainDocument(JsonDocument, frozen=True, kw_only=True, tag="DrainReport"):
    """The result of ``command``: drain, undrain or gpu. ``items`` are the claims that use the GPUs."""

    command: str
    node: str
    driver: str
    result: DrainResult
    dry_run: bool
    message: str
    gpus: Sequence[str]
    cordoned: bool
    annotation: str | None
    tainted: bool
    free: bool | None
    detached: bool | None
    items: Sequence[DeviceHolder]
    evicted: Sequence[str]
    not_evicted: Sequence[NotEvicted]
    next_steps: Sequence[str]


def document_of(report: DrainReport) -> DrainDocument:
    return convert(report, DrainDocument, from_attributes=True)


def line(holder: DeviceHolder) -> str:
    """Return ``gpu-0-mig-1g10gb-19-0 (partition): claim team-a/train, pod train-0 (Job/train)``."""
    form = f"{_FORMS[holder.form]}{', extended resource' if holder.extended_resource else ''}"
    pods = [f"pod {pod.name}{f' ({pod.controller})' if pod.controller else ''}" for pod in holder.pods]
    users = [*pods, *holder.users] or ["no pod"]
    return f"{holder.device} ({form}): claim {holder.namespace}/{holder.claim}, {', '.join(users)}"


def state_left(report: DrainReport) -> list[str]:
    """Return the state after an unfinished command, and the next steps."""
    if report.command == "undrain":
        return [f"repeat the command: {report.undo}"]
    found = [f"node {report.node} stays cordoned: kubectl uncordon {report.node}"] if report.cordoned else []
    if report.annotation is None:
        return found or ["nothing was changed"]
    found.append(
        f"annotation {DRAIN_ANNOTATION}={report.annotation} of node {report.node} is kept: new claims do not get these "
        "GPUs; running pods are unaffected"
    )
    if report.evicted:
        found.append(f"evicted pods stay evicted: {', '.join(report.evicted)}")
    if report.detach_asked:
        found.append(f"annotation {DETACH_ANNOTATION} is kept: the node prepares no claims")
    return [*found, "repeat the command to continue", f"{report.undo} undrains the GPUs"]
