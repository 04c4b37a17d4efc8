"""The program that surveys free capacity: its limits, its rights in the chart, and the numbers that it finds."""

import sys
from pathlib import Path

import pytest

from dra_driver.controller.capacity import decode, survey, survey_command
from dra_driver.core.errors import CommandError
from dra_driver.sim.apiserver.server import ApiServer
from tests.fakes import chart
from tests.fakes.extended_pods import make_slice
from tests.fakes.rbac import Access, Rules
from tests.fakes.recording_proxy import RecordingProxy
from tests.harness.raising import fails

ACCOUNT, NAMESPACE = "dra-driver-controller", "dra-driver"
MIB = 160
GREEDY = """
import resource, time
while resource.getrlimit(resource.RLIMIT_DATA)[0] == resource.RLIM_INFINITY:
    time.sleep(0.01)
bytearray(1 << 30)
"""


def python(code: str) -> list[str]:
    return [sys.executable, "-c", code]


def test_the_chart_grants_what_a_survey_asks_and_no_more(tmp_path: Path) -> None:
    """Four lists; the slices' GPUs are in the report."""
    api = ApiServer()
    api.start()
    try:
        make_slice(api.store, 3)
        with RecordingProxy(api.kubeconfig(tmp_path / "admin.conf")) as proxy:
            config = str(proxy.kubeconfig(tmp_path / "proxied.conf"))
            (model,) = decode(survey(survey_command("gpu.nvidia.com", config), memory_mib=MIB, beat=lambda: True))
            asked = {access for each in proxy.requests if (access := Access.of_request(*each)) is not None}
    finally:
        api.stop()
    assert sum(model.gpus.values()) == 3
    values = {"capacityMetrics": {"enabled": True}, "policyStatus": {"enabled": False}}
    objects = chart.objects(values)
    rules = Rules(objects, account=ACCOUNT, namespace=NAMESPACE)
    assert [access for access in asked if not rules.allow(access)] == []
    role = chart.found(objects, "ClusterRole", ACCOUNT)["rules"]
    granted = {(verb, item) for rule in role for item in rule["resources"] for verb in rule["verbs"]}
    assert granted == {(access.verb, access.resource) for access in asked}


def test_a_program_that_needs_more_memory_fails_alone() -> None:
    """The kernel would otherwise end the controller with it: they share a container."""
    with pytest.raises(CommandError, match="needs more than 160 MiB: raise --capacity-memory"):
        survey(python(GREEDY), memory_mib=MIB, beat=lambda: True)


def test_a_program_is_ended_when_this_replica_leads_no_more() -> None:
    with fails(CommandError, "LostLeadership"):
        survey(python("import time; time.sleep(600)"), memory_mib=MIB, beat=lambda: False)


def test_a_program_that_does_not_end_is_ended() -> None:
    with fails(CommandError, "SurveyTimeout"):
        survey(python("import time; time.sleep(600)"), memory_mib=MIB, beat=lambda: True, limit_s=0.0)


def test_a_program_that_fails_is_quoted() -> None:
    with fails(CommandError, "SurveyFailed", match="status 3"):
        survey(
            python("import sys; sys.stderr.write('no answer from the API server'); sys.exit(3)"),
            memory_mib=MIB,
            beat=lambda: True,
        )
