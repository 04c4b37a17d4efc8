"""Explanations agree with what a real scheduler does with the same pods.

The pods are of every kind that a scheduler rejects or places, with devices of a driver that does not run: the scheduler
only reads ResourceSlices. The slices select the node by its label, because the kubelet deletes slices with its node
name when it starts.
"""

import os
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field, replace
from typing import Any

import pytest

from dra_driver.core.errors import NotFoundError
from dra_driver.kube.connection import Connection
from dra_driver.kube.rest import RestClient, Timeouts
from dra_driver.kube.state import KINDS, read_cluster, with_objects
from dra_driver.kube.state_file import objects_of
from dra_driver.kubectl.explain import Explanation, explain, explain_pods, pod_subject
from dra_driver.kubectl.explain.evaluation import scheduler_of
from dra_driver.kubectl.explain.manifests import pods_in
from dra_driver.kubectl.explain.report import Answer
from dra_driver.sim.apiserver.jsonvalue import dig, entries
from tests.e2e.cluster import RealCluster, wait
from tests.e2e.forms import pod
from tests.e2e.gates import EXTENDED, PARTITIONS, SHARES, TAINTS, missing

Obj = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Case:
    """A pod and its objects. ``code`` is the cause that explain has to name, "" when the pod fits.

    ``scheduler`` is a part of the scheduler's message, "" when the scheduler never considers the pod. ``needs`` are
    feature gates.
    """

    name: str
    code: str = ""
    scheduler: str = ""
    _: KW_ONLY
    requests: Sequence[Obj] = ()
    constraints: Sequence[Obj] = ()
    pod: Obj = field(default_factory=dict)
    resources: Obj = field(default_factory=dict)
    claim: Obj = field(default_factory=dict)
    others: Sequence[Obj] = ()
    needs: frozenset[str] = frozenset()

    def objects(self) -> list[Obj]:
        entry = self.claim or ({"resourceClaimTemplateName": self.name} if self.requests else {})
        container: Obj = {"name": "main", "image": "registry.k8s.io/pause:3.10", "resources": self.resources}
        spec: Obj = {"containers": [container], "terminationGracePeriodSeconds": 0, **self.pod}
        made: list[Obj] = [*self.others]
        if entry:
            spec["resourceClaims"] = [{"name": "gpu", **entry}]
        if self.requests:
            devices = {"requests": list(self.requests), "constraints": list(self.constraints)}
            header = {
                "apiVersion": "resource.k8s.io/v1",
                "kind": "ResourceClaimTemplate",
                "metadata": {"name": self.name},
            }
            made.append({**header, "metadata": {"name": self.name}, "spec": {"spec": {"devices": devices}}})
        return [*made, pod(self.name, spec)]


