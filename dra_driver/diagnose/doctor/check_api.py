"""Check the API server: answers, version, feature gates and served APIs.

The API server reports its gates as ``kubernetes_feature_enabled{name="...",stage="..."} 1`` (k8s.io/component-base
metrics/prometheus/feature/metrics.go); no API object has them. Scheduler and kubelets have separate gates, which
administrators normally set alike. Stages and defaults: kubernetes/kubernetes pkg/features/kube_features.go.
"""

import re
from collections.abc import Iterator
from typing import Final, NamedTuple

from dra_driver.core.finding import Finding, Layer, Status, check, fail, finding, ok, unknown, warn
from dra_driver.core.text import listed
from dra_driver.diagnose.doctor import facts as fact
from dra_driver.diagnose.doctor.facts import ClusterFacts, Unanswered, dicts, name_of, setting, text

OLDEST_MINOR: Final = 34
"""Kubernetes 1.34 is the first version that serves resource.k8s.io/v1."""
_VERSION: Final = re.compile(r"v?1\.(\d{1,3})\b")
_DROPPED: Final = "the API server drops fields of ResourceSlices"
_LINE: Final = re.compile(
    r'^kubernetes_feature_enabled\{name="(D[A-Za-z0-9]{2,80})",stage="[A-Z]*"\} ([01])$', re.MULTILINE
)


class GateUse(NamedTuple):
    """A feature gate that this driver uses; ``without`` is the consequence while it is off.

    ``default_since`` is the minor version that turned it on. All of device allocation depends on a ``needed`` gate.
    """

    name: str
    without: str
    default_since: int = 36
    needed: bool = False


GATES: Final = (
    GateUse("DynamicResourceAllocation", "no pod gets devices by a claim", default_since=34, needed=True),
    GateUse("DRAPartitionableDevices", "MIG partitions that do not exist yet are not published"),
    GateUse("DRAConsumableCapacity", "shares of GPUs are not published"),
    GateUse("DRADeviceTaints", "unhealthy, drained and reserved GPUs get no taint, so new claims may get them"),
    GateUse("DRAExtendedResource", "pods that request nvidia.com/gpu get no device by a DeviceClass"),
)


def gates_in(metrics: str) -> dict[str, bool]:
    """The gates of device allocation in an API server's metrics."""
    relevant = ("DRA", "DynamicResourceAllocation")
    return {name: value == "1" for name, value in _LINE.findall(metrics) if name.startswith(relevant)}


def minor_of(version: str) -> int | None:
    """36 of ``v1.36.2``; None for text that is not a version."""
    found = _VERSION.match(version)
    return int(found[1]) if found else None


@check("api-server-answers", Layer.API_SERVER, "an answer of the API server")
def _answers(facts: ClusterFacts) -> Iterator[Finding]:
    found, server = facts.answers.get(fact.VERSION), facts.answers.get(fact.SERVER)
    address = text(server, "address")
    subject = "api-server" + (f" {address}" if address else "")
    if isinstance(found, Unanswered) and server and not isinstance(server, Unanswered):
        yield fail(found.seen, "an answer to GET /version", found.fix, subject)
    elif facts.knows(fact.SERVER):
        yield ok("answers", subject)


@check("kubernetes-version", Layer.KUBERNETES, "the version of Kubernetes")
def _version(facts: ClusterFacts) -> Iterator[Finding]:
    version = text(facts.value(fact.VERSION), "gitVersion")
    minor = minor_of(version)
    expected = f"Kubernetes 1.{OLDEST_MINOR} or newer"
    if minor is None:
        yield unknown(f"the version {version[:40]!r} cannot be read", "", "", "cluster", reason="UnreadableVersion")
    elif minor < OLDEST_MINOR:
        do = "Upgrade the cluster: resource.k8s.io/v1 does not exist in this version."
        yield fail(f"Kubernetes {version}", expected, do, "cluster", reason="OldKubernetes")
    else:
        yield ok(f"Kubernetes {version}", "cluster")


@check("kubelet-versions", Layer.KUBERNETES, "the versions of kubelets")
def _kubelets(facts: ClusterFacts) -> Iterator[Finding]:
    wanted = facts.driver_nodes
    versions = {name_of(node): text(node, "status", "nodeInfo", "kubeletVersion") for node in facts.items("nodes")}
    old = sorted(
        name
        for name, version in versions.items()
        if name in wanted and (minor_of(version) or OLDEST_MINOR) < OLDEST_MINOR
    )
    for name in old:
        yield fail(
            f"the kubelet is {versions[name]}",
            f"a kubelet of 1.{OLDEST_MINOR} or newer: older ones do not support resource.k8s.io/v1",
            "Upgrade the kubelet of this node, or keep the driver off it.",
            f"node/{name}",
        )


