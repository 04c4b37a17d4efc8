"""Drain and undrain GPUs of a node: taint, report claims and pods, evict on request, wait, detach.

Every step can be repeated, and the node can stay between two steps.
"""

import secrets
from collections.abc import Callable, Iterable, Sequence
from typing import Final

from msgspec import Struct

from dra_driver.core import errors
from dra_driver.core.errors import ConfigurationError, DraError
from dra_driver.core.model.drain import DETACH_ANNOTATION, DRAIN_ANNOTATION, MAX_LENGTH, DrainRequest, clean
from dra_driver.core.model.ids import GpuUuid
from dra_driver.core.request_rights import AccessRight
from dra_driver.core.text import counted
from dra_driver.kube import paths
from dra_driver.kube.evictions import Creator, causes_text, create_eviction
from dra_driver.kube.node_annotation import Annotations, NodeApi, change_annotation, node_metadata
from dra_driver.kube.rights import missing
from dra_driver.kubectl.drain.report import DrainReport, Say, line
from dra_driver.kubectl.drain.view import DeviceHolder, DrainApi, DrainWait, HolderPod, NodeView, selected

TAINT_S: Final = 60.0  # a node process taints within about 1 s
DETACH_S: Final = 60.0  # minimum, regardless of the timeout: calls in progress end within 45 s
RETRY_S: Final = 5.0  # between two requests for one pod, as in ``kubectl drain``


class DrainFailedError(DraError):
    """A step did not finish in time."""


class DrainOptions(Struct, frozen=True, kw_only=True):
    """``gpus`` are UUIDs or names of the node's GPUs, empty for all. ``detach`` None: only for the whole node.
    ``dry_run``: report the claims and pods, and change nothing."""

    node: str
    driver: str
    gpus: tuple[str, ...] = ()
    evict: bool = False
    force: bool = False
    detach: bool | None = None
    dry_run: bool = False
    cordon: bool = False

    @property
    def detaches(self) -> bool:
        return not self.gpus if self.detach is None else self.detach


def drain(api: DrainApi, options: DrainOptions, report: DrainReport, patience: DrainWait, say: Say) -> None:
    """Fill ``report``. Raises ConfigurationError, MissingRightsError, KubernetesApiError and DrainFailedError."""
    report.only = options.gpus
    run = DrainRun(api, options, report, patience, say)
    if not run.mark():
        return
    run.await_taint()
    run.await_free()
    if options.detaches:
        run.detach()
    report.result = "done"
    report.next_steps = tuple(_next_steps(options, report))


