"""Check the DaemonSet of node processes: it exists, its pods are created and ready."""

from collections.abc import Iterator
from typing import Final

from dra_driver.core.finding import Finding, Layer, check, fail, ok, warn
from dra_driver.core.text import listed
from dra_driver.diagnose.doctor import facts as fact
from dra_driver.diagnose.doctor.facts import (
    COMPONENT,
    NODE_DAEMONSET,
    ClusterFacts,
    at,
    condition_of,
    dicts,
    is_ready,
    mapping,
    name_of,
    namespace_of,
    number,
    subject_of,
    text,
)
from dra_driver.diagnose.doctor.views import last_warning, layer_of
from dra_driver.kube.state import Wire

_PULL: Final = frozenset(
    {
        "ImagePullBackOff",
        "ErrImagePull",
        "ErrImageNeverPull",
        "InvalidImageName",
        "ImageInspectError",
        "RegistryUnavailable",
    }
)
_SIDE_EFFECTS: Final = frozenset({"ContainerCreating", "PodInitializing"})


@check("daemonset-present", Layer.DAEMONSET, "the DaemonSet of node processes")
def _present(facts: ClusterFacts) -> Iterator[Finding]:
    found = facts.node_daemonsets
    if not found and facts.items_or_none("slices") and facts.own_slices:
        seen = f"devices are published, and no namespace has a DaemonSet {NODE_DAEMONSET}"
        do = (
            "No action if node processes run outside a DaemonSet, as in the embedded cluster (dra-driver sim up). "
            "Otherwise install the chart, or delete ResourceSlices that an uninstall left."
        )
        yield warn(seen, "node processes of this driver's chart", do, "cluster", reason="NoDaemonSet")
    elif not found:
        seen = f"no namespace has a DaemonSet {NODE_DAEMONSET}: the driver is not installed"
        do = (
            "Install it: helm install dra-driver deploy/chart -n dra-driver --create-namespace, or kubectl apply -k "
            "deploy/base."
        )
        yield fail(seen, f"the DaemonSet {NODE_DAEMONSET} of this driver's chart", do, "cluster", reason="NotInstalled")
    for item in found:
        images = at(item, "spec", "images")
        image = images[0] if isinstance(images, list) and images else "unknown"
        yield ok(f"image {image}", subject_of("daemonset", item))


@check("daemonset-pods-created", Layer.DAEMONSET, "the creation of the DaemonSet's pods")
def _made(facts: ClusterFacts) -> Iterator[Finding]:
    """Report pods that the DaemonSet's controller could not create: a quota or an admission policy may refuse them."""
    for item in facts.node_daemonsets:
        about = [
            event
            for event in facts.items_or_none("events")
            if text(event, "reason") == "FailedCreate"
            and text(event, "involvedObject", "name") == name_of(item)
            and text(event, "involvedObject", "namespace") == namespace_of(item)
        ]
        wanted, there = (
            number(item, "status", "desiredNumberScheduled"),
            number(item, "status", "currentNumberScheduled"),
        )
        if there >= wanted:
            continue
        message = text(about[-1], "message") if about else "no event has a reason"
        seen = f"{wanted - there} of {wanted} pods could not be created: {message}"
        do = _do_about_creation(message, namespace_of(item))
        yield fail(seen, f"{wanted} pods", do, subject_of("daemonset", item))


def _do_about_creation(message: str, namespace: str) -> str:
    if "quota" in message:
        return (
            f"Raise the ResourceQuota of namespace {namespace}; GKE and others limit pods with the priority class "
            "system-node-critical to namespaces with a quota for it (chart value resourceQuota)."
        )
    if "PodSecurity" in message:
        return (
            f"Label the namespace: kubectl label ns {namespace} "
            "pod-security.kubernetes.io/enforce=privileged --overwrite"
        )
    if "serviceaccount" in message:
        return "Apply the chart's rbac.yaml again: the ServiceAccount is missing."
    return f"kubectl -n {namespace} describe daemonset {NODE_DAEMONSET} shows the newest events."


@check("daemonset-pods-ready", Layer.DAEMONSET, "the pods of node processes")
def _pods(facts: ClusterFacts) -> Iterator[Finding]:
    pods = [pod for pod in facts.node_pods if not text(pod, "metadata", "deletionTimestamp")]
    ready = [pod for pod in pods if is_ready(pod)]
    for pod in pods:
        if pod not in ready:
            yield _judged(pod, facts)
    if ready and len(ready) == len(pods):
        nodes = [text(pod, "spec", "nodeName") for pod in ready]
        yield ok(f"{len(ready)} pods are ready: {listed(nodes)}", f"daemonset/{NODE_DAEMONSET}")


def _judged(pod: Wire, facts: ClusterFacts) -> Finding:
    node = text(pod, "spec", "nodeName")
    subject = subject_of("pod", pod) + (f" on node/{node}" if node else "")
    for status in dicts(pod, "status", "containerStatuses"):
        found = _of_container(subject, status, pod, facts)
        if found is not None:
            return found
    scheduled = condition_of(pod, "PodScheduled")
    if scheduled.get("status") == "False":
        do = "Free CPU and memory on the node (the pod has priority system-node-critical), or check the node's taints."
        return fail(f"is not scheduled: {text(scheduled, 'message')}", "a node", do, subject, reason="PodNotScheduled")
    phase, reason = text(pod, "status", "phase"), text(pod, "status", "reason")
    if phase == "Failed":
        seen = f"has failed: {reason} {text(pod, 'status', 'message')}".strip()
        do = "Check the node's memory and disk pressure; the DaemonSet creates a new pod."
        return fail(seen, "a running pod", do, subject, reason="PodFailed")
    said = _own_words(pod, node, facts)
    message = said or text(condition_of(pod, "Ready"), "message") or phase
    return fail(
        f"is not ready: {message}",
        "a pod that is ready",
        f"Read kubectl -n {namespace_of(pod)} logs {name_of(pod)}, or the pod's /readyz. On the node: "
        "dra-driver doctor.",
        subject,
        layer=layer_of(said, Layer.DAEMONSET) if said else Layer.DAEMONSET,
        reason="PodNotReady",
    )


