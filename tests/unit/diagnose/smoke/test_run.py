"""A smoke test: checks before the first try, Job and claim, and Jobs of earlier runs."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from dra_driver.core.errors import ConfigurationError, ForbiddenError
from dra_driver.diagnose.smoke.objects import PodSettings, claim, job
from dra_driver.diagnose.smoke.report import SmokeOptions
from dra_driver.diagnose.smoke.run import SmokeRun, check_namespace, is_outdated
from dra_driver.kube import paths
from dra_driver.kubectl.explain.fit import fits_under
from tests.unit.diagnose.smoke.fake_api import FakeSmokeApi, Wire


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
    with pytest.raises(ConfigurationError, match="namespace team-a does not exist: name one with -n"):
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
