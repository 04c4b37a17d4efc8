"""``kubectl dra undrain``: end the request, and wait until new claims get the GPUs again."""

from dra_driver.core.errors import ConfigurationError
from dra_driver.core.model.drain import DETACH_ANNOTATION, DRAIN_ANNOTATION, DrainRequest
from dra_driver.core.model.ids import GpuUuid
from dra_driver.kubectl.drain import marks, rights
from dra_driver.kubectl.drain.gpus import PublishedGpu, selected
from dra_driver.kubectl.drain.report import DrainReport, Say
from dra_driver.kubectl.drain.run import DrainFailedError, DrainOptions
from dra_driver.kubectl.drain.view import DrainApi, DrainWait, NodeView


def undrain(api: DrainApi, options: DrainOptions, report: DrainReport, patience: DrainWait, say: Say) -> None:
    """Fills ``report``. Raises as ``run.drain``; of ``options`` node, driver and GPUs count."""
    node, view = options.node, NodeView(api, options.node, options.driver)
    rights.check(api, rights.needed(node, reads_events=False, reads_holders=False))
    asked = DrainRequest.of(marks.annotations_of(api, node).get(DRAIN_ANNOTATION))
    published = view.gpus()
    gpus = selected(published, options.gpus) if options.gpus else None
    if gpus is not None and asked.every:
        raise ConfigurationError(
            f"node {node}: the whole node is drained, so single GPUs cannot be taken out: kubectl dra undrain {node}, "
            "then drain the others"
        )
    report.gpus = gpus or tuple(gpu.uuid for gpu in published)
    text, changed = marks.change_drain(api, node, lambda found: found.without(gpus))
    report.annotation = text
    left = f"is {text}" if text else "is gone"
    say(f"node {node}: annotation {DRAIN_ANNOTATION} {left}{'' if changed else ' (as before)'}")
    detach = marks.end_detach(api, node)
    stays = detach.foreign is not None or bool(detach.needed_by)
    if detach.ended:
        say(f"node {node}: the NVIDIA driver may be used again")
    if detach.foreign is not None:
        say(f"node {node}: annotation {DETACH_ANNOTATION} is not of this command and stays: {detach.foreign}")
        report.next_steps = (f"new claims wait until it goes: kubectl annotate node {node} {DETACH_ANNOTATION}-",)
    if detach.needed_by:
        others = " ".join(f"--gpu {gpu}" for gpu in detach.needed_by)
        say(f"node {node}: the NVIDIA driver stays given up for GPUs that are still drained")
        report.next_steps = (f"new claims wait until these are given back: kubectl dra undrain {node} {others}",)
    _await_use(view, gpus, patience, node, may_stay_detached=stays)
    report.result, report.detached = "done", stays
    say("new claims get these GPUs again" if not stays else "the taint of the drain is gone")


def _await_use(
    view: NodeView, gpus: tuple[GpuUuid, ...] | None, patience: DrainWait, node: str, *, may_stay_detached: bool
) -> None:
    def is_usable(gpu: PublishedGpu) -> bool:
        return not gpu.marked and (may_stay_detached or not gpu.detached)

    def is_done() -> bool:
        published = view.settled_gpus()
        return published is not None and all(is_usable(gpu) for gpu in published if gpus is None or gpu.uuid in gpus)

    if not patience.wait_for(is_done):
        raise DrainFailedError(
            f"node {node}: its devices still have the taint. Its node process does not run, cannot reach the API "
            "server, or waits for the NVIDIA driver; /readyz says what for"
        )
