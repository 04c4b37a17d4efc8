"""Fixes from explain work: after applying a fix, explain reports that the pod fits."""

import re
import time
from collections.abc import Callable, Iterator, Mapping
from copy import deepcopy
from typing import Any, Final

import pytest
import yaml
from msgspec.structs import replace

from dra_driver.core.finding import Status
from dra_driver.diagnose.doctor.cluster import DoctorScope, diagnose
from dra_driver.diagnose.doctor.reading import read_facts
from dra_driver.kube.state import ClusterState
from dra_driver.kubectl.explain import Answer, Explanation, explain, explain_pods, pod_subject
from tests.contract.kubectl.test_agreement import OTHER, SPACE, Answers, World
from tests.doctor_faults.cluster import SERVER, Cluster, by_template, template, workload
from tests.fakes.dra_objects import DRIVER, claim, exactly, resource_slice

NOT_BY_OBJECTS: Final = {
    "wait until the GPU recovers": "a reset, reboot or repair of hardware",
    "wait: the node does not accept new claims": "the node process attaches to the driver again",
    "repair the GPU": "hardware",
    "switch MIG mode on": "nvidia-smi on the node; the node process then publishes partitions",
    "enable ": "a flag of API server, scheduler and kubelets; the node process then publishes other devices",
    "run kubectl dra classes": "not a change of objects that exist",
}
"""Fixes that the objects of a cluster cannot show, with the reason."""
Apply = Callable[[ClusterState, dict[str, Any], str], None]


def _claims_end(state: ClusterState, _request: dict[str, Any], names: str) -> None:
    for label in re.findall(r"([a-z0-9-]+/[a-z0-9-]+) \(", names):
        kept = [each for each in state.claims if label != f"{SPACE}/{each['metadata']['name']}"]
        state.claims[:] = kept  # type: ignore[index]


def _tolerated(_state: ClusterState, request: dict[str, Any], wanted: str) -> None:
    request.setdefault("tolerations", []).extend(yaml.safe_load(wanted))


def _undrained(state: ClusterState, _request: dict[str, Any], _: str) -> None:
    for item in state.slices:
        for device in item["spec"].get("devices") or ():
            kept = [each for each in device.get("taints") or () if each["key"] != "gpu.dra-driver.io/drained"]
            device["taints"] = kept


def _less(_state: ClusterState, request: dict[str, Any], amount: str, name: str) -> None:
    request.setdefault("capacity", {}).setdefault("requests", {})[name] = amount


def _node_allowed(state: ClusterState, _request: dict[str, Any], _: str) -> None:
    state.nodes[:] = [{**node, "spec": {}} for node in state.nodes]  # type: ignore[index]


def _relaxed(_state: ClusterState, request: dict[str, Any], _: str) -> None:
    request.pop("selectors", None)


def _other_class(_state: ClusterState, request: dict[str, Any], _: str) -> None:
    request["deviceClassName"] = DRIVER
    request.pop("selectors", None)


FIXES: Final[Mapping[str, Callable[..., None]]] = {
    r"(?:end (?:the |all )?workloads? that uses? (?:it|the GPU)|delete the claim if [^:]+): (.+)": _claims_end,
    r"GpuPolicy \S* ?reserves it for claims with tolerations: (\[.+?\]); add it.*": _tolerated,
    r"(wait: the GPU is drained).*undrain.*": _undrained,
    r"request at most (\S+) of (\S+)": _less,
    r"request capacity\.requests\.(?P<name>\S+): (?P<amount>\S+) or less": lambda state, request, name, amount: _less(
        state, request, amount, name
    ),
    r"(remove capacity\.requests\.)(\S+).*": lambda _state, request, _, name: request["capacity"]["requests"].pop(name),
    r"(relax the selector so that it accepts).*": _relaxed,
    r"(request another DeviceClass)": _other_class,
    r"request at most (\d+) devices?: .*": lambda _state, request, count: request.update(count=int(count)),
    r"(allow the pod on this node).*": _node_allowed,
}


def applied(state: ClusterState, pod: Mapping[str, Any], fix: str) -> ClusterState | None:
    """The state after all parts of a fix but its alternatives; None if objects cannot show it."""
    if any(words in fix for words in NOT_BY_OBJECTS):
        return None
    state = replace(
        state, **{name: deepcopy(list(getattr(state, name))) for name in ("claims", "slices", "nodes", "templates")}
    )
    name = pod["spec"]["resourceClaims"][0]["resourceClaimTemplateName"]
    template = next(each for each in state.templates if each["metadata"]["name"] == name)
    request = template["spec"]["spec"]["devices"]["requests"][0]["exactly"]
    for part in re.split(r"; equally near|; or end ", fix)[0].split("; and "):
        pattern, match = next(
            ((pattern, match) for pattern in FIXES if (match := re.fullmatch(pattern, part))), ("", None)
        )
        assert match is not None, f"an unknown kind of fix: {part}"
        FIXES[pattern](state, request, *match.groups())
    return state


def asked(answers: Answers, state: ClusterState, name: str) -> Explanation:
    return explain(state, pod_subject(state, SPACE, name), scheduler=answers.scheduler)


