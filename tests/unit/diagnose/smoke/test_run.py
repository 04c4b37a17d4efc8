"""A smoke test: what ends a try and which layer it names, checks before the first try, and Jobs of earlier runs."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from dra_driver.core.errors import (
    ApiUnreachableError,
    ConfigurationError,
    ForbiddenError,
    KubernetesApiError,
    NotFoundError,
)
from dra_driver.core.finding import Layer, Status
from dra_driver.diagnose.smoke.objects import PodSettings, claim, job
from dra_driver.diagnose.smoke.planning import Fit
from dra_driver.diagnose.smoke.report import SmokeOptions
from dra_driver.diagnose.smoke.run import SmokeRun, check_namespace, is_outdated
from dra_driver.kube import paths
from dra_driver.kubectl.commands.smoke import fits_under
from tests.harness.raising import fails
from tests.unit.diagnose.smoke.fake_api import LOG, UUID, FakeSmokeApi, Wire, ended, tried, unplaced, waiting

OTHER = LOG.replace("0001)", "0002)")
NOT_FOUND = 'exec: "nvidia-smi": executable file not found in $PATH'


REFUSED_POD, FORGETFUL = FakeSmokeApi(), FakeSmokeApi()
REFUSED_POD.events = [{"type": "Warning", "reason": "FailedCreate", "message": "violates PodSecurity"}]
FORGETFUL.forgets = True


def refusing(request: str, error: KubernetesApiError) -> FakeSmokeApi:
    api = FakeSmokeApi(waiting())
    api.refused[request] = error
    return api


def both_deleted(api: FakeSmokeApi) -> bool:
    return [path.split("/")[-2] for path in api.deleted] == ["jobs", "resourceclaims"] and not api.made


def test_a_container_that_sees_its_device_is_ok() -> None:
    api = FakeSmokeApi(waiting(), ended())
    found, attempt = tried(api)
    assert (found.status, found.device, found.expected, found.seen) == (Status.OK, "gpu-0", (UUID,), (UUID,))
    assert both_deleted(api)
    assert not attempt.left


@pytest.mark.parametrize(
    ("pod", "log", "layer", "part"),
    [
        (ended(), OTHER, Layer.CONTAINER, "its claims were allocated"),
        (ended(), LOG + OTHER.replace("GPU 0", "GPU 1"), Layer.CONTAINER, "its claims were allocated"),
        (ended(), "", Layer.CONTAINER, "did not apply the CDI devices"),
        (ended(6), "No devices were found", Layer.CONTAINER, "exit status 6"),
        (ended(128, reason="StartError", message=NOT_FOUND), "", Layer.CONTAINER, "enable_cdi"),
        (ended(128, reason="ContainerCannotRun", message=NOT_FOUND), "", Layer.CONTAINER, "enable_cdi"),
        (ended(1, reason="Error", message=NOT_FOUND), "", Layer.CONTAINER, "exit status 1"),  # the program's own text
        (waiting("CreateContainerError", "unresolvable CDI devices"), "", Layer.CONTAINER, "unresolvable"),
        (waiting("ImagePullBackOff", "Back-off"), "", Layer.IMAGE, "Back-off"),
    ],
)
def test_a_failure_names_its_layer(pod: dict[str, object], log: str, layer: Layer, part: str) -> None:
    api = FakeSmokeApi(waiting(), pod, log=log)
    found, _ = tried(api)
    assert (found.status, found.finding.layer, found.finding.fix) == (
        Status.FAIL,
        layer,
        "kubectl dra doctor node/gpu-a",
    )
    assert part in found.finding.seen
    assert both_deleted(api)


def test_a_failed_prepare_is_named_with_its_event() -> None:
    """The newest warning of the pod, after the time for one pod is over: the kubelet tries again meanwhile."""
    api = FakeSmokeApi(waiting())
    message = "prepare dynamic resources: DRA driver gpu.nvidia.com is not registered"
    api.events = [{"type": "Warning", "reason": "FailedPrepareDynamicResources", "message": message}]
    found, _ = tried(api)
    assert (found.finding.layer, found.finding.seen) == (Layer.PREPARE, message)
    assert found.seconds > 120


def test_a_pending_pod_has_the_answer_of_explain() -> None:
    found, _ = tried(FakeSmokeApi(unplaced("0/1 nodes are available: 1 cannot allocate all claims.")))
    assert found.finding.layer is Layer.SCHEDULING
    assert "explain's answer" in found.finding.seen
    assert "1 cannot allocate all claims" in found.finding.seen


def test_a_device_that_was_taken_meanwhile_is_not_tried() -> None:
    """A pod that waits because others have all devices is no failure."""
    api = FakeSmokeApi(unplaced())
    found, _ = tried(api, fit=Fit(fits=False, busy="all 8 GPUs are allocated"))
    assert (found.status, found.finding.seen) == (
        Status.SKIPPED,
        "all 8 GPUs are allocated, since this command started",
    )
    assert both_deleted(api)


@pytest.mark.parametrize(
    ("api", "seen"),
    [
        (refusing("create resourceclaims", ForbiddenError("exceeded quota: gpus", status=403)), "exceeded quota: gpus"),
        # Without the permission to read namespaces, only a 404 for the new Job shows that the namespace is missing.
        (refusing("create jobs", NotFoundError("POST jobs: 404", status=404)), "namespace dra-driver does not exist"),
        (REFUSED_POD, "the Job has no pod: FailedCreate: violates PodSecurity"),
        (FORGETFUL, "deleted the Job"),
    ],
    ids=["claim", "namespace", "pod", "deleted"],
)
def test_a_job_or_claim_that_is_refused_or_deleted_ends_the_try(api: FakeSmokeApi, seen: str) -> None:
    found, _ = tried(api)
    assert found.finding.layer is Layer.WORKLOAD
    assert seen in found.finding.seen
    assert not api.made or api.forgets


def test_an_interrupted_try_deletes_its_objects() -> None:
    api = FakeSmokeApi(waiting())
    found, _ = tried(api, waits=3)
    assert (found.status, found.finding.seen) == (Status.SKIPPED, "interrupted")
    assert both_deleted(api)


def test_bad_moments_of_the_api_server_are_waited_out() -> None:
    """Four failed looks in a row are nothing, five end the try."""
    bad = ApiUnreachableError("no answer")
    assert tried(FakeSmokeApi(bad, bad, bad, bad, ended()))[0].status is Status.OK
    found, _ = tried(FakeSmokeApi(bad, bad, bad, bad, bad, ended()))
    assert (found.finding.layer, found.finding.seen) == (Layer.API_SERVER, "no answer")


def test_what_cannot_be_deleted_is_named() -> None:
    """The Job's deadline removes it later."""
    api = FakeSmokeApi(ended())
    api.refused["delete jobs"] = ApiUnreachableError("no answer")
    _, attempt = tried(api)
    assert attempt.left == ["job dra-smoke-0-1 (no answer)"]


