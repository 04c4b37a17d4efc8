"""Draining and giving back, step by step, against a cluster in memory."""

import pytest
from msgspec.structs import replace

from dra_driver.core.errors import ApiUnreachableError, ConfigurationError, ForbiddenError
from dra_driver.core.model.drain import DETACH_ANNOTATION, DRAIN_ANNOTATION
from dra_driver.kubectl.drain import DrainOptions, DrainReport, drain, state_left, to_wire, undrain
from dra_driver.kubectl.drain.run import DrainFailedError, MissingRightsError
from dra_driver.kubectl.drain.view import TRIES, DrainWait
from tests.unit.kubectl.drain.cluster import DRIVER, NODE, FakeApi, budget, claim, pod

ALL = DrainOptions(node=NODE, driver=DRIVER)


class Run:
    """One command with a clock that sleeps by itself; ``at`` changes the cluster at a time."""

    def __init__(self, api: FakeApi, options: DrainOptions, timeout_s: float = 100.0) -> None:
        self.api, self.options, self.timeout_s = api, options, timeout_s
        self.now = 0.0
        self.said: list[str] = []
        self.report = DrainReport(command="drain", node=NODE, driver=DRIVER)

    def sleep(self, seconds: float) -> None:
        assert seconds > 0
        self.now += seconds
        if self.now > 10:  # a person ends the pod
            self.api.claims = [one for one in self.api.claims if one["metadata"]["name"] != "ends-by-itself"]

    def wait(self) -> DrainWait:
        return DrainWait(self.timeout_s, lambda: self.now, self.sleep)

    def drain(self) -> DrainReport:
        drain(self.api, self.options, self.report, self.wait(), self.said.append)
        return self.report

    def undrain(self) -> DrainReport:
        undrain(self.api, self.options, self.report, self.wait(), self.said.append)
        return self.report


def test_a_free_node_is_tainted_and_then_detached() -> None:
    """The order matters: new claims could come while the driver is given up."""
    api = FakeApi()
    report = Run(api, ALL).drain()
    assert [request.partition("=")[0] for request in api.requests] == [DRAIN_ANNOTATION, DETACH_ANNOTATION]
    assert (report.tainted, report.free, report.detached, report.result) == (True, True, True, "done")
    assert report.gpus == ("GPU-0", "GPU-1")
    assert to_wire(report)["annotation"] == "all"


def test_odd_objects_end_no_drain() -> None:
    """Of others and of events; a pod that cannot be read is not evicted, and its claim is waited for."""
    api = FakeApi()
    api.pods = [pod("a"), {"metadata": {"uid": 7, "labels": {"a": 7}}, "status": "x"}, {"metadata": {"uid": 8}}]
    api.pods[0]["metadata"]["ownerReferences"].append("x")
    api.events = [{"message": 7}, {"count": "x"}]
    api.claims = [claim("ends-by-itself", "gpu-0", "a"), {"metadata": {"name": "odd"}, "status": {"allocation": 7}}]
    report = Run(api, replace(ALL, evict=True)).drain()
    assert (report.result, report.detached, report.evicted) == ("done", True, ["team/a"])


def test_it_waits_for_pods_to_end_without_touching_them() -> None:
    """Eviction is on request only."""
    api = FakeApi()
    api.pods, api.claims = [pod("a")], [claim("ends-by-itself", "gpu-0", "a")]
    run = Run(api, ALL)
    run.drain()
    assert 10 < run.now < 20
    assert not [request for request in api.requests if request.startswith("evict")]
    assert any(text.startswith("ended:") for text in run.said)


def test_pods_are_evicted_as_budgets_allow() -> None:
    """A pod behind a budget is tried again every five seconds; what is said about it is said once."""
    api = FakeApi()
    api.pods = [pod("a"), pod("b"), pod("bare", controller="")]
    api.claims = [
        claim("one", "gpu-0", "a"),
        claim("two", "gpu-0-mig-1g10gb-19-0", "b"),
        claim("three", "gpu-1", "bare"),
    ]
    api.budgets["b"] = budget("The disruption budget web needs 1 healthy pods and has 1 currently")
    run = Run(api, replace(ALL, evict=True), timeout_s=12.0)
    with pytest.raises(DrainFailedError, match=r"2 devices are in use: .*team/two.*team/three") as failed:
        run.drain()
    assert "--evict" not in str(failed.value)
    assert api.requests.count("evict b") == 3
    assert run.report.evicted == ["team/a"]
    assert set(run.report.not_evicted) == {"team/b", "team/bare"}
    assert len([text for text in run.said if "disruption budget web" in text]) == 1
    assert "--force" in run.report.not_evicted["team/bare"]
    assert DETACH_ANNOTATION not in api.annotations, "not before the GPUs are free"
    del api.budgets["b"]
    again = Run(api, replace(ALL, evict=True, force=True)).drain()
    assert (again.result, again.evicted) == ("done", ["team/b", "team/bare"])