def failures(seed: int, tried: dict[str, int]) -> Iterator[str]:
    answers = Answers(World(seed))
    for pod in [each for each in answers.state.pods if each["metadata"]["namespace"] == SPACE]:
        name = pod["metadata"]["name"]
        report = asked(answers, answers.state, name)
        source = (pod["spec"].get("resourceClaims") or [{}])[0]
        if report.verdict.answer is Answer.UNHEALTHY:
            yield from _replaced(answers, pod, report, tried)
        elif report.nearest_miss is not None and "resourceClaimTemplateName" in source:
            fix = report.nearest_miss.fix
            state = applied(answers.ruled, pod, fix)
            kind = " ".join(fix.split()[:4])
            tried[kind if state else "not by objects"] = tried.get(kind if state else "not by objects", 0) + 1
            if state and (again := asked(answers, state, name)).verdict.answer is not Answer.FITS:
                yield f"{seed}: {name}: {fix!r} leaves: {again.verdict.sentence} {again.nearest_miss}"


def _replaced(answers: Answers, pod: Mapping[str, Any], report: Explanation, tried: dict[str, int]) -> Iterator[str]:
    """A new pod gets a healthy device if the fix says so, and only then."""
    state, cause = answers.ruled, next((each for each in report.causes if each.code == "deviceUnhealthy"), None)
    if cause is None:
        return  # the device is not published
    claim_name = pod["spec"]["resourceClaims"][0]["resourceClaimName"]
    users = re.findall(r"run-\d+-\d+", cause.fix.partition(":")[0])
    claims = [deepcopy(dict(each)) for each in state.claims]
    for each in claims:
        if each["metadata"]["name"] == claim_name:
            users = users or [user["name"] for user in each["status"]["reservedFor"]]
            each["status"] = {}
            if "remove the tolerations" in cause.fix:
                others = [{"key": key, "operator": "Exists"} for key in OTHER.values()]
                each["spec"]["devices"]["requests"][0]["exactly"]["tolerations"] = others
    kept = [each for each in state.pods if each["metadata"]["name"] not in users]
    new = {"metadata": {"name": "new", "namespace": SPACE}, "spec": {**pod["spec"], "nodeName": ""}}
    ended = replace(state, claims=claims, pods=kept)
    (again,) = explain_pods(ended, [new], scheduler=answers.scheduler)
    offers = "a new one fits" in cause.fix
    tried[f"a new pod: {offers}"] = tried.get(f"a new pod: {offers}", 0) + 1
    if offers and again.verdict.answer is not Answer.FITS:
        yield f"{cause.fix!r}, but: {again.verdict.sentence}"
    if not offers and "toleration" not in str(claims) and again.verdict.answer is Answer.FITS:
        yield f"{cause.fix!r}, but a new pod fits"


def test_a_fix_that_is_offered_works() -> None:
    tried: dict[str, int] = {}
    assert [found for seed in range(40) for found in failures(seed, tried)] == []
    assert sum(tried.values()) > 10


@pytest.mark.slow
def test_fixes_of_many_clusters_work() -> None:
    tried: dict[str, int] = {}
    assert [found for seed in range(40, 540) for found in failures(seed, tried)] == []


def _extended(name: str) -> Any:
    return lambda api: [each["spec"].update(extendedResourceName=name) for each in api.classes]


DOCTOR: Final[Mapping[str, tuple[Callable[[Cluster], Any], str, Callable[[Cluster], Any]]]] = {
    "node-ready": (
        lambda api: api.nodes[0]["spec"].update(unschedulable=True),
        "kubectl uncordon gpu-a",
        lambda api: api.nodes[0]["spec"].pop("unschedulable"),
    ),
    "node-labels": (
        lambda api: [each["metadata"]["labels"].pop("nvidia.com/gpu.present", "") for each in api.nodes],
        "kubectl label node NAME nvidia.com/gpu.present=true",
        lambda api: [each["metadata"]["labels"].update({"nvidia.com/gpu.present": "true"}) for each in api.nodes[:2]],
    ),
    "classes-present": (
        lambda api: api.classes.clear(),
        "kubectl apply -f deploy/base/deviceclasses.yaml",
        lambda api: api.classes.extend(Cluster().classes),
    ),
    "slices-of-missing-nodes": (
        lambda api: api.nodes.pop(1),
        "kubectl delete resourceslices --field-selector spec.nodeName",
        lambda api: api.slices.pop(1),
    ),
    "extended-resources": (
        _extended("nvidia.com/gpu"),
        "Remove extendedResourceName from all classes but one",
        lambda api: [each["spec"].pop("extendedResourceName") for each in api.classes[1:]],
    ),
    "claims-and-templates-exist": (
        lambda api: api.pods.append(workload(**by_template("t"))),
        "Create it in namespace team-a",
        lambda api: api.templates.append(template("t")),
    ),
    "classes-of-claims-exist": (
        lambda api: api.claims.append(claim("c", exactly(deviceClassName="nvidia.x"), namespace=SPACE)),
        "Correct the name",
        lambda api: api.claims.__setitem__(0, claim("c", namespace=SPACE)),
    ),
    "pools-complete": (
        lambda api: api.slices.append(resource_slice("gpu-a", generation=0, name="old")),
        "The node process deletes them",
        lambda api: api.slices.pop(),
    ),
}
"""Checks of doctor whose fix is a change of objects: what breaks them, words of the fix, the fix. Fixes of other checks
are changes of a node, its runtime or driver, of flags, or of the installation (helm)."""


@pytest.mark.parametrize("check", DOCTOR)
def test_a_fix_of_doctor_ends_the_finding(check: str) -> None:
    breaks, words, mends = DOCTOR[check]
    api = Cluster()

    def fixes() -> list[str]:
        report = diagnose(read_facts(api, server=SERVER), DoctorScope(), clock=time.monotonic)
        return [each.fix for each in report.findings if each.check == check and each.status is not Status.OK]

    assert fixes() == []
    breaks(api)
    assert [words in fix for fix in fixes()][:1] == [True]
    mends(api)
    assert fixes() == []