def test_a_device_that_is_not_given_back_is_a_failure() -> None:
    """A pod that does not end after a good run keeps its device from others."""
    api = FakeSmokeApi(ended())
    api.keeps_pod = True
    found, attempt = tried(api)
    assert (found.status, found.finding.layer, found.seen) == (Status.FAIL, Layer.RELEASE, (UUID,))
    assert attempt.left == ["pod dra-smoke-0-1-x"]


def test_an_unseen_allocation_compares_nothing() -> None:
    found, _ = tried(FakeSmokeApi(ended()), allocated=())
    assert (found.status, found.finding.layer) == (Status.FAIL, Layer.SLICES)


class AllowingApi(FakeSmokeApi):
    """Grants every right, and tells of a namespace what it was given."""

    def __init__(self, found: Exception | None = None) -> None:
        super().__init__()
        self.found = found

    def get(self, path: str) -> Wire:
        if path == paths.namespace("team-a") and self.found is not None:
            raise self.found
        return super().get(path)

    def create(self, path: str, body: object) -> Wire:
        return {"status": {"allowed": True}}


def test_a_namespace_that_does_not_exist_is_named_before_the_first_try() -> None:
    api = AllowingApi()
    with fails(ConfigurationError, "NamespaceNotFound", name="team-a"):
        SmokeRun(api, SmokeOptions(namespace="team-a"), fits_under).run()
    assert not api.made


