"""What a pod's state, its log and its events say about one try. Pure."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from msgspec import Struct

from dra_driver.diagnose.smoke.objects import CONTAINER
from dra_driver.diagnose.smoke.report import TryLayer
from dra_driver.kube.published.listing import UNKNOWN, Devices, described_devices, difference, observed_devices

Wire = Mapping[str, Any]

_HOPELESS: Final = {
    "ImagePullBackOff": TryLayer.IMAGE,
    "ErrImageNeverPull": TryLayer.IMAGE,
    "InvalidImageName": TryLayer.IMAGE,
    "CreateContainerConfigError": TryLayer.CONTAINER,
    "CreateContainerError": TryLayer.CONTAINER,
    "RunContainerError": TryLayer.CONTAINER,
}
"""Reasons of a waiting container that do not end by waiting (kubernetes/kubernetes pkg/kubelet/images, kuberuntime)."""
_PREPARE_EVENTS: Final = frozenset({"FailedPrepareDynamicResources", "FailedToPrepareDynamicResources"})
_LONGEST: Final = 400
_MOST_LINES: Final = 10


class TryProblem(Struct, frozen=True, kw_only=True):
    """Why a try failed; ``lines`` are quoted from the container's log."""

    layer: TryLayer
    message: str
    lines: Sequence[str] = ()


class SeenBeside(Struct, frozen=True, kw_only=True):
    """What was allocated and what the container listed; ``problem`` is None if both are the same."""

    device: str
    expected: Sequence[str]
    seen: Sequence[str]
    problem: TryProblem | None


def is_over(pod: Wire) -> bool:
    """Whether the container has ended, so that its log is complete."""
    return _status(pod).get("phase") in {"Succeeded", "Failed"} or "terminated" in _state(pod)


def is_placed(pod: Wire) -> bool:
    return bool((pod.get("spec") or {}).get("nodeName"))


def hopeless(pod: Wire) -> TryProblem | None:
    """Why the container can never start, None while it may."""
    waiting = _state(pod).get("waiting") or {}
    layer = _HOPELESS.get(str(waiting.get("reason")))
    if layer is None:
        return None
    return TryProblem(layer=layer, message=f"{waiting['reason']}: {one_line(waiting.get('message'))}")


def compared(pod: Wire, log: str, results: Sequence[Wire], slices: Iterable[Wire]) -> SeenBeside:
    """The container's list beside the allocation. ``results`` are those of the claim's allocation."""
    allocated, observed = described_devices(results, slices), observed_devices(log)
    return SeenBeside(
        device=", ".join(str(result.get("device")) for result in results),
        expected=_words(allocated),
        seen=_words(observed),
        problem=_problem(pod, log, results, allocated, observed),
    )


def stuck(pod: Wire, events: Sequence[Wire], waited_s: float) -> TryProblem:
    """Why a pod that has a node did not get so far in time, from its newest events."""
    for event in events:
        if event.get("reason") in _PREPARE_EVENTS:
            return TryProblem(layer=TryLayer.PREPARE, message=one_line(event.get("message")))
    waiting = _state(pod).get("waiting") or {}
    if str(waiting.get("reason", "")).startswith("ErrImage"):
        return TryProblem(layer=TryLayer.IMAGE, message=f"{waiting['reason']}: {one_line(waiting.get('message'))}")
    said = f"; {events[0].get('reason')}: {one_line(events[0].get('message'))}" if events else ""
    what = "the container still runs" if "running" in _state(pod) else "the container has not started"
    return TryProblem(layer=TryLayer.CONTAINER, message=f"{what} after {waited_s:.0f} s{said}")


def newest_first(events: Iterable[Wire]) -> list[Wire]:
    """Warnings, newest first."""
    warnings = [event for event in events if event.get("type") == "Warning"]
    return sorted(warnings, key=lambda event: str(event.get("lastTimestamp") or event.get("eventTime")), reverse=True)


def unscheduled_message(pod: Wire) -> str:
    """What the scheduler says of a pod without a node."""
    conditions = _status(pod).get("conditions") or ()
    said = (item.get("message") for item in conditions if item.get("type") == "PodScheduled")
    return one_line(next(said, ""))


def one_line(text: object) -> str:
    """Text of others: on one line, printable and not endless."""
    words = " ".join(str(text or "").split())
    return "".join(character if character.isprintable() else "?" for character in words)[:_LONGEST]


def _problem(pod: Wire, log: str, results: Sequence[Wire], allocated: Devices, observed: Devices) -> TryProblem | None:
    ended = _state(pod).get("terminated") or {}
    lines = tuple(one_line(line) for line in log.splitlines()[:_MOST_LINES])
    if ended.get("exitCode"):
        why = one_line(ended.get("message")) if ended.get("reason") in {"StartError", "ContainerCannotRun"} else ""
        return TryProblem(layer=TryLayer.CONTAINER, message=_failed(ended, why), lines=lines)
    if _status(pod).get("phase") == "Failed" and not ended:
        said = one_line(f"{_status(pod).get('reason')} {_status(pod).get('message')}")
        return TryProblem(layer=TryLayer.CONTAINER, message=f"the pod failed: {said}", lines=lines)
    if not results or UNKNOWN in (*allocated.gpus, *allocated.parents):
        what = "the claim's allocation was not seen" if not results else "no ResourceSlice describes the device"
        return TryProblem(layer=TryLayer.SLICES, message=f"{what}, so nothing can be compared", lines=lines)
    if not observed.listed:
        return TryProblem(
            layer=TryLayer.CONTAINER,
            message="the container lists no GPU: the container runtime did not apply the CDI devices of the claim",
            lines=lines,
        )
    wrong = difference(observed, allocated)
    return TryProblem(layer=TryLayer.CONTAINER, message=wrong, lines=lines) if wrong is not None else None


def _failed(ended: Wire, why: str) -> str:
    if "executable file not found" in why or "no such file or directory" in why:
        return (
            "the container has no nvidia-smi: the container runtime did not apply the CDI devices of the claim "
            f"(containerd before 2.0 needs enable_cdi = true), or the NVIDIA driver has none ({why})"
        )
    return f"nvidia-smi -L ended with exit status {ended['exitCode']}" + (f": {why}" if why else "")


def _words(devices: Devices) -> Sequence[str]:
    parts = (
        f"{part.uuid or part.profile} of {part.parent}" if not part.uuid else f"{part.profile} {part.uuid}"
        for part in devices.partitions
    )
    return (*devices.gpus, *parts)


def _status(pod: Wire) -> Wire:
    return pod.get("status") or {}


def _state(pod: Wire) -> Wire:
    for item in _status(pod).get("containerStatuses") or ():
        if item.get("name") == CONTAINER:
            found: Wire = item.get("state") or {}
            return found
    return {}
