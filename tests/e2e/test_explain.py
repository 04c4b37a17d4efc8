"""Explanations agree with what a real scheduler does with the same pods."""

import os
import time
from collections.abc import Iterator, Sequence

import pytest

from dra_driver.core.errors import NotFoundError
from dra_driver.kube.connection import Connection
from dra_driver.kube.rest import RestClient, Timeouts
from dra_driver.kube.state import KINDS, read_cluster, with_objects
from dra_driver.kube.state_file import objects_of
from dra_driver.kubectl.explain import Explanation, explain, explain_pods, pod_subject
from dra_driver.kubectl.explain.manifests import pods_in
from dra_driver.kubectl.explain.report import Answer
from dra_driver.kubectl.explain.scheduler import scheduler_of
from dra_driver.sim.apiserver.jsonvalue import dig, entries
from tests.e2e.cluster import RealCluster, wait
from tests.e2e.explain_cases import Case, Cluster, Obj

SCHEDULED_S = 30.0
# The scheduler retries after 1, 2 and 4 s, and when anything changes.
STAYS_S = 8.0


@pytest.fixture(scope="module")
def real(kubeconfig: str) -> RealCluster:
    return RealCluster(RestClient(Connection.load(kubeconfig), timeouts=Timeouts(read_s=30.0, total_s=60.0)))


@pytest.fixture(scope="module")
def made(real: RealCluster) -> Iterator[Cluster]:
    """Devices and classes that only these tests use."""
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
    """A pod that fits is placed; for all others the cause is named, before they exist and while they are pending."""
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
    """Returns the hostname label of a node that accepts pods."""
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
