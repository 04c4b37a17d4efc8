"""Check pods, claims and templates as users wrote them, and the events of nodes that prepared the claims."""

from collections.abc import Iterator
from typing import Final

from dra_driver.core.finding import Finding, Layer, Status, check, fail, finding, warn
from dra_driver.core.model.mig import no_compute_instance
from dra_driver.core.text import listed
from dra_driver.diagnose.doctor import facts as fact
from dra_driver.diagnose.doctor import views
from dra_driver.kube.state import Wire

_PREPARE: Final = frozenset({"FailedPrepareDynamicResources", "FailedToPrepareDynamicResources"})
_BELOW: Final = frozenset(
    {
        Layer.RIGHTS,
        Layer.DRIVER,
        Layer.NVML,
        Layer.UVM,
        Layer.DEVICE_NODES,
        Layer.SOCKETS,
        Layer.REGISTRATION,
        Layer.SECOND_PUBLISHER,
        Layer.CDI,
    }
)
"""Layers that can cause a prepare error; any other error belongs to the layer prepare."""


@check("claims-and-templates-exist", Layer.WORKLOAD, "the claims and templates of pods")
def _references(facts: fact.ClusterFacts) -> Iterator[Finding]:
    """Report claims and templates that pods name and that do not exist, often because of another namespace.

    For a whole cluster it is a warning, unless the pod or the object of that name elsewhere is about GPUs.
    """
    known_pods = views.concerns(facts)
    of_gpus = views.gpu_names(facts)
    templates = {views.key_of(item) for item in facts.items("templates")}
    claims = {views.key_of(item) for item in facts.items("claims")}
    for pod in facts.waiting_pods:
        namespace = fact.namespace_of(pod)
        for kind, names, known in (
            ("ResourceClaimTemplate", views.template_names(pod), templates),
            ("ResourceClaim", views.claim_names(pod), claims),
        ):
            for name in names:
                if (namespace, name) not in known:
                    is_ours = facts.about_workload or known_pods[views.key_of(pod)] or (kind, name) in of_gpus
                    status = Status.FAIL if is_ours else Status.WARN
                    elsewhere = sorted(place for place, other in known if other == name)
                    yield _missing(pod, kind, name, elsewhere, status)


def _missing(pod: Wire, kind: str, name: str, elsewhere: list[str], status: Status) -> Finding:
    namespace = fact.namespace_of(pod)
    where = f"; namespace {listed(elsewhere)} has an object of this name" if elsewhere else ""
    do = f"Create it in namespace {namespace}: a pod can use only objects of its namespace."
    return finding(
        status,
        f"names {kind} {name}, which does not exist in namespace {namespace}{where}",
        f"{kind} {namespace}/{name}",
        do if elsewhere else f"Create it in namespace {namespace}, or correct the name in the pod.",
        fact.subject_of("pod", pod),
        reason="InOtherNamespace" if elsewhere else "Missing" + kind,
    )


@check("classes-of-claims-exist", Layer.WORKLOAD, "the classes of claims")
def _classes(facts: fact.ClusterFacts) -> Iterator[Finding]:
    names = {fact.name_of(item) for item in facts.items("classes")}
    for name, users in sorted(views.used_classes(facts).items()):
        if name not in names:
            is_ours = facts.about_workload or "nvidia" in name or name.startswith("mig")
            yield finding(
                Status.FAIL if is_ours else Status.WARN,
                f"names DeviceClass {name}, which does not exist"
                + (f" (and {len(users) - 1} more do)" if len(users) > 1 else ""),
                f"an existing DeviceClass: {listed(sorted(names)) or 'none exists'}",
                "Correct the name, or create the class; kubectl dra classes apply creates classes for MIG profiles.",
                users[0],
            )


@check("device-plugin-resources", Layer.WORKLOAD, "pods that request a device plugin's resources")
def _plugin_resources(facts: fact.ClusterFacts) -> Iterator[Finding]:
    """Report pods that request the device plugin's resources without a provider of the resource."""
    given = {fact.text(item, "spec", "extendedResourceName") for item in facts.items("classes")}
    offered = {each.partition(":")[0] for node in facts.items("nodes") for each in views.plugin_offers(node)}
    for pod in facts.waiting_pods:
        asked = list(views.extended_resources(pod))
        lost = [name for name in asked if name not in given and name not in offered]
        if lost:
            yield fail(
                f"requests {listed(lost)}, but no DeviceClass and no device plugin provides it",
                "a claim, or a DeviceClass with this extendedResourceName (Kubernetes 1.36)",
                no_compute_instance(lost[0])
                or "kubectl dra migrate rewrites the workload; kubectl dra classes apply makes classes for "
                "nvidia.com/mig-*.",
                fact.subject_of("pod", pod),
                reason="ResourceNotProvided",
            )
        elif asked and fact.dicts(pod, "spec", "resourceClaims"):
            seen = f"requests {listed(asked)} and also has a claim: it gets both"
            do = "Remove one of the two."
            yield warn(
                seen, "a claim or an extended resource", do, fact.subject_of("pod", pod), reason="ResourceAndClaim"
            )