class DrainRun:
    """The steps of one drain; ``report`` is correct after each."""

    def __init__(
        self, api: DrainApi, options: DrainOptions, report: DrainReport, patience: DrainWait, say: Say
    ) -> None:
        self._api, self._options, self._report, self._patience, self._say = api, options, report, patience, say
        self.view = NodeView(api, options.node, options.driver)
        self._gpus: tuple[GpuUuid, ...] | None = None  # None: all of the node
        self._asked_at: dict[str, float] = {}  # pod UID -> time of the next attempt
        self._shown: dict[str, str] = {}  # claim and device of a holder -> its line
        self._free_looks = 0

    def mark(self) -> bool:
        """Write the annotation that requests the taint from the node process. Return False after a dry run."""
        node = self._options.node
        optional = [EVICT] if self._options.evict else []
        check_rights(self._api, needed_rights(node, reads_events=self._options.detaches), optional)
        node_metadata(self._api, node)  # before slices: fails if the node does not exist
        published = self.view.gpus()
        if self._options.gpus:
            self._gpus = selected(published, self._options.gpus)
        self._report.gpus = self._gpus or tuple(gpu.uuid for gpu in published)
        if unknown := sorted({*self._report.gpus} - {gpu.uuid for gpu in published}):
            self._say(
                f"node {node} does not publish {', '.join(unknown)}: fallen off the bus, hidden by a policy, or not "
                "a GPU of this node. Check the UUID"
            )
        holders = self.view.holders(self._gpus, published, force=self._options.force)  # fail early
        if self._options.dry_run:
            self._preview(holders)
            return False
        if self._options.cordon:  # before the taint: the cluster autoscaler copies schedulable nodes
            self._api.merge_patch(paths.node(node), {"spec": {"unschedulable": True}})
            self._report.cordoned = True
            self._say(f"node {node}: cordoned")
        text, changed = change_drain(self._api, node, lambda asked: asked.joined(self._gpus))
        self._report.annotation = text
        self._say(f"node {node}: annotation {DRAIN_ANNOTATION}={text}{'' if changed else ' (unchanged)'}")
        return True

    def _preview(self, holders: tuple[DeviceHolder, ...]) -> None:
        self._show(holders)
        self._report.items, self._report.result = holders, "done"
        pods = {pod.uid: pod for one in holders if one.counts for pod in one.pods if pod.found and not pod.ending}
        for pod in pods.values() if self._options.evict else ():
            self._say(f"would not evict: pod {pod.label}: {pod.kept}" if pod.kept else f"would evict: pod {pod.label}")
        cordon = f"cordon node {self._options.node} and " if self._options.cordon else ""
        self._say(f"dry run: would {cordon}drain {counted(len(self._report.gpus), 'GPU')}; nothing was changed")

    def await_taint(self) -> None:
        if not self._patience.wait_for(self._is_tainted, least_s=TAINT_S, most_s=TAINT_S):
            raise DrainFailedError(
                f"node {self._options.node}: its devices have no taint after {TAINT_S:.0f} s. Its node process is "
                "not running, cannot reach the API server, or is older than this command. Check kubectl -n dra-driver "
                "get pods -o wide",
                reason="NotTainted",
            )
        self._report.tainted = True
        count = len(self._report.gpus)
        self._say(
            f"tainted: new claims get none of {count} GPU{'s' if count != 1 else ''}"
            if count
            else f"node {self._options.node} publishes no GPUs of driver {self._options.driver}"
        )

    def await_free(self) -> None:
        """Wait until no claim uses the GPUs; evict pods if requested."""
        self._report.free = self._patience.wait_for(self._is_free)
        if not self._report.free:
            raise DrainFailedError(self._still_held(), reason="DevicesInUse")
        self._say("free: no claim uses these GPUs")

    def detach(self) -> None:
        node = self._options.node
        self._report.detach_asked = True
        reason = ask_detach(self._api, node, self._gpus)
        self._say(f"node {node}: requested to detach from the NVIDIA driver ({reason})")
        said = f": {reason})"
        self._report.detached = self._patience.wait_for(
            lambda: self.view.message("DriverDetached", said) is not None, least_s=DETACH_S
        )
        if not self._report.detached:
            raise DrainFailedError(
                f"node {node} has not confirmed that it detached from the NVIDIA driver: no event DriverDetached with "
                f"{reason!r}. Check /readyz of its node process. Events expire after one hour: the event of an earlier "
                "request can be missing",
                reason="DetachUnconfirmed",
            )
        self._say("detached: this driver does not use the NVIDIA driver")

    def _is_tainted(self) -> bool:
        published = self.view.settled_gpus()
        if published is None:
            return False
        return all(gpu.drained for gpu in published if self._gpus is None or gpu.uuid in self._gpus)

    def _is_free(self) -> bool:
        """Return whether two polls in a row found no holders: the scheduler can allocate before it sees the taint."""
        holders = self.view.holders(self._gpus, self.view.gpus(), force=self._options.force)
        self._show(holders)
        self._report.items = holders
        held = [holder for holder in holders if holder.counts]
        self._free_looks = 0 if held else self._free_looks + 1
        if self._options.evict:
            for pod in {pod.uid: pod for holder in held for pod in holder.pods}.values():
                self._evict(pod)
        return self._free_looks > 1

    def _show(self, holders: tuple[DeviceHolder, ...]) -> None:
        now = {f"{one.namespace}/{one.claim} {one.device}": one for one in holders}
        for key, text in list(self._shown.items()):
            if key not in now:
                self._say(f"ended:   {text}")
                del self._shown[key]
        for key, holder in now.items():
            if key not in self._shown:
                self._shown[key] = line(holder)
                self._say(f"{'in use: ' if holder.counts else 'admin:  '} {self._shown[key]}")

    def _evict(self, pod: HolderPod) -> None:
        """Request an eviction; retry after `RETRY_S` or later. Raises KubernetesApiError without an answer."""
        if pod.ending or not pod.found or self._patience.now < self._asked_at.get(pod.uid, 0.0):
            return
        if pod.kept:
            self._refused(pod, pod.kept)
            return
        after_s = RETRY_S
        try:
            create_eviction(self._api, pod.namespace, pod.name, pod.uid)
        except (errors.NotFoundError, errors.ConflictError):
            pass  # already deleted
        except errors.ForbiddenError:
            self._refused(pod, f"no permission to create pods/eviction in namespace {pod.namespace}")
        except errors.ServerBusyError as error:
            after_s = max(RETRY_S, error.retry_after_s)
            self._refused(pod, causes_text(error) or str(error))
        else:
            self._report.evicted.append(pod.label)
            self._report.refusals.pop(pod.label, None)
            self._say(f"evicted: pod {pod.label}")
        self._asked_at[pod.uid] = self._patience.now + after_s

    def _refused(self, pod: HolderPod, why: str) -> None:
        if self._report.refusals.get(pod.label) != why:
            self._say(f"not evicted: pod {pod.label}: {why}")
        self._report.refusals[pod.label] = why

    def _still_held(self) -> str:
        held = [holder for holder in self._report.items if holder.counts]
        shown = ", ".join(f"{one.namespace}/{one.claim} ({one.device})" for one in held[:8])
        hint = "" if self._options.evict else "; --evict evicts their pods"
        return (
            f"node {self._options.node}: {len(held)} device{'s are' if len(held) != 1 else ' is'} in use: {shown}{hint}"
        )


