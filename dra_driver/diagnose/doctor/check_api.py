"""Checks of the API server: that it answers, its version and gates, and which APIs it serves."""

import re
from collections.abc import Iterator
from typing import Final

from dra_driver.diagnose.doctor import facts as fact
from dra_driver.diagnose.doctor.check import LayerCheck
from dra_driver.diagnose.doctor.driver_view import driver_nodes, gpu_nodes, node_daemonsets, setting, shown
from dra_driver.diagnose.doctor.facts import ClusterFacts, Unanswered
from dra_driver.diagnose.doctor.feature_gates import GATES
from dra_driver.diagnose.doctor.finding import FindingStatus, Layer, LayerFinding
from dra_driver.diagnose.doctor.wire import dicts, name_of, text

OLDEST_MINOR: Final = 34
"""resource.k8s.io/v1 is served from Kubernetes 1.34 on."""
_VERSION: Final = re.compile(r"v?1\.(\d{1,3})\b")
_DROPPED: Final = "the API server drops fields of ResourceSlices"


def minor_of(version: str) -> int | None:
    """36 of ``v1.36.2``; None for what is no version."""
    found = _VERSION.match(version)
    return int(found[1]) if found else None


def _answers(facts: ClusterFacts) -> Iterator[LayerFinding]:
    found = facts.answers.get(fact.VERSION)
    address = text(facts.answers.get(fact.SERVER), "address")
    subject = "api-server" + (f" {address}" if address else "")
    if (
        isinstance(found, Unanswered)
        and facts.answers.get(fact.SERVER)
        and not isinstance(facts.answers.get(fact.SERVER), Unanswered)
    ):
        yield ANSWERS.finding(
            FindingStatus.FAIL, subject, found.seen, expected="an answer to GET /version", do=found.do
        )
        return
    if facts.knows(fact.SERVER):
        yield ANSWERS.finding(FindingStatus.OK, subject, "answers")


def _version(facts: ClusterFacts) -> Iterator[LayerFinding]:
    version = text(facts.value(fact.VERSION), "gitVersion")
    minor = minor_of(version)
    expected = f"Kubernetes 1.{OLDEST_MINOR} or newer"
    if minor is None:
        yield VERSION.finding(FindingStatus.UNKNOWN, "cluster", f"the version {version[:40]!r} cannot be read")
    elif minor < OLDEST_MINOR:
        do = "Upgrade the cluster: resource.k8s.io/v1 does not exist in this version."
        yield VERSION.finding(FindingStatus.FAIL, "cluster", f"Kubernetes {version}", expected=expected, do=do)
    else:
        yield VERSION.finding(FindingStatus.OK, "cluster", f"Kubernetes {version}")


def _kubelets(facts: ClusterFacts) -> Iterator[LayerFinding]:
    wanted = driver_nodes(facts)
    versions = {name_of(node): text(node, "status", "nodeInfo", "kubeletVersion") for node in facts.items("nodes")}
    old = sorted(
        name
        for name, version in versions.items()
        if name in wanted and (minor_of(version) or OLDEST_MINOR) < OLDEST_MINOR
    )
    for name in old:
        yield KUBELETS.finding(
            FindingStatus.FAIL,
            f"node/{name}",
            f"the kubelet is {versions[name]}",
            expected=f"a kubelet of 1.{OLDEST_MINOR} or newer: older ones do not know resource.k8s.io/v1",
            do="Upgrade the kubelet of this node, or keep the driver off it.",
        )


def _gates(facts: ClusterFacts) -> Iterator[LayerFinding]:
    dropped = [
        problem.message
        for status in gpu_nodes(facts).values()
        for problem in status.problems
        if _DROPPED in problem.message
    ]
    if not facts.knows(fact.GATES):
        if dropped:
            yield FEATURE_GATES.finding(
                FindingStatus.WARN,
                "cluster",
                dropped[0],
                expected="feature gates for partitions, shares and taints",
                do="Turn the gates on in the API server, scheduler, controller manager and kubelets, or upgrade to "
                "1.36, where they are on.",
            )
        elif not gpu_nodes(facts):
            facts.value(fact.GATES)  # raises: neither the gates nor their effects can be seen
        return
    gates, version = facts.value(fact.GATES), text(facts.value(fact.VERSION), "gitVersion")
    minor = minor_of(version) or OLDEST_MINOR
    for gate in GATES:
        on = gates.get(gate.name)
        if on or (on is None and minor >= gate.default_since):
            continue
        why = "" if minor >= gate.default_since else f" (off by default before 1.{gate.default_since})"
        status = FindingStatus.FAIL if gate.needed else FindingStatus.WARN
        yield FEATURE_GATES.finding(
            status,
            "cluster",
            f"the feature gate {gate.name} is off{why}: {gate.without}",
            expected=f"--feature-gates={gate.name}=true",
            do="Set it for the API server, scheduler, controller manager and kubelets, and restart them.",
        )
    if gates:
        off = [gate.name for gate in GATES if gates.get(gate.name) is False]
        if not off:
            yield FEATURE_GATES.finding(FindingStatus.OK, "cluster", "the feature gates that GPUs need are on")


