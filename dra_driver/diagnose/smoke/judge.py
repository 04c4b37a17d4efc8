"""What a pod's state, its log and its events say about one try. Pure."""

from collections.abc import Iterable, Sequence
from typing import Final

from msgspec.structs import replace

from dra_driver.core.finding import Finding, Layer, Status
from dra_driver.core.text import one_line
from dra_driver.diagnose.smoke.objects import CONTAINER
from dra_driver.diagnose.smoke.report import TryResult
from dra_driver.kube.published.listing import UNKNOWN, Devices, described_devices, difference, observed_devices
from dra_driver.kube.state import Wire

_HOPELESS: Final = {
    "ImagePullBackOff": Layer.IMAGE,
    "ErrImageNeverPull": Layer.IMAGE,
    "InvalidImageName": Layer.IMAGE,
    "CreateContainerConfigError": Layer.CONTAINER,
    "CreateContainerError": Layer.CONTAINER,
    "RunContainerError": Layer.CONTAINER,
}
"""Reasons of a waiting container that do not end by waiting (kubernetes/kubernetes pkg/kubelet/images, kuberuntime)."""
_PREPARE_EVENTS: Final = frozenset({"FailedPrepareDynamicResources", "FailedToPrepareDynamicResources"})
_LONGEST: Final = 400
_MOST_LINES: Final = 10


def is_over(pod: Wire) -> bool:
    """Whether the container has ended, so that its log is complete."""
    return _status(pod).get("phase") in {"Succeeded", "Failed"} or "terminated" in _state(pod)


def is_placed(pod: Wire) -> bool:
    return bool((pod.get("spec") or {}).get("nodeName"))


def hopeless(pod: Wire) -> Finding | None:
    """Why the container can never start, None while it may."""
    waiting = _state(pod).get("waiting") or {}
    layer = _HOPELESS.get(str(waiting.get("reason")))
    if layer is None:
        return None
    return failed(layer, f"{waiting['reason']}: {shortened(waiting.get('message'))}")


def compared(tried: TryResult, pod: Wire, log: str, results: Sequence[Wire], slices: Iterable[Wire]) -> TryResult:
    """The container's list beside the allocation. ``results`` are those of the claim's allocation."""
    allocated, observed = described_devices(results, slices), observed_devices(log)
    problem = _problem(pod, results, allocated, observed)
    return replace(
        tried,
        finding=problem or tried.finding,
        device=", ".join(str(result.get("device")) for result in results),
        expected=_words(allocated),
        seen=_words(observed),
        lines=tuple(shortened(line) for line in log.splitlines()[:_MOST_LINES]) if problem else (),
    )


def stuck(pod: Wire, events: Sequence[Wire], waited_s: float) -> Finding:
    """Why a pod that has a node did not get so far in time, from its newest events."""
    for event in events:
        if event.get("reason") in _PREPARE_EVENTS:
            return failed(Layer.PREPARE, shortened(event.get("message")))
    waiting = _state(pod).get("waiting") or {}
    if str(waiting.get("reason", "")).startswith("ErrImage"):
        return failed(Layer.IMAGE, f"{waiting['reason']}: {shortened(waiting.get('message'))}")
    said = f"; {events[0].get('reason')}: {shortened(events[0].get('message'))}" if events else ""
    what = "the container still runs" if "running" in _state(pod) else "the container has not started"
    return failed(Layer.CONTAINER, f"{what} after {waited_s:.0f} s{said}")


def newest_first(events: Iterable[Wire]) -> list[Wire]:
    warnings = [event for event in events if event.get("type") == "Warning"]
    return sorted(warnings, key=lambda event: str(event.get("lastTimestamp") or event.get("eventTime")), reverse=True)


def unscheduled_message(pod: Wire) -> str:
    """What the scheduler says of a pod without a node."""
    conditions = _status(pod).get("conditions") or ()
    said = (item.get("message") for item in conditions if item.get("type") == "PodScheduled")
    return shortened(next(said, ""))


def shortened(text: object) -> str:
    """Text of others: on one line, printable, and of bounded length."""
    return one_line(str(text or ""), _LONGEST)


def failed(layer: Layer, message: str) -> Finding:
    """A failure; the try adds node and next step."""
    return Finding(status=Status.FAIL, layer=layer, seen=message)


def _problem(pod: Wire, results: Sequence[Wire], allocated: Devices, observed: Devices) -> Finding | None:
    ended = _state(pod).get("terminated") or {}
    if ended.get("exitCode"):
        why = shortened(ended.get("message")) if ended.get("reason") in {"StartError", "ContainerCannotRun"} else ""
        return failed(Layer.CONTAINER, _ended(ended, why))
    if _status(pod).get("phase") == "Failed" and not ended:
        said = shortened(f"{_status(pod).get('reason')} {_status(pod).get('message')}")
        return failed(Layer.CONTAINER, f"the pod failed: {said}")
    if not results or UNKNOWN in (*allocated.gpus, *allocated.parents):
        what = "the claim's allocation was not seen" if not results else "no ResourceSlice describes the device"
        return failed(Layer.SLICES, f"{what}, so nothing can be compared")
    if not observed.listed:
        return failed(
            Layer.CONTAINER,
            "the container lists no GPU: the container runtime did not apply the CDI devices of the claim",
        )
    wrong = difference(observed, allocated)
    return failed(Layer.CONTAINER, wrong) if wrong is not None else None


def _ended(ended: Wire, why: str) -> str:
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