class Cluster:
    """Names and objects of one driver: its classes and slices, as far as the cluster's gates keep them.

    ``counters_beside``: counter sets are in the slice of the devices that consume them, as 1.34 wants it.
    """

    def __init__(self, mark: str, node: str, gates: Mapping[str, bool], *, counters_beside: bool) -> None:
        self._gates, self._counters_beside = gates, counters_beside
        self.driver = f"explain-{mark}.example.com"
        self.whole, self.part, self.shared = f"whole-{mark}", f"part-{mark}", f"shared-{mark}"
        self.resource = f"{self.driver}/gpu"
        self._mark = mark
        self._node = node

    def attribute(self, name: str) -> str:
        return f'device.attributes["{self.driver}"].{name}'

    def request(self, class_name: str, *expressions: str, name: str = "gpu", **fields: Any) -> Obj:
        selectors = [{"cel": {"expression": expression}} for expression in expressions]
        return {"name": name, "exactly": {"deviceClassName": class_name, "selectors": selectors, **fields}}

    def classes(self) -> list[Obj]:
        return [
            self._class(self.whole, "gpu", extendedResourceName=self.resource),
            self._class(self.part, "part"),
            self._class(self.shared, "shared"),
        ]

    def slices(self) -> list[Obj]:
        taint = {"key": "example.com/broken", "value": "xid79", "effect": "NoSchedule"}
        whole = [
            self._device("a100-0", "gpu", model="A100", memory="40Gi", root="r0"),
            self._device("a100-1", "gpu", model="A100", memory="40Gi", root="r0"),
            self._device("h100-0", "gpu", model="H100", memory="80Gi", root="r1"),
            self._device("h100-1", "gpu", taints=[taint], model="H100", memory="80Gi", root="r1"),
            self._device("h100-2", "gpu", taints=[taint], model="H100", memory="80Gi", root="r1"),
            self._device("l4-0", "gpu", model="L4", memory="24Gi", root="r2"),
            self._device("l4-1", "gpu", model="L4", memory="24Gi", root="r3"),
        ]
        shared = self._device("shared-0", "shared", allowMultipleAllocations=True, model="L4", memory="24Gi", root="r4")
        sizes = {"part-a": "20Gi", "part-b": "30Gi"}
        parts = [
            self._device(
                name,
                "part",
                consumesCounters=[{"counterSet": "gpu-0", "counters": {"memory": {"value": size}}}],
                model="H100",
                memory=size,
                root="r5",
            )
            for name, size in sizes.items()
        ]
        counters = [{"name": "gpu-0", "counters": {"memory": {"value": "40Gi"}}}]
        found = [self._slice("whole", devices=[*whole, *([shared] if self._gates.get(SHARES) else [])])]
        if not self._gates.get(PARTITIONS):
            return found
        if self._counters_beside:
            return [*found, self._slice("parts", sharedCounters=counters, devices=parts)]
        counted = self._slice("counters", pool="parts", count=2, sharedCounters=counters)
        return [*found, counted, self._slice("parts", count=2, devices=parts)]

    def incomplete(self) -> Obj:
        return self._slice(
            "half", count=2, devices=[self._device("half-0", "half", model="T4", memory="16Gi", root="r6")]
        )

    def half_class(self) -> Obj:
        return self._class(f"half-{self._mark}", "half")

    def fitting(self) -> list[Case]:
        return self._possible(self._fitting())

    def _fitting(self) -> list[Case]:
        model = self.attribute("model")
        either = [
            {"name": name, "deviceClassName": self.whole, "selectors": [{"cel": {"expression": f'{model} == "{of}"'}}]}
            for name, of in (("best", "B200"), ("next", "A100"))
        ]
        tolerated = {"key": "example.com/broken", "operator": "Exists"}
        named = self.attribute("name")
        share = {"requests": {"memory": "8Gi"}}
        return [
            Case("one-gpu", requests=[self.request(self.whole, f'{model} == "A100"')]),
            Case("second-best", requests=[{"name": "gpu", "firstAvailable": either}]),
            Case("share", requests=[self.request(self.shared, capacity=share)], needs=frozenset({SHARES})),
            Case("another-share", requests=[self.request(self.shared, capacity=share)], needs=frozenset({SHARES})),
            Case(
                "tolerates",
                requests=[self.request(self.whole, f'{named} == "h100-1"', tolerations=[tolerated])],
                needs=frozenset({TAINTS}),
            ),
            Case("extended", resources={"limits": {self.resource: "1"}}, needs=frozenset({EXTENDED})),
            Case("part", requests=[self.request(self.part, f'{named} == "part-a"')], needs=frozenset({PARTITIONS})),
        ]

    def pending(self) -> list[Case]:
        found = [*self._devices_short(), *self._combinations(), *self._never_evaluated()]
        return self._possible([*found, *self._not_caused_by_devices()])

    def _possible(self, cases: Iterable[Case]) -> list[Case]:
        return [case for case in cases if not missing(case.needs, self._gates)]

    def _short(self, name: str, code: str, expression: str, *, of: str = "", needs: str = "", **request: Any) -> Case:
        return Case(
            name=name,
            code=code,
            scheduler="cannot allocate all claims",
            requests=[self.request(of or self.whole, *filter(None, [expression]), **request)],
            needs=frozenset({needs} if needs else ()),
        )

    def _devices_short(self) -> list[Case]:
        model, named = self.attribute("model"), self.attribute("name")
        capacity = f'device.capacity["{self.driver}"].memory'
        too_much = {"requests": {"memory": "16Gi"}}
        return [
            self._short("in-use", "inUse", f'{model} == "A100"'),
            self._short("tainted", "tainted", f'{named} == "h100-2"', needs=TAINTS),
            self._short("too-small", "requestSelector", f'{capacity}.compareTo(quantity("100Gi")) >= 0'),
            self._short("other-class", "classSelector", f'{named} == "a100-0"', of=self.part),
            self._short("counters", "counterShort", f'{named} == "part-b"', of=self.part, needs=PARTITIONS),
            self._short("capacity", "capacityShort", "", of=self.shared, needs=SHARES, capacity=too_much),
        ]

    def _combinations(self) -> list[Case]:
        model = self.attribute("model")
        linked = self._short("constraint", "constraint", f'{model} == "L4"', count=2)
        return [
            replace(linked, constraints=[{"matchAttribute": f"{self.driver}/root"}]),
            self._short("too-many", "requestSelector", f'{model} == "L4"', count=3),
            self._short("all", "inUse", f'{model} == "A100"', allocationMode="All"),
        ]

    def _never_evaluated(self) -> list[Case]:
        return [
            Case(
                "cel-error",
                "celError",
                "no such key",
                requests=[self.request(self.whole, f'{self.attribute("nosuch")} == "x"')],
            ),
            Case(
                "over-limit",
                "notWeighable",
                "exceeds the claim limit",
                requests=[self.request(self.whole, name="a", count=20), self.request(self.whole, name="b", count=20)],
            ),
            Case("no-class", "classMissing", "does not exist", requests=[self.request(f"missing-{self._mark}")]),
            Case("no-template", "templateMissing", claim={"resourceClaimTemplateName": "missing"}),
            Case("no-claim", "claimMissing", claim={"resourceClaimName": "missing"}),
            Case(
                "no-resource", "resourceUnknown", "Insufficient", resources={"limits": {f"{self.driver}/missing": "1"}}
            ),
        ]

    def _not_caused_by_devices(self) -> list[Case]:
        requests = [self.request(self.whole, f'{self.attribute("root")} == "r2"')]

        def volume(claim: str) -> Obj:
            return {"volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": claim}}]}

        return [
            Case(
                "elsewhere",
                "nodesUnfit",
                "node affinity/selector",
                requests=requests,
                pod={"nodeSelector": {"example.com/nowhere": "true"}},
            ),
            Case("no-cpu", "nodesUnfit", "Insufficient cpu", requests=requests, resources={"requests": {"cpu": "4k"}}),
            Case(
                "gated", "schedulingGates", requests=requests, pod={"schedulingGates": [{"name": "example.com/wait"}]}
            ),
            Case("no-volume", "volumeWaiting", "not found", requests=requests, pod=volume("missing")),
            Case(
                "volume",
                "volumeWaiting",
                "unbound immediate PersistentVolumeClaims",
                requests=requests,
                pod=volume("data"),
                others=[_volume_claim("data")],
            ),
        ]

    def half(self) -> Case:
        """Returns the pod for an incomplete pool, which exists only for a short time: it affects requests for all."""
        return Case("half", "poolUnusable", "cannot allocate all claims", requests=[self.request(f"half-{self._mark}")])

    def _class(self, name: str, kind: str, **spec: Any) -> Obj:
        guard = f'device.driver == "{self.driver}" && {self.attribute("type")} == "{kind}"'
        return {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "DeviceClass",
            "metadata": {"name": name},
            "spec": {"selectors": [{"cel": {"expression": guard}}], **spec},
        }

    def _device(self, name: str, kind: str, *, memory: str, model: str, root: str, **fields: Any) -> Obj:
        values = {"name": name, "type": kind, "model": model, "root": root}
        return {
            "name": name,
            "attributes": {key: {"string": value} for key, value in values.items()},
            "capacity": {"memory": {"value": memory}},
            **fields,
        }

    def _slice(self, name: str, *, pool: str = "", count: int = 1, **spec: Any) -> Obj:
        wanted = {"key": "kubernetes.io/hostname", "operator": "In", "values": [self._node]}
        return {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "ResourceSlice",
            "metadata": {"name": f"{name}-{self._mark}"},
            "spec": {
                "driver": self.driver,
                "pool": {"name": f"{pool or name}-{self._mark}", "generation": 1, "resourceSliceCount": count},
                "nodeSelector": {"nodeSelectorTerms": [{"matchExpressions": [wanted]}]},
                **spec,
            },
        }