def _next_steps(options: DrainOptions, report: DrainReport) -> Sequence[str]:
    admin = sorted({pod.label for holder in report.items if not holder.counts for pod in holder.pods})
    found = [f"end these pods with admin access before a reset or unload: {', '.join(admin)}"] if admin else []
    if options.detaches:
        found.append(
            "on the node: end other users of the GPUs (dcgm-exporter, nvidia-persistenced; fuser -v /dev/nvidia*), "
            "then upgrade, unload or reset"
        )
    else:
        found.append(
            "the node process keeps all GPUs of its node open: for a reset or unload, repeat with --detach "
            "(docs/upgrade-and-drain.md)"
        )
    uncordon = f", then kubectl uncordon {options.node}" if report.cordoned else ""
    return [*found, f"afterwards: {report.undo}{uncordon}"]


def undrain(api: DrainApi, options: DrainOptions, report: DrainReport, patience: DrainWait, say: Say) -> None:
    """Fill ``report``. Raises as `drain`; uses only node, driver and GPUs of ``options``."""
    report.only = options.gpus
    node, view = options.node, NodeView(api, options.node, options.driver)
    check_rights(api, needed_rights(node, reads_events=False, reads_holders=False))
    asked = DrainRequest.of(node_metadata(api, node).annotations.get(DRAIN_ANNOTATION))
    published = view.gpus()
    gpus = selected(published, options.gpus) if options.gpus else None
    if gpus is not None and asked.every:
        raise ConfigurationError(
            f"node {node}: cannot undrain single GPUs: the whole node is drained. Run kubectl dra undrain {node}, "
            "then drain the remaining GPUs",
            reason="WholeNodeDrained",
        )
    report.gpus = gpus or tuple(gpu.uuid for gpu in published)
    if options.dry_run:
        report.result = "done"
        drained = [gpu.uuid for gpu in published if gpu.marked and (gpus is None or gpu.uuid in gpus)]
        say(f"dry run: would undrain {counted(len(drained), 'GPU')}; nothing was changed")
        return
    text, changed = change_drain(api, node, lambda found: found.without(gpus))
    report.annotation = text
    left = f"is {text}" if text else "was removed"
    say(f"node {node}: annotation {DRAIN_ANNOTATION} {left}{'' if changed else ' (unchanged)'}")
    detach = end_detach(api, node)
    stays = detach.foreign is not None or bool(detach.needed_by)
    if detach.ended:
        say(f"node {node}: the node process can use the NVIDIA driver again")
    if detach.foreign is not None:
        say(f"node {node}: annotation {DETACH_ANNOTATION} was kept, another tool set it: {detach.foreign}")
        report.next_steps = (f"new claims wait until it is removed: kubectl annotate node {node} {DETACH_ANNOTATION}-",)
    if detach.needed_by:
        others = " ".join(f"--gpu {gpu}" for gpu in detach.needed_by)
        say(f"node {node}: the node process stays detached: some GPUs are still drained")
        report.next_steps = (f"new claims wait for these GPUs: kubectl dra undrain {node} {others}",)

    def is_usable() -> bool:
        seen = view.settled_gpus()
        return seen is not None and not any(
            gpu.marked or (gpu.detached and not stays) for gpu in seen if gpus is None or gpu.uuid in gpus
        )

    if not patience.wait_for(is_usable):
        raise DrainFailedError(
            f"node {node}: its devices still have the taint. Its node process is not running, cannot reach the API "
            "server, or waits for the NVIDIA driver. Check its /readyz"
        )
    report.result, report.detached = "done", stays
    say("new claims can use these GPUs" if not stays else "the drain taint was removed")


# --- The annotations of a Node that request a drain and a detach.

DETACH_REASON: Final = "kubectl dra drain"
"""Prefix of the reason of a detach that ``drain`` requests; ``undrain`` ends only such detaches. A number follows, and
for single GPUs their UUIDs: the detach ends when all of them are undrained."""