def _own_words(pod: Wire, node: str, facts: ClusterFacts) -> str:
    """The reason for which a node process is not ready: from its GpuNode, else from its log."""
    reported = facts.gpu_nodes.get(node)
    for problem in reported.problems if reported is not None else ():
        if problem.reason == "NotReady":
            return problem.message
    return last_words(pod, facts)


def last_words(pod: Wire, facts: ClusterFacts) -> str:
    """The newest warning in the log of a pod that is not ready; of an ended run without one, its last line."""
    for log in facts.items_or_none(fact.DRIVER_LOGS):
        if (namespace_of(log), name_of(log)) == (namespace_of(pod), name_of(pod)):
            found = log.get("lines")
            lines = [str(line) for line in found if str(line).strip()] if isinstance(found, list) else []
            restarts = sum(number(each, "restartCount") for each in dicts(pod, "status", "containerStatuses"))
            return last_warning(lines) or (lines[-1][:400] if lines and restarts else "")
    return ""


def _of_container(subject: str, status: Wire, pod: Wire, facts: ClusterFacts) -> Finding | None:
    waiting = mapping(status, "state", "waiting")
    reason, message = text(waiting, "reason"), text(waiting, "message")
    logs = f"kubectl -n {namespace_of(pod)} logs {name_of(pod)} --previous"
    if reason in _PULL:
        seen = f"cannot pull its image {text(status, 'image')} ({reason}): {message}"
        do = (
            "Check image.repository, image.tag and imagePullSecrets of the chart. Import the image on a node without "
            "a registry (docs/image.md)."
        )
        return fail(seen, "an image that the node has or can pull", do, subject, reason="ImagePullFailed")
    last = mapping(status, "lastState", "terminated") or mapping(status, "state", "terminated")
    if reason == "CrashLoopBackOff" or (last and not status.get("ready") and number(status, "restartCount") > 0):
        why = text(last, "message") or last_words(pod, facts) or text(last, "reason") or "no message"
        return fail(
            f"its container {text(status, 'name')} ended {number(status, 'restartCount')} times, the last time with "
            f"exit status {number(last, 'exitCode')}: {why}",
            "a process that keeps running",
            "Exit status 2 means a wrong setting, 137 with OOMKilled too little memory (chart value node.resources). "
            f"Read its last messages: {logs}",
            subject,
            reason="ContainerCrashed",
        )
    if reason and reason not in _SIDE_EFFECTS:
        seen = f"its container {text(status, 'name')} does not start ({reason}): {message}"
        do = "Check the host directories that the DaemonSet mounts, and run kubectl describe for the pod."
        return fail(seen, "a container that starts", do, subject, reason="ContainerNotStarted")
    return None


@check("daemonset-one-image", Layer.DAEMONSET, "the images of node processes")
def _rollout(facts: ClusterFacts) -> Iterator[Finding]:
    """Report pods of an older image alongside pods of a newer image: the rollout does not continue."""
    images: dict[str, list[str]] = {}
    for pod in facts.node_pods:
        for container in dicts(pod, "spec", "containers"):
            if text(container, "name") == "node":
                images.setdefault(text(container, "image"), []).append(text(pod, "spec", "nodeName"))
    if len(images) > 1:
        seen = "; ".join(f"{image} on {listed(sorted(nodes))}" for image, nodes in sorted(images.items()))
        do = "Wait for the rollout, or find out why it stopped: kubectl rollout status daemonset/dra-driver-node."
        yield warn(seen, "one image on all nodes", do, f"daemonset/{NODE_DAEMONSET}")


@check("other-pods-ready", Layer.DAEMONSET, "controller, MPS host and usage exporter")
def _others(facts: ClusterFacts) -> Iterator[Finding]:
    """Check the pods of controller, MPS host and usage exporter. Nodes work without them, with fewer features."""
    for pod in facts.items(fact.DRIVER_PODS):
        component = text(pod, "metadata", "labels", COMPONENT)
        if component in ("", "node") or is_ready(pod) or text(pod, "status", "phase") == "Succeeded":
            continue
        restarts = max((number(each, "restartCount") for each in dicts(pod, "status", "containerStatuses")), default=0)
        waiting = [text(each, "state", "waiting", "reason") for each in dicts(pod, "status", "containerStatuses")]
        said = last_words(pod, facts) or next(filter(None, waiting), "") or text(condition_of(pod, "Ready"), "message")
        yield warn(
            f"the {component} is not ready{f' after {restarts} restarts' if restarts else ''}: {said or 'no message'}",
            f"a {component} that is ready",
            f"Read kubectl -n {namespace_of(pod)} logs {name_of(pod)}; {_LOST.get(component, 'see the chart')}.",
            subject_of("pod", pod),
        )


_LOST: Final = {
    "controller": "until it runs, GpuPolicies get no status and no pod is evicted from unhealthy GPUs",
    "mps-host": "until it runs, claims that need MPS are not prepared on its node",
    "exporter": "until it runs, the usage of claims on its node is unknown",
}