def _volume_claim(name: str) -> Obj:
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": name},
        "spec": {
            "storageClassName": "",
            "accessModes": ["ReadWriteOnce"],
            "resources": {"requests": {"storage": "1Gi"}},
            "volumeName": "missing",
        },
    }


SCHEDULED_S = 30.0
# The scheduler retries after 1, 2 and 4 s, and when anything changes.
STAYS_S = 8.0


@pytest.fixture(scope="module")
def real(kubeconfig: str) -> RealCluster:
    return RealCluster(RestClient(Connection.load(kubeconfig), timeouts=Timeouts(read_s=30.0, total_s=60.0)))


@pytest.fixture(scope="module")
def made(real: RealCluster) -> Iterator[Cluster]:
    beside = real.version().startswith("v1.34.")
    found = Cluster(os.urandom(3).hex(), _open_node(real), real.gates, counters_beside=beside)
    objects = [*found.classes(), *found.slices()]
    try:
        for obj in objects:
            _make(real, obj, "")
        yield found
    finally:
        for obj in objects:
            _delete(real, obj)


@pytest.fixture(scope="module")
def own_namespace(real: RealCluster, made: Cluster) -> Iterator[str]:
    name = real.make_namespace("explain")
    try:
        yield name
    finally:
        real.drop_namespace(name)
        real.dropped()