def change_drain(api: NodeApi, node: str, change: Callable[[DrainRequest], DrainRequest]) -> tuple[str | None, bool]:
    """Return the drain annotation's value after ``change``, and whether it changed."""

    def decide(found: Annotations) -> str | None:
        text = change(DrainRequest.of(found.get(DRAIN_ANNOTATION))).text
        if text is not None and len(text) >= MAX_LENGTH:
            raise ConfigurationError(f"--gpu: too many GPUs for annotation {DRAIN_ANNOTATION}; drain the whole node")
        return text

    return change_annotation(api, node, DRAIN_ANNOTATION, decide)


class DetachEnd(Struct, frozen=True, kw_only=True):
    """State of a detach. ``ended``: a request of ``drain`` was removed. ``foreign`` is the reason of another tool's
    request, which is kept; ``needed_by`` are the drained GPUs that still need a request of ``drain``."""

    ended: bool
    foreign: str | None = None
    needed_by: tuple[GpuUuid, ...] = ()


def ask_detach(api: NodeApi, node: str, gpus: Iterable[GpuUuid] | None) -> str:
    """Request a detach for these GPUs (None: the whole node), unless another request exists.

    Returns the reason in force, as events report it. Each request has a new number, which identifies its event.
    """
    fresh = f"{DETACH_REASON} {secrets.token_hex(4)}"

    def decide(found: Annotations) -> str:
        foreign = _foreign_reason(found)
        if foreign is not None:
            return foreign  # an empty reason is a request, too
        return fresh if gpus is None else f"{fresh} {','.join(sorted({*gpus, *_needed_by(found)}))}"

    reason, _ = change_annotation(api, node, DETACH_ANNOTATION, decide)
    return clean(reason or "")


def end_detach(api: NodeApi, node: str) -> DetachEnd:
    """End a detach that ``drain`` requested, if no drained GPU needs it."""
    needed_by: tuple[GpuUuid, ...] = ()

    def decide(found: Annotations) -> str | None:
        nonlocal needed_by
        needed_by = _needed_by(found)
        return found[DETACH_ANNOTATION] if needed_by else _foreign_reason(found)

    left, changed = change_annotation(api, node, DETACH_ANNOTATION, decide)
    foreign = None if left is None or needed_by else clean(left)
    return DetachEnd(ended=changed, foreign=foreign, needed_by=needed_by)


def _needed_by(found: Annotations) -> tuple[GpuUuid, ...]:
    """Return the drained GPUs for which ``drain`` requested a detach; without UUIDs (older versions) all drained."""
    reason = found.get(DETACH_ANNOTATION, "")
    if not reason.startswith(DETACH_REASON):
        return ()
    drained = DrainRequest.of(found.get(DRAIN_ANNOTATION)).gpus
    asked = DrainRequest.of(reason.rpartition(" ")[2]).gpus
    return tuple(sorted(drained & asked if asked else drained))


def _foreign_reason(found: Annotations) -> str | None:
    reason = found.get(DETACH_ANNOTATION)
    if reason is None or reason.lower() == "false" or reason.startswith(DETACH_REASON):
        return None
    return reason


class MissingRightsError(DraError):
    """The user lacks permissions; the message names each of them."""


EVICT: Final = AccessRight(verb="create", resource="pods", subresource="eviction", namespaced=True)


def needed_rights(node: str, *, reads_events: bool, reads_holders: bool = True) -> tuple[AccessRight, ...]:
    """Permissions that a drain or undrain of ``node`` needs."""
    group = "resource.k8s.io"
    found = [
        AccessRight(verb="get", resource="nodes", name=node),
        AccessRight(verb="patch", resource="nodes", name=node),
        AccessRight(verb="list", resource="resourceslices", group=group),
    ]
    if reads_holders:
        found.append(AccessRight(verb="list", resource="resourceclaims", group=group, namespaced=True))
        found.append(AccessRight(verb="list", resource="pods", namespaced=True))
    if reads_events:
        found.append(AccessRight(verb="list", resource="events", namespace="default", namespaced=True))
    return tuple(found)


def check_rights(api: Creator, rights: Sequence[AccessRight], optional: Sequence[AccessRight] = ()) -> None:
    """Raise MissingRightsError unless the user has ``rights``; its message includes missing ``optional`` ones."""
    if not (lacking := missing(api, rights)):
        return
    lacking += missing(api, optional)
    raise MissingRightsError(
        f"the user of this kubeconfig lacks permissions: {'; '.join(map(str, lacking))}. Nothing was changed. Ask an "
        "administrator for a ClusterRole with them (see docs/upgrade-and-drain.md)"
    )