def test_a_user_who_may_not_evict_is_told_where() -> None:
    """The rest of the drain goes on."""
    api = FakeApi()
    api.pods, api.claims = [pod("a")], [claim("one", "gpu-0", "a")]
    api.budgets["a"] = ForbiddenError("403", status=403)
    run = Run(api, replace(ALL, evict=True), timeout_s=0.0)
    with pytest.raises(DrainFailedError):
        run.drain()
    assert run.report.not_evicted == {"team/a": "this user may not create pods/eviction in namespace team"}


def test_a_claim_that_was_allocated_while_the_taint_was_written_is_waited_for() -> None:
    """The scheduler had not seen the taint yet."""
    api = FakeApi()
    run = Run(api, ALL)
    found, late = run.sleep, [claim("ends-by-itself", "gpu-0", "a")]

    def sleep(seconds: float) -> None:
        if late:
            api.pods, api.claims = [pod("a")], [late.pop()]
        found(seconds)

    run.sleep = sleep  # type: ignore[method-assign]
    run.drain()
    assert run.now > 10


def test_single_gpus_are_added_and_the_driver_stays_in_use() -> None:
    """A second drain does not end the first one."""
    api = FakeApi()
    api.annotations[DRAIN_ANNOTATION] = "GPU-1"
    api.claims, api.pods = [claim("one", "gpu-1", "a")], [pod("a")]
    report = Run(api, replace(ALL, gpus=("gpu-0",))).drain()
    assert (report.annotation, report.free, report.detached) == ("GPU-0,GPU-1", True, None)
    assert DETACH_ANNOTATION not in api.annotations
    assert Run(api, replace(ALL, gpus=("gpu-0",), detach=True)).drain().detached is True


def test_all_missing_rights_are_named_before_anything_is_changed() -> None:
    """The token of a tenant: he reads what to ask an administrator for, in one go."""
    api = FakeApi()
    api.denied = {
        ("patch", "nodes"),
        ("list", "resourceclaims"),
        ("list", "pods"),
        ("create", "pods"),
        ("list", "events"),
    }
    with pytest.raises(MissingRightsError) as missing:
        Run(api, replace(ALL, evict=True)).drain()
    for right in (
        "patch nodes gpu-a",
        "list resourceclaims.resource.k8s.io in all namespaces",
        "list pods in all namespaces",
        "create pods/eviction in all namespaces",
        "list events in namespace default",
    ):
        assert right in str(missing.value)
    assert api.requests == []
    api.denied = {("create", "pods")}
    assert Run(api, replace(ALL, evict=True)).drain().result == "done", "nothing has to be evicted"


def test_a_node_process_that_does_not_answer_is_named() -> None:
    """The annotation stays: a node process that comes back obeys it."""
    api = FakeApi()
    api.node_process = False
    run = Run(api, ALL)
    with pytest.raises(DrainFailedError, match="have no taint"):
        run.drain()
    assert run.now == pytest.approx(60.0)
    assert run.report.annotation == "all"
    assert any("stays" in text for text in state_left(run.report))


def test_a_detach_that_another_person_asked_for_is_waited_for() -> None:
    """Its reason is known by the event, and it stays as it is."""
    api = FakeApi()
    api.annotations[DETACH_ANNOTATION] = "driver 580"
    assert Run(api, ALL).drain().detached is True
    assert api.annotations[DETACH_ANNOTATION] == "driver 580"


def test_a_detach_that_is_not_confirmed_is_a_failure() -> None:
    """A person who unloads the driver after a guess meets a busy module."""
    api = FakeApi()
    api.is_silent = True
    run = Run(api, ALL)
    with pytest.raises(DrainFailedError, match="no event DriverDetached"):
        run.drain()
    assert (run.report.free, run.report.detached) == (True, False)
    assert any(DETACH_ANNOTATION in text for text in state_left(run.report))


def test_other_writers_are_not_undone() -> None:
    """Each change holds for one version of the Node; after a conflict it is decided anew."""
    api = FakeApi()
    api.conflicts = 3
    assert Run(api, ALL).drain().result == "done"