def test_explain_and_the_scheduler_agree(real: RealCluster, made: Cluster, own_namespace: str) -> None:
    for case in made.fitting():
        report = _what_if(real, case, own_namespace)
        assert report.verdict.answer is Answer.FITS, f"{case.name}: {report.verdict.sentence}"
        _create(real, case, own_namespace)
        wait(lambda case=case: _unplaced(real, case, own_namespace), SCHEDULED_S)  # type: ignore[misc]
    pending = made.pending()
    for case in pending:
        report = _what_if(real, case, own_namespace)
        _agrees(case, report, "before it exists")
    for case in pending:
        _create(real, case, own_namespace)
    for case in pending:
        _check_pending(real, case, own_namespace)
    _half_a_pool(real, made, own_namespace)
    time.sleep(STAYS_S)
    placed = [case.name for case in pending if not _unplaced(real, case, own_namespace)]
    assert not placed, f"explain reported that these cannot fit, but the scheduler placed them: {placed}"


def test_a_placed_pod_whose_driver_is_not_registered_is_explained_by_the_kubelets_event(
    real: RealCluster, made: Cluster, own_namespace: str
) -> None:
    real_name = made.fitting()[0].name

    def unexplained() -> str | None:
        report = _pending(real, real_name, own_namespace)
        if report.verdict.answer is not Answer.PLACED:
            return report.verdict.sentence
        codes = [cause.code for cause in report.causes]
        return None if "prepareFailing" in codes else f"{codes}"

    wait(unexplained, 120.0)
    message = next(c.message for c in _pending(real, real_name, own_namespace).causes if c.code == "prepareFailing")
    assert made.driver in message, message


