"""Requests for guarded operations of one GPU, with a cluster in memory."""

import argparse

import pytest
from msgspec.structs import replace

from dra_driver.core.errors import ConfigurationError
from dra_driver.core.model.drain import DRAIN_ANNOTATION
from dra_driver.core.model.gpu_operation import OPERATION_ANNOTATION, Operation
from dra_driver.kubectl.commands import gpu as command
from dra_driver.kubectl.drain import DrainOptions, DrainReport, document_of, operate
from dra_driver.kubectl.drain.gpu_request import OPERATION_S
from dra_driver.kubectl.drain.run import DrainFailedError
from dra_driver.kubectl.drain.view import DrainWait
from tests.unit.kubectl.drain.cluster import DRIVER, NODE, FakeApi, claim, pod


class Request:
    """One command with a clock that advances only by sleeping."""

    def __init__(self, api: FakeApi, *, evict: bool = False) -> None:
        self.api, self.now = api, 0.0
        self.options = DrainOptions(node=NODE, driver=DRIVER, gpus=("gpu-1",), evict=evict)
        self.report = DrainReport(command="gpu", node=NODE, driver=DRIVER)
        self.said: list[str] = []

    def _sleep(self, seconds: float) -> None:
        self.now += seconds

    def run(self) -> DrainReport:
        patience = DrainWait(20.0, lambda: self.now, self._sleep)
        operate(self.api, self.options, self.report, patience, self.said.append, operation=Operation.RESET)
        return self.report


def test_a_gpu_is_drained_operated_and_undrained() -> None:
    api = FakeApi(operation="done")
    request = Request(api)
    assert document_of(request.run()).command == "gpu"
    assert request.report.result == "done"
    keys = [each.partition("=")[0] for each in api.requests]
    assert keys == [DRAIN_ANNOTATION, OPERATION_ANNOTATION, OPERATION_ANNOTATION, DRAIN_ANNOTATION]
    assert api.requests[1].startswith(f"{OPERATION_ANNOTATION}=reset/GPU-1/")
    assert api.annotations == {}


def test_a_gpu_in_use_is_freed_first_or_left_alone() -> None:
    api = FakeApi(operation="done", pods=[pod("a")], claims=[claim("one", "gpu-1", "a")])
    with pytest.raises(DrainFailedError, match=r"team/one \(gpu-1\); --evict"):
        Request(api).run()
    assert not [each for each in api.requests if each.startswith(OPERATION_ANNOTATION)]
    assert Request(api, evict=True).run().evicted == ["team/a"]


def test_a_dry_run_requests_nothing() -> None:
    api = FakeApi(operation="done", pods=[pod("a")], claims=[claim("one", "gpu-1", "a")])
    request = Request(api, evict=True)
    request.options = replace(request.options, dry_run=True)
    request.run()
    assert (request.report.result, api.requests, request.now) == ("done", [], 0.0)
    assert "would evict: pod team/a" in request.said


def test_other_requests_and_drains_stay() -> None:
    other = "mig-on/GPU-0/aa"
    api = FakeApi(operation="done", annotations={OPERATION_ANNOTATION: other, DRAIN_ANNOTATION: "GPU-1"})
    Request(api).run()
    assert api.annotations == {OPERATION_ANNOTATION: other, DRAIN_ANNOTATION: "GPU-1"}


def test_the_reason_of_a_failure_is_reported() -> None:
    api = FakeApi(operation="undone, the GPU is as before: it is open in dcgm (process 7)")
    with pytest.raises(DrainFailedError, match="open in dcgm"):
        Request(api).run()
    assert api.annotations == {}


def test_a_request_without_an_answer_is_withdrawn() -> None:
    api = FakeApi()
    request = Request(api)
    with pytest.raises(DrainFailedError, match="has not reported the result"):
        request.run()
    assert request.now >= OPERATION_S
    assert OPERATION_ANNOTATION not in api.annotations
    assert DRAIN_ANNOTATION in api.annotations, "the GPU may be changing"


@pytest.mark.parametrize(
    "line", ["mig-mode gpu-a/gpu-0", "reset gpu-a/gpu-0 on", "reset gpu-a", "reset /gpu-0", "reset a/b --force"]
)
def test_wrong_usage_names_the_right_form(line: str) -> None:
    parser = argparse.ArgumentParser()
    command.add_arguments(parser)
    with pytest.raises(ConfigurationError, match=r"mig-mode NODE/GPU on|expected NODE/GPU|only with --evict"):
        command.run(parser.parse_args(line.split()))
