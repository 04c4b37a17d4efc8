"""Reasons of Kueue for pods and Jobs that wait, from Workloads, and events of the cluster autoscaler."""

from typing import Any

import pytest
from msgspec.structs import replace

from dra_driver.core.errors import RetryableError
from dra_driver.kube.state import ClusterState
from dra_driver.kubectl.explain import check_queue
from dra_driver.kubectl.explain.queueing import GATE, admitted, held_back, misconfigured, workload_of
from tests.unit.kubectl.explain.clusters import cluster, explained, pod, template

SHORT = (
    "couldn't assign flavors to pod set main: insufficient unused quota for memory in flavor gpus, 9984Mi more needed"
)


def workload(message: str = SHORT, *, kind: str = "Job", name: str = "train", **conditions: str) -> dict[str, Any]:
    own = {"type": "QuotaReserved", "status": "False", "message": message}
    others = [{"type": each, "status": "True", "message": said} for each, said in conditions.items()]
    return {
        "metadata": {"name": f"w-{name}", "namespace": "default", "ownerReferences": [{"kind": kind, "name": name}]},
        "spec": {"queueName": "gpus"},
        "status": {
            "conditions": [own, *others],
            "resourceRequests": [{"name": "main", "resources": {"gpu.nvidia.com/h100-memory": "9984Mi"}}],
        },
    }


@pytest.mark.parametrize(
    ("message", "fix"),
    [
        (SHORT, "wait until others finish"),
        ("uses DRA resources but the KueueDRAIntegration feature gate is not enabled", "featureGates"),
        ("DeviceClass x is not mapped in DRA configuration", "kubectl dra kueue queues"),
        ("resource x, 9 > maximum capacity (7)", "can never admit"),
        ("something new", "kubectl describe workload w-train"),
    ],
)
def test_a_reason_has_a_next_step(message: str, fix: str) -> None:
    cause = held_back(workload(message))
    assert cause is not None
    assert message in cause.message
    assert "queue gpus, charge gpu.nvidia.com/h100-memory=9984Mi" in cause.message
    assert fix in cause.fix


def test_an_admitted_workload_is_not_held_back() -> None:
    assert held_back(workload(Admitted="The workload is admitted")) is None
    preempted = held_back(workload(Preempted="Preempted to accommodate a workload of higher priority"))
    assert preempted is not None
    assert "preempted: Preempted to accommodate" in preempted.message


def test_a_finished_workload_neither_waits_nor_is_admitted() -> None:
    """Kueue finishes a Workload that it never admitted, such as that of a deleted Job."""
    done = workload("DeviceClass x is not mapped in DRA configuration", Finished="The workload is finished")
    assert held_back(done) is None
    assert misconfigured([done]) == []
    waiting = pod(template="t")
    waiting["metadata"]["ownerReferences"] = [{"kind": "Job", "name": "train"}]
    assert admitted([done], waiting) == ""


def test_a_pod_of_an_admitted_job_waits_for_the_scheduler() -> None:
    """Quota is not why it has no node: a fragmented or tainted GPU is."""
    state = cluster(templates=[template("t", {"name": "gpu", "exactly": {"deviceClassName": "gpu.nvidia.com"}})])
    waiting = pod(template="t")
    waiting["metadata"]["ownerReferences"] = [{"kind": "Job", "name": "train"}]
    done = workload(Admitted="The workload is admitted")
    usage = {"resourceUsage": {"gpu.nvidia.com/h100-memory": "9984Mi"}}
    done["status"]["admission"] = {"podSetAssignments": [usage]}
    assert explained(replace(state, workloads=[done]), waiting).notes[-1] == (
        "Kueue has admitted it (queue gpus, charge gpu.nvidia.com/h100-memory=9984Mi): it waits for the scheduler, "
        "not for quota"
    )
    for others in ([workload()], [workload(name="other", Admitted="yes")], []):
        assert not any("Kueue" in note for note in explained(replace(state, workloads=others), waiting).notes)


def test_a_gated_pod_waits_for_its_workload() -> None:
    state = cluster(templates=[template("t", {"name": "gpu", "exactly": {"deviceClassName": "gpu.nvidia.com"}})])
    gated = pod(template="t", schedulingGates=[{"name": GATE}])
    assert [each.code for each in explained(state, gated).causes] == ["schedulingGates"]
    queued = replace(state, workloads=[workload(kind="Pod", name=gated["metadata"]["name"])])
    assert [each.code for each in explained(queued, gated).causes] == ["queued"]


def test_a_job_without_pods_is_explained_by_its_newest_workload() -> None:
    old = workload("an old reason")
    old["metadata"]["creationTimestamp"], new = "2026-01-01T00:00:00Z", workload()
    new["metadata"]["creationTimestamp"] = "2026-01-02T00:00:00Z"
    assert workload_of([old, new], "job", "train") is new
    with pytest.raises(RetryableError, match="job train has no pods: Kueue has not admitted it"):
        check_queue(ClusterState(workloads=[old, new]), "job", "train", "default")
    check_queue(ClusterState(workloads=[old, new]), "job", "other", "default")
    check_queue(ClusterState(workloads=[workload(Admitted="yes")]), "job", "train", "default")


def test_newest_event_of_the_autoscaler_is_a_note_of_a_waiting_pod() -> None:
    wanted = pod(template="t")
    about = {"kind": "Pod", "name": wanted["metadata"]["name"], "namespace": "default"}
    texts = {"TriggeredScaleUp": "pod triggered scale-up: [{a 1->2}]", "NotTriggerScaleUp": "pod didn't trigger"}
    events = [
        {
            "reason": reason,
            "message": texts[reason],
            "involvedObject": about,
            "lastTimestamp": f"2026-01-0{day}T00:00:00Z",
        }
        for day, reason in enumerate(("TriggeredScaleUp", "NotTriggerScaleUp", "TriggeredScaleUp"), 1)
    ]
    state = cluster(templates=[template("t", {"name": "gpu", "exactly": {"deviceClassName": "none"}})])
    assert not any("autoscaler" in note for note in explained(state, wanted).notes)
    grows = explained(replace(state, events=events), wanted).notes
    assert "cluster autoscaler, 2026-01-03T00:00:00Z: pod triggered scale-up: [{a 1->2}]" in grows
    stays = explained(replace(state, events=events[:2]), wanted).notes
    assert "cluster autoscaler, 2026-01-02T00:00:00Z: pod didn't trigger (docs/autoscalers.md)" in stays
    for times, shown in (
        ({"eventTime": "2026-01-04T00:00:00.000000Z"}, "2026-01-04T00:00:00.000000Z"),
        ({}, "unknown"),
    ):
        undated = {**events[0], "lastTimestamp": None, **times}
        (note,) = explained(replace(state, events=[undated]), wanted).notes
        assert note.startswith(f"cluster autoscaler, {shown}")