@check("feature-gates", Layer.KUBERNETES, "the feature gates")
def _gates(facts: ClusterFacts) -> Iterator[Finding]:
    dropped = [
        problem.message
        for status in facts.gpu_nodes.values()
        for problem in status.problems
        if _DROPPED in problem.message
    ]
    if not facts.knows(fact.GATES):
        if dropped:
            seen = dropped[0]
            do = (
                "Turn the gates on in the API server, scheduler, controller manager and kubelets, or upgrade to "
                "1.36, where they are on."
            )
            yield warn(seen, "feature gates for partitions, shares and taints", do, "cluster", reason="FieldsDropped")
        elif not facts.gpu_nodes:
            facts.value(fact.GATES)  # raises: neither the gates nor their effects are readable
        return
    gates, version = facts.value(fact.GATES), text(facts.value(fact.VERSION), "gitVersion")
    minor = minor_of(version) or OLDEST_MINOR
    for gate in GATES:
        on = gates.get(gate.name)
        if on or (on is None and minor >= gate.default_since):
            continue
        why = "" if minor >= gate.default_since else f" (off by default before 1.{gate.default_since})"
        status = Status.FAIL if gate.needed else Status.WARN
        seen = f"the feature gate {gate.name} is off{why}: {gate.without}"
        do = "Set it for the API server, scheduler, controller manager and kubelets, and restart them."
        yield finding(status, seen, f"--feature-gates={gate.name}=true", do, "cluster", reason="FeatureGateOff")
    if gates:
        off = [gate.name for gate in GATES if gates.get(gate.name) is False]
        if not off:
            yield ok("the feature gates that GPUs need are enabled", "cluster")


@check("api-served", Layer.API, "resource.k8s.io/v1 in the served APIs")
def _served(facts: ClusterFacts) -> Iterator[Finding]:
    versions = [text(item, "version") for item in dicts(facts.value(fact.RESOURCE_API), "versions")]
    if "v1" in versions:
        yield ok(f"serves {', '.join(versions)}", "resource.k8s.io")
        return
    seen = f"serves only {', '.join(versions)}" if versions else "is not served"
    do = (
        "Check the API server's flags: --feature-gates with DynamicResourceAllocation=false or --runtime-config "
        "with resource.k8s.io/v1=false disables it; Kubernetes 1.34 and newer enable it by default."
    )
    yield fail(seen, "resource.k8s.io/v1", do, "resource.k8s.io")


@check("crds", Layer.CRDS, "the CustomResourceDefinitions of the driver")
def _crds(facts: ClusterFacts) -> Iterator[Finding]:
    found = {text(item, "name") for item in dicts(facts.value(fact.GPU_API), "resources")}
    daemonsets = facts.node_daemonsets if facts.knows(fact.DAEMONSETS) else []
    wanted = [
        (name, switch)
        for name, switch in (("gpupolicies", "POLICY_OBJECTS"), ("gpunodes", "GPU_NODE"))
        if not daemonsets or any(setting(item, switch) != "false" for item in daemonsets)
    ]
    missing = [name for name, _ in wanted if name not in found]
    if not missing:
        if wanted:
            names = listed([name for name, _ in wanted])
            yield ok(f"serves {names}", "gpu.dra-driver.io/v1alpha1")
        return
    status = Status.FAIL if daemonsets else Status.WARN
    yield finding(
        status,
        f"does not serve {', '.join(missing)}: the CustomResourceDefinitions are missing",
        "the CustomResourceDefinitions that the node processes are configured to use",
        "Install them: helm upgrade does (chart value crds), or kubectl apply -f deploy/base/crds.yaml.",
        "gpu.dra-driver.io/v1alpha1",
    )


@check("your-rights", Layer.RIGHTS, "the permissions of this user")
def _own_rights(facts: ClusterFacts) -> Iterator[Finding]:
    """Report requests that this user has no permission for. Each leaves other checks without an answer."""
    refused = [found for found in facts.unanswered.values() if "(403)" in found.seen]
    for found in refused:
        yield unknown(found.seen, "an answer", found.fix, "user", reason="ReviewUnanswered")
    for item in facts.items(fact.PARTLY_READ):
        seen = f"{text(item, 'seen')}; read only {text(item, 'path')}"
        do = "Request the ClusterRole dra-driver-viewer, or name the namespace with -n."
        yield unknown(seen, "an answer for the whole cluster", do, "user", reason="NamespaceOnly")


@check("driver-rights", Layer.RIGHTS, "the permissions of the driver's accounts")
def _driver_rights(facts: ClusterFacts) -> Iterator[Finding]:
    reviews = facts.items(fact.DRIVER_RIGHTS)
    denied: dict[str, list[str]] = {}
    for item in reviews:
        if item.get("allowed") is not True:
            denied.setdefault(text(item, "account"), []).append(text(item, "right"))
    for account, rights in sorted(denied.items()):
        seen = f"may not {listed(rights)}"
        do = "Apply the chart's rbac.yaml again (deploy/base/rbac.yaml), or find out what removed the binding."
        yield fail(seen, "the ClusterRole dra-driver-node, bound to this account", do, f"serviceaccount/{account}")
    if reviews and not denied:
        accounts = sorted({text(item, "account") for item in reviews})
        yield ok("has its permissions", f"serviceaccount/{listed(accounts)}")