@check("pods-not-scheduled", Layer.WORKLOAD, "pods with claims that wait")
def _waiting(facts: fact.ClusterFacts) -> Iterator[Finding]:
    """Report pods with claims that the scheduler could not place; `explain` has the reasons. Skips other drivers."""
    known = views.concerns(facts)
    for pod in facts.waiting_pods:
        if known[views.key_of(pod)] is False:
            continue
        scheduled = fact.condition_of(pod, "PodScheduled")
        if fact.dicts(pod, "spec", "resourceClaims") and scheduled.get("status") == "False":
            seen = f"is not scheduled: {fact.text(scheduled, 'message') or fact.text(scheduled, 'reason')}"
            do = f"kubectl dra explain pod/{fact.name_of(pod)} -n {fact.namespace_of(pod)}"
            yield warn(seen, "a node", do, fact.subject_of("pod", pod))


@check("prepare-errors", Layer.PREPARE, "errors in the preparation of claims")
def _prepare(facts: fact.ClusterFacts) -> Iterator[Finding]:
    """Report the newest event of each failed prepare, except for claims of other drivers."""
    waiting = {views.key_of(pod): pod for pod in facts.waiting_pods}
    known = views.concerns(facts)
    own = facts.driver_names
    newest: dict[tuple[tuple[str, str], str], Wire] = {}
    for event in facts.items("events"):
        key = (fact.text(event, "involvedObject", "namespace"), fact.text(event, "involvedObject", "name"))
        message = fact.text(event, "message")
        is_cdi = "CDI device" in message
        if key not in waiting or not (fact.text(event, "reason") in _PREPARE or is_cdi):
            continue
        place = (key, "cdi" if is_cdi else "prepare")
        if place not in newest or _time(event) >= _time(newest[place]):
            newest[place] = event
    for (key, kind), event in sorted(newest.items()):
        message = " ".join(fact.text(event, "message").split())
        is_own = known[key] or any(name in message for name in own)
        if not is_own and known[key] is False:
            continue
        layer = views.layer_of(message, Layer.PREPARE)
        layer = layer if layer in _BELOW else Layer.PREPARE
        node = fact.text(waiting[key], "spec", "nodeName") or "its node"
        yield finding(
            Status.FAIL if is_own else Status.WARN,
            f"could not be started on {node}{'' if is_own else ' (it may be of another driver)'}: {message[:600]}",
            "a node that prepares the pod's claims",
            _do_about(layer, node),
            f"pod/{'/'.join(key)}",
            layer=layer,
            reason="CdiDeviceNotFound" if kind == "cdi" else "PrepareFailed",
        )


def _do_about(layer: Layer, node: str) -> str:
    if layer is Layer.REGISTRATION:
        return f"Check the driver's pod on {node}: kubectl dra doctor node/{node}"
    if layer is Layer.CDI:
        return (
            f"The container runtime of {node} has not read the CDI file: its CDI directories must include cdiDir of "
            f"the chart (/var/run/cdi); dra-driver doctor on the node compares them."
        )
    return (
        f"Follow the message. kubectl dra doctor node/{node} checks the node; dra-driver state on it lists its claims."
    )


def _time(event: Wire) -> str:
    return fact.text(event, "lastTimestamp") or fact.text(event, "eventTime") or fact.text(event, "firstTimestamp")


@check("claim-devices-ready", Layer.PREPARE, "the devices of claims")
def _claim_devices(facts: fact.ClusterFacts) -> Iterator[Finding]:
    """Check this driver's conditions of devices in the claims' ``status.devices`` (chart value claimStatus.enabled)."""
    own = facts.driver_names
    for claim in facts.items("claims"):
        for device in fact.dicts(claim, "status", "devices"):
            if fact.text(device, "driver") not in own:
                continue  # a network card that is not ready does not concern GPUs
            for condition in fact.dicts(device, "conditions"):
                if fact.text(condition, "type") == "Ready" and fact.text(condition, "status") == "False":
                    seen = (
                        f"device {fact.text(device, 'device')} is not ready: "
                        f"{fact.text(condition, 'message') or fact.text(condition, 'reason')}"
                    )
                    do = "docs/health.md lists how each cause ends; a new pod gets another device."
                    yield fail(seen, "devices that are ready", do, fact.subject_of("claim", claim))


@check("claims-end", Layer.PREPARE, "the end of claims")
def _stuck_claims(facts: fact.ClusterFacts) -> Iterator[Finding]:
    pods = {fact.text(pod, "metadata", "uid") for pod in facts.items("pods")}
    for claim in facts.items("claims"):
        users = fact.dicts(claim, "status", "reservedFor")
        gone = [
            fact.text(user, "name")
            for user in users
            if fact.text(user, "resource") == "pods" and fact.text(user, "uid") not in pods
        ]
        if users and len(gone) == len(users) and fact.text(claim, "metadata", "deletionTimestamp"):
            seen = f"is being deleted, but is reserved for pods that do not exist: {listed(gone)}"
            do = "The resource claim controller (kube-controller-manager) removes the reservation; read its log."
            yield warn(seen, "a claim that is deleted with its pods", do, fact.subject_of("claim", claim))