def _half_a_pool(real: RealCluster, made: Cluster, namespace: str) -> None:
    """No device of it is allocated, except by 1.34, which allocates what it sees."""
    objects, case = [made.half_class(), made.incomplete()], made.half()
    try:
        for obj in objects:
            _make(real, obj, "")
        if real.version().startswith("v1.34."):
            assert _what_if(real, case, namespace).verdict.answer is Answer.FITS
            _create(real, case, namespace)
            wait(lambda: _unplaced(real, case, namespace), SCHEDULED_S)
            return
        _agrees(case, _what_if(real, case, namespace), "before it exists")
        _create(real, case, namespace)
        _check_pending(real, case, namespace)
    finally:
        for obj in objects:
            _delete(real, obj)


def _check_pending(real: RealCluster, case: Case, namespace: str) -> None:
    if case.scheduler:
        wait(lambda: _unsaid(real, case, namespace), SCHEDULED_S)
    report = _pending(real, case.name, namespace)
    _agrees(case, report, "pending")
    assert _unplaced(real, case, namespace), f"{case.name} is placed, but explain reports: {report.verdict.sentence}"


def _agrees(case: Case, report: Explanation, when: str) -> None:
    said = f"{case.name}, {when}: {report.verdict.sentence}"
    assert report.verdict.answer is Answer.CANNOT_FIT, said
    if case.code == "nodesUnfit":
        assert not any(reason.by_devices for reason in report.nodes), f"{said}; {report.nodes}"
        return
    causes = {str(cause.code) for cause in report.causes}
    reasons = {reason.code for ask in report.requests for reason in ask.reasons}
    assert case.code in causes | reasons, f"{said}; causes {causes}, reasons {reasons}"


def _what_if(real: RealCluster, case: Case, namespace: str) -> Explanation:
    state = read_cluster(real.rest, namespace)
    objects = case.objects()
    with_them = with_objects(state, objects_of([obj for obj in objects if obj["kind"] != "Pod"], case.name, namespace))
    (report,) = explain_pods(
        with_them,
        pods_in(objects, namespace, case.name),
        scheduler=scheduler_of(state.server_version, {}, state.slices),
    )
    return report


def _pending(real: RealCluster, name: str, namespace: str) -> Explanation:
    state = read_cluster(real.rest, namespace)
    return explain(
        state, pod_subject(state, namespace, name), scheduler=scheduler_of(state.server_version, {}, state.slices)
    )


def _create(real: RealCluster, case: Case, namespace: str) -> None:
    for obj in case.objects():
        _make(real, obj, namespace)


def _unplaced(real: RealCluster, case: Case, namespace: str) -> str:
    pod = real.pod(case.name, namespace)
    return "" if dig(pod, "spec", "nodeName") else f"{case.name} has no node: {_conditions(pod)}"


def _unsaid(real: RealCluster, case: Case, namespace: str) -> str:
    said = _conditions(real.pod(case.name, namespace))
    return "" if any(case.scheduler in message for message in said) else f"{case.name}: {said}"


def _conditions(pod: Obj) -> Sequence[str]:
    return [str(item.get("message")) for item in entries(pod, "status", "conditions") if item["type"] == "PodScheduled"]


def _open_node(real: RealCluster) -> str:
    for node in real.nodes():
        ready = any(
            item["type"] == "Ready" and item["status"] == "True" for item in entries(node, "status", "conditions")
        )
        if ready and not entries(node, "spec", "taints"):
            return str(dig(node, "metadata", "labels", "kubernetes.io/hostname"))
    pytest.skip("no node of the cluster is ready and without taints")


def _make(real: RealCluster, obj: Obj, namespace: str) -> None:
    real.rest.create(_path(obj, namespace), obj)


def _delete(real: RealCluster, obj: Obj) -> None:
    try:
        real.rest.delete(f"{_path(obj, '')}/{obj['metadata']['name']}")
    except NotFoundError:
        return


def _path(obj: Obj, namespace: str) -> str:
    kind = next(kind for kind in KINDS if kind.kind == obj["kind"])
    api = "/api/v1" if obj["apiVersion"] == "v1" else f"/apis/{obj['apiVersion']}"
    return f"{api}/namespaces/{namespace}/{kind.resource}" if kind.namespaced else f"{api}/{kind.resource}"
