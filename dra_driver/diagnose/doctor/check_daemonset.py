"""Checks of the DaemonSet of node processes: that it is there, that its pods are made, and that they run."""

from collections.abc import Iterator
from typing import Final

from dra_driver.diagnose.doctor import facts as fact
from dra_driver.diagnose.doctor.check import LayerCheck
from dra_driver.diagnose.doctor.driver_view import gpu_nodes, node_daemonsets, node_pods, own_slices, shown
from dra_driver.diagnose.doctor.facts import NODE_DAEMONSET, ClusterFacts
from dra_driver.diagnose.doctor.finding import FindingStatus, Layer, LayerFinding
from dra_driver.diagnose.doctor.sentences import last_warning, layer_of
from dra_driver.diagnose.doctor.wire import (
    Wire,
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
COMPONENT: Final = "app.kubernetes.io/component"
_SIDE_EFFECTS: Final = frozenset({"ContainerCreating", "PodInitializing"})


def _present(facts: ClusterFacts) -> Iterator[LayerFinding]:
    found = node_daemonsets(facts)
    if not found and facts.items_or_none("slices") and own_slices(facts):
        yield PRESENT.finding(
            FindingStatus.WARN,
            "cluster",
            f"devices are published, and no namespace has a DaemonSet {NODE_DAEMONSET}",
            expected="node processes of this driver's chart",
            do="Leave it so where node processes run otherwise, as in the embedded cluster (dra-driver sim up); "
            "install the "
            "chart where an uninstall left ResourceSlices.",
        )
    elif not found:
        yield PRESENT.finding(
            FindingStatus.FAIL,
            "cluster",
            f"no namespace has a DaemonSet {NODE_DAEMONSET}: the driver is not installed",
            expected=f"the DaemonSet {NODE_DAEMONSET} of this driver's chart",
            do="Install it: helm install dra-driver deploy/chart -n dra-driver --create-namespace, or kubectl apply -k "
            "deploy/base.",
        )
    for item in found:
        yield PRESENT.finding(FindingStatus.OK, subject_of("daemonset", item), f"image {_image(item)}")


def _made(facts: ClusterFacts) -> Iterator[LayerFinding]:
    """Whether the DaemonSet's controller can make pods: a quota or an admission policy may refuse them."""
    for item in node_daemonsets(facts):
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
        message = text(about[-1], "message") if about else "no event says why"
        yield MADE.finding(
            FindingStatus.FAIL,
            subject_of("daemonset", item),
            f"{wanted - there} of {wanted} pods could not be created: {message}",
            expected=f"{wanted} pods",
            do=_do_about_creation(message, namespace_of(item)),
        )


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


def _pods(facts: ClusterFacts) -> Iterator[LayerFinding]:
    pods = [pod for pod in node_pods(facts) if not text(pod, "metadata", "deletionTimestamp")]
    ready = [pod for pod in pods if is_ready(pod)]
    for pod in pods:
        if pod not in ready:
            yield _judged(pod, facts)
    if ready and len(ready) == len(pods):
        nodes = [text(pod, "spec", "nodeName") for pod in ready]
        yield PODS.finding(
            FindingStatus.OK, f"daemonset/{NODE_DAEMONSET}", f"{len(ready)} pods are ready: {shown(nodes)}"
        )


def _judged(pod: Wire, facts: ClusterFacts) -> LayerFinding:
    """Why a pod is not ready."""
    node = text(pod, "spec", "nodeName")
    subject = subject_of("pod", pod) + (f" on node/{node}" if node else "")
    for status in dicts(pod, "status", "containerStatuses"):
        found = _of_container(subject, status, pod, facts)
        if found is not None:
            return found
    scheduled = condition_of(pod, "PodScheduled")
    if scheduled.get("status") == "False":
        return PODS.finding(
            FindingStatus.FAIL,
            subject,
            f"is not scheduled: {text(scheduled, 'message')}",
            expected="a node",
            do="Free CPU and memory on the node (the pod has priority system-node-critical), or look at its taints.",
        )
    phase, reason = text(pod, "status", "phase"), text(pod, "status", "reason")
    if phase == "Failed":
        return PODS.finding(
            FindingStatus.FAIL,
            subject,
            f"has failed: {reason} {text(pod, 'status', 'message')}".strip(),
            expected="a running pod",
            do="Look at the node's memory and disk pressure; the DaemonSet makes a new pod.",
        )
    said = _own_words(pod, node, facts)
    message = said or text(condition_of(pod, "Ready"), "message") or phase
    return PODS.finding(
        FindingStatus.FAIL,
        subject,
        f"is not ready: {message}",
        layer=layer_of(said, Layer.DAEMONSET) if said else Layer.DAEMONSET,
        expected="a pod that is ready",
        do=f"Read why: kubectl -n {namespace_of(pod)} logs {name_of(pod)}; its /readyz says it, too. On the node: "
        "dra-driver doctor.",
    )


def _own_words(pod: Wire, node: str, facts: ClusterFacts) -> str:
    """Why the node process says that it is not ready: in its GpuNode, else in its log."""
    told = gpu_nodes(facts).get(node)
    for problem in told.problems if told is not None else ():
        if problem.reason == "NotReady":
            return problem.message
    return last_words(pod, facts)


def last_words(pod: Wire, facts: ClusterFacts) -> str:
    """The newest warning in the log of a pod that is not ready; of a run that ended, else its last line."""
    for log in facts.items_or_none(fact.DRIVER_LOGS):
        if (namespace_of(log), name_of(log)) == (namespace_of(pod), name_of(pod)):
            found = log.get("lines")
            lines = [str(line) for line in found if str(line).strip()] if isinstance(found, list) else []
            restarts = sum(number(each, "restartCount") for each in dicts(pod, "status", "containerStatuses"))
            return last_warning(lines) or (lines[-1][:400] if lines and restarts else "")
    return ""


def _of_container(subject: str, status: Wire, pod: Wire, facts: ClusterFacts) -> LayerFinding | None:
    waiting = mapping(status, "state", "waiting")
    reason, message = text(waiting, "reason"), text(waiting, "message")
    logs = f"kubectl -n {namespace_of(pod)} logs {name_of(pod)} --previous"
    if reason in _PULL:
        return PODS.finding(
            FindingStatus.FAIL,
            subject,
            f"its image {text(status, 'image')} cannot be had ({reason}): {message}",
            expected="an image that the node can pull, or has",
            do="Check image.repository, image.tag and imagePullSecrets of the chart; on a node without a registry the "
            "image has to be imported before (docs/image.md).",
        )
    last = mapping(status, "lastState", "terminated") or mapping(status, "state", "terminated")
    if reason == "CrashLoopBackOff" or (last and not status.get("ready") and number(status, "restartCount") > 0):
        why = text(last, "message") or last_words(pod, facts) or text(last, "reason") or "no message"
        return PODS.finding(
            FindingStatus.FAIL,
            subject,
            f"its container {text(status, 'name')} ended {number(status, 'restartCount')} times, the last time with "
            f"exit status {number(last, 'exitCode')}: {why}",
            expected="a process that keeps running",
            do="Exit status 2 is a wrong setting, 137 with OOMKilled too little memory (chart value node.resources). "
            f"Read its last words: {logs}",
        )
    if reason and reason not in _SIDE_EFFECTS:
        return PODS.finding(
            FindingStatus.FAIL,
            subject,
            f"its container {text(status, 'name')} does not start ({reason}): {message}",
            expected="a container that starts",
            do="Look at the host's folders that the DaemonSet mounts, and at kubectl describe of the pod.",
        )
    return None


def _rollout(facts: ClusterFacts) -> Iterator[LayerFinding]:
    """Pods of an older image beside those of a newer one: an update that does not go on."""
    images: dict[str, list[str]] = {}
    for pod in node_pods(facts):
        for container in dicts(pod, "spec", "containers"):
            if text(container, "name") == "node":
                images.setdefault(text(container, "image"), []).append(text(pod, "spec", "nodeName"))
    if len(images) > 1:
        yield ROLLOUT.finding(
            FindingStatus.WARN,
            f"daemonset/{NODE_DAEMONSET}",
            "; ".join(f"{image} on {shown(sorted(nodes))}" for image, nodes in sorted(images.items())),
            expected="one image on all nodes",
            do="Wait for the update, or look at why it stopped: kubectl rollout status daemonset/dra-driver-node.",
        )


def _others(facts: ClusterFacts) -> Iterator[LayerFinding]:
    """Pods of controller, MPS host and usage exporter: nodes work without them, with fewer features."""
    for pod in facts.items(fact.DRIVER_PODS):
        component = text(pod, "metadata", "labels", COMPONENT)
        if component in ("", "node") or is_ready(pod) or text(pod, "status", "phase") == "Succeeded":
            continue
        restarts = max((number(each, "restartCount") for each in dicts(pod, "status", "containerStatuses")), default=0)
        waiting = [text(each, "state", "waiting", "reason") for each in dicts(pod, "status", "containerStatuses")]
        said = last_words(pod, facts) or next(filter(None, waiting), "") or text(condition_of(pod, "Ready"), "message")
        yield OTHERS.finding(
            FindingStatus.WARN,
            subject_of("pod", pod),
            f"the {component} is not ready{f' after {restarts} restarts' if restarts else ''}: {said or 'no message'}",
            expected=f"a {component} that runs",
            do=f"Read why: kubectl -n {namespace_of(pod)} logs {name_of(pod)}; "
            f"{_LOST.get(component, 'see the chart')}.",
        )


_LOST: Final = {
    "controller": "until it runs, GpuPolicies get no status and no pod is evicted from unhealthy GPUs",
    "mps-host": "until it runs, claims that need MPS are not prepared on its node",
    "exporter": "until it runs, what claims use of the GPUs of its node is not known",
}


def _image(item: Wire) -> str:
    images = item.get("spec", {}).get("images") if isinstance(item.get("spec"), dict) else None
    return str(images[0]) if isinstance(images, list) and images else "unknown"


PRESENT: Final = LayerCheck[ClusterFacts](
    name="daemonset-present", layer=Layer.DAEMONSET, about="the DaemonSet of node processes", look=_present
)
MADE: Final = LayerCheck[ClusterFacts](
    name="daemonset-pods-created", layer=Layer.DAEMONSET, about="that the DaemonSet's pods are created", look=_made
)
PODS: Final = LayerCheck[ClusterFacts](
    name="daemonset-pods-ready", layer=Layer.DAEMONSET, about="the pods of node processes", look=_pods
)
ROLLOUT: Final = LayerCheck[ClusterFacts](
    name="daemonset-one-image", layer=Layer.DAEMONSET, about="the images of node processes", look=_rollout
)
OTHERS: Final = LayerCheck[ClusterFacts](
    name="other-pods-ready",
    layer=Layer.DAEMONSET,
    about="controller, MPS host and usage exporter",
    look=_others,
)
CHECKS: Final = (PRESENT, MADE, PODS, ROLLOUT, OTHERS)