def _served(facts: ClusterFacts) -> Iterator[LayerFinding]:
    versions = [text(item, "version") for item in dicts(facts.value(fact.RESOURCE_API), "versions")]
    if "v1" in versions:
        yield SERVED.finding(FindingStatus.OK, "resource.k8s.io", f"serves {', '.join(versions)}")
        return
    seen = f"serves {', '.join(versions)} alone" if versions else "is not served"
    yield SERVED.finding(
        FindingStatus.FAIL,
        "resource.k8s.io",
        seen,
        expected="resource.k8s.io/v1",
        do="Look at the API server's flags: --feature-gates with DynamicResourceAllocation=false or --runtime-config "
        "with resource.k8s.io/v1=false switches it off; it is on by default from Kubernetes 1.34 on.",
    )


def _crds(facts: ClusterFacts) -> Iterator[LayerFinding]:
    found = {text(item, "name") for item in dicts(facts.value(fact.GPU_API), "resources")}
    daemonsets = node_daemonsets(facts) if facts.knows(fact.DAEMONSETS) else []
    wanted = [
        (name, switch)
        for name, switch in (("gpupolicies", "POLICY_OBJECTS"), ("gpunodes", "GPU_NODE"))
        if not daemonsets or any(setting(item, switch) != "false" for item in daemonsets)
    ]
    missing = [name for name, _ in wanted if name not in found]
    if not missing:
        if wanted:
            names = shown([name for name, _ in wanted])
            yield CRDS.finding(FindingStatus.OK, "gpu.dra-driver.io/v1alpha1", f"serves {names}")
        return
    status = FindingStatus.FAIL if daemonsets else FindingStatus.WARN
    yield CRDS.finding(
        status,
        "gpu.dra-driver.io/v1alpha1",
        f"does not serve {', '.join(missing)}: the CustomResourceDefinitions are missing",
        expected="the CustomResourceDefinitions that the node processes are set to use",
        do="Install them: helm upgrade does (chart value crds), or kubectl apply -f deploy/base/crds.yaml.",
    )


def _own_rights(facts: ClusterFacts) -> Iterator[LayerFinding]:
    """What this user may not ask; each such question leaves others open."""
    refused = [found for found in facts.unanswered.values() if "(403)" in found.seen]
    for found in refused:
        yield OWN_RIGHTS.finding(FindingStatus.UNKNOWN, "user", found.seen, expected="an answer", do=found.do)
    for item in facts.items(fact.PARTLY_READ):
        yield OWN_RIGHTS.finding(
            FindingStatus.UNKNOWN,
            "user",
            f"{text(item, 'seen')}; {text(item, 'path')} was read alone",
            expected="an answer for the whole cluster",
            do="Ask for the ClusterRole dra-driver-viewer, or name the namespace with -n.",
        )


def _driver_rights(facts: ClusterFacts) -> Iterator[LayerFinding]:
    reviews = facts.items(fact.DRIVER_RIGHTS)
    denied: dict[str, list[str]] = {}
    for item in reviews:
        if item.get("allowed") is not True:
            denied.setdefault(text(item, "account"), []).append(text(item, "right"))
    for account, rights in sorted(denied.items()):
        yield DRIVER_RIGHTS.finding(
            FindingStatus.FAIL,
            f"serviceaccount/{account}",
            f"may not {shown(rights)}",
            expected="the ClusterRole dra-driver-node, bound to this account",
            do="Apply the chart's rbac.yaml again (deploy/base/rbac.yaml), or look for what removed the binding.",
        )
    if reviews and not denied:
        accounts = sorted({text(item, "account") for item in reviews})
        yield DRIVER_RIGHTS.finding(FindingStatus.OK, f"serviceaccount/{shown(accounts)}", "has its rights")


ANSWERS: Final = LayerCheck[ClusterFacts](
    name="api-server-answers", layer=Layer.API_SERVER, about="an API server that answers", look=_answers
)
VERSION: Final = LayerCheck[ClusterFacts](
    name="kubernetes-version", layer=Layer.KUBERNETES, about="the version of Kubernetes", look=_version
)
KUBELETS: Final = LayerCheck[ClusterFacts](
    name="kubelet-versions", layer=Layer.KUBERNETES, about="the versions of kubelets", look=_kubelets
)
FEATURE_GATES: Final = LayerCheck[ClusterFacts](
    name="feature-gates", layer=Layer.KUBERNETES, about="the feature gates", look=_gates
)
SERVED: Final = LayerCheck[ClusterFacts](
    name="api-served", layer=Layer.API, about="that resource.k8s.io/v1 is served", look=_served
)
CRDS: Final = LayerCheck[ClusterFacts](
    name="crds", layer=Layer.CRDS, about="the CustomResourceDefinitions of the driver", look=_crds
)
OWN_RIGHTS: Final = LayerCheck[ClusterFacts](
    name="your-rights", layer=Layer.RIGHTS, about="the rights of this user", look=_own_rights
)
DRIVER_RIGHTS: Final = LayerCheck[ClusterFacts](
    name="driver-rights", layer=Layer.RIGHTS, about="the rights of the driver's accounts", look=_driver_rights
)
CHECKS: Final = (ANSWERS, VERSION, KUBELETS, FEATURE_GATES, SERVED, CRDS, OWN_RIGHTS, DRIVER_RIGHTS)