def test_single_failed_answers_end_nothing() -> None:
    """A drain looks for minutes; an API server that stays away ends it."""
    api = FakeApi()
    run = Run(api, ALL)
    api.failures = [ApiUnreachableError("refused")]
    with pytest.raises(ApiUnreachableError):
        run.drain()  # before anything was changed
    api.claims, api.pods = [claim("ends-by-itself", "gpu-0", "a")], [pod("a")]
    run = Run(api, ALL)
    found = run.sleep

    def sleep(seconds: float) -> None:
        found(seconds)
        if 5 < run.now < 7 and not api.failures:
            api.failures = [ApiUnreachableError("refused")] * (TRIES - 2)

    run.sleep = sleep  # type: ignore[method-assign]
    assert run.drain().result == "done"


def test_a_node_that_does_not_exist_is_a_mistake() -> None:
    """Nothing is written."""
    with pytest.raises(ConfigurationError, match="'gpu-z' does not exist"):
        Run(FakeApi(), replace(ALL, node="gpu-z")).drain()


def test_undrain_ends_what_drain_began() -> None:
    """And leaves the request of another person, with the command that ends it."""
    api = FakeApi()
    Run(api, ALL).drain()
    report = Run(api, ALL).undrain()
    assert (api.annotations, report.result) == ({}, "done")
    api.annotations = {DRAIN_ANNOTATION: "all", DETACH_ANNOTATION: "driver 580"}
    report = Run(api, ALL).undrain()
    assert (api.annotations, report.detached) == ({DETACH_ANNOTATION: "driver 580"}, True)
    assert f"{DETACH_ANNOTATION}-" in report.next_steps[0]


def test_single_gpus_are_given_back() -> None:
    """Of a node that is drained as a whole they cannot be: which others to keep is not known."""
    api = FakeApi()
    api.annotations[DRAIN_ANNOTATION] = "GPU-0,GPU-1"
    assert Run(api, replace(ALL, gpus=("gpu-0",))).undrain().annotation == "GPU-1"
    api.annotations[DRAIN_ANNOTATION] = "all"
    with pytest.raises(ConfigurationError, match="the whole node is drained"):
        Run(api, replace(ALL, gpus=("gpu-0",))).undrain()


def test_a_detach_ends_with_the_last_gpu_it_was_asked_for() -> None:
    """A reset of the other one is in progress; the driver would be loaded under it."""
    api = FakeApi()
    first, second = (replace(ALL, gpus=(name,), detach=True) for name in ("gpu-0", "gpu-1"))
    Run(api, first).drain()
    Run(api, second).drain()
    run = Run(api, first)
    report = run.undrain()
    assert (report.annotation, report.detached, report.result) == ("GPU-1", True, "done")
    assert "undrain gpu-a --gpu GPU-1" in report.next_steps[0]
    assert any("still drained" in text for text in run.said)
    assert DETACH_ANNOTATION in api.annotations
    assert Run(api, second).undrain().detached is False
    assert api.annotations == {}


def test_a_gpu_that_is_drained_without_a_detach_needs_none() -> None:
    """The driver is used again, and the GPU stays drained."""
    api = FakeApi()
    Run(api, replace(ALL, gpus=("gpu-1",))).drain()
    only = replace(ALL, gpus=("gpu-0",), detach=True)
    Run(api, only).drain()
    assert Run(api, only).undrain().detached is False
    assert api.annotations == {DRAIN_ANNOTATION: "GPU-1"}
    api.annotations[DETACH_ANNOTATION] = "false"
    assert Run(api, only).undrain().detached is False


def test_a_detach_of_an_older_version_stays_while_a_gpu_is_drained() -> None:
    """It does not say for which GPU it is."""
    api = FakeApi()
    api.annotations = {DRAIN_ANNOTATION: "GPU-0,GPU-1", DETACH_ANNOTATION: "kubectl dra drain 1a2b3c4d"}
    assert Run(api, replace(ALL, gpus=("gpu-0",))).undrain().detached is True
    assert Run(api, replace(ALL, gpus=("gpu-1",))).undrain().detached is False
    assert api.annotations == {}


@pytest.mark.parametrize("reason", ["", "driver  580\n", "long " * 100])
def test_every_reason_of_another_person_is_kept_and_known_by_its_event(reason: str) -> None:
    """An annotation asks whatever it contains, and the node process tells its reason as one short line."""
    api = FakeApi()
    api.annotations[DETACH_ANNOTATION] = reason
    assert Run(api, ALL).drain().detached is True
    report = Run(api, ALL).undrain()
    assert (api.annotations, report.detached) == ({DETACH_ANNOTATION: reason}, True)
    assert f"{DETACH_ANNOTATION}-" in report.next_steps[0]


def test_a_gpu_that_is_not_published_is_named() -> None:
    """A lost GPU can be drained, and a mistyped UUID must not pass for a free GPU without a word."""
    run = Run(FakeApi(), replace(ALL, gpus=("gpu-0", "GPU-typo")))
    run.drain()
    assert [text for text in run.said if "does not publish GPU-typo:" in text]