def test_a_user_who_may_not_look_at_namespaces_is_not_held_up() -> None:
    """The Role of docs/smoke.md has no namespaces."""
    check_namespace(AllowingApi(ForbiddenError("GET namespaces", status=403)), "team-a")


SETTINGS = PodSettings(namespace="smoke", image="example.com/driver:1", timeout_s=120)
NOW = datetime(2026, 1, 1, tzinfo=UTC)


def test_a_job_ends_and_is_deleted_without_this_command() -> None:
    """Deadline, deletion after its end, no second pod, no restarts; the claim belongs to it."""
    body = job("dra-smoke-0-1", "0", "gpu-a", SETTINGS)
    spec = body["spec"]
    assert (spec["activeDeadlineSeconds"], spec["ttlSecondsAfterFinished"], spec["backoffLimit"]) == (150, 10, 0)
    assert spec["template"]["spec"]["restartPolicy"] == "Never"
    owned = claim({**body, "metadata": {**body["metadata"], "uid": "u"}}, "0", {"devices": {}})
    owner = {"apiVersion": "batch/v1", "kind": "Job", "name": "dra-smoke-0-1", "uid": "u"}
    assert owned["metadata"]["ownerReferences"] == [owner]
    assert owned["metadata"]["labels"]["gpu.dra-driver.io/smoke-run"] == "0"


def test_the_pod_is_placed_by_the_scheduler_and_meets_the_restricted_standard() -> None:
    """With `nodeName` no device is allocated. Pod Security Standard; without a user the cluster chooses one."""
    spec = job("dra-smoke-0-1", "0", "gpu-a", SETTINGS)["spec"]["template"]["spec"]
    assert "nodeName" not in spec
    required = spec["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    field = {"key": "metadata.name", "operator": "In", "values": ["gpu-a"]}
    assert required["nodeSelectorTerms"] == [{"matchFields": [field]}]
    assert spec["securityContext"] == {
        "runAsUser": 65532,
        "runAsNonRoot": True,
        "seccompProfile": {"type": "RuntimeDefault"},
    }
    assert spec["containers"][0]["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    assert spec["containers"][0]["securityContext"]["allowPrivilegeEscalation"] is False
    assert spec["automountServiceAccountToken"] is False
    free = job("n", "0", "gpu-a", PodSettings(namespace="smoke", image="x", user=None))
    assert free["spec"]["template"]["spec"]["securityContext"] == {"seccompProfile": {"type": "RuntimeDefault"}}


@pytest.mark.parametrize(
    ("age_s", "status", "over"),
    [
        (10, {}, False),
        (10, {"conditions": [{"type": "Failed", "status": "True"}]}, True),
        (10, {"conditions": [{"type": "Complete", "status": "True"}]}, True),
        (219, {}, False),
        (221, {}, True),
    ],
)
def test_a_run_that_goes_on_is_left_alone(age_s: int, status: dict[str, Any], over: bool) -> None:
    """Another person's run is deleted only when it has ended or should have, 150 s after its begin and some spare."""
    body = job("dra-smoke-0-1", "0", "gpu-a", SETTINGS)
    created = (NOW - timedelta(seconds=age_s)).isoformat().replace("+00:00", "Z")
    found = {**body, "metadata": {**body["metadata"], "creationTimestamp": created}, "status": status}
    assert is_outdated(found, NOW) is over
