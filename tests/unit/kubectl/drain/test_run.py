"""Draining and undraining, step by step, the holders of GPUs, and how the command ends, with a cluster in memory."""

import argparse
import json
from collections.abc import Mapping

import pytest
from msgspec.structs import replace

from dra_driver.core.document import to_wire
from dra_driver.core.errors import (
    AnswerTooLargeError,
    ApiUnreachableError,
    ConfigurationError,
    DraError,
    ForbiddenError,
)
from dra_driver.core.model.drain import DETACH_ANNOTATION, DRAIN_ANNOTATION
from dra_driver.core.model.ids import GpuUuid
from dra_driver.kube import paths
from dra_driver.kubectl.commands.drain import finish
from dra_driver.kubectl.drain import DrainOptions, DrainReport, document_of, drain, state_left, undrain
from dra_driver.kubectl.drain.report import line
from dra_driver.kubectl.drain.run import DrainFailedError, MissingRightsError
from dra_driver.kubectl.drain.view import (
    TRIES,
    DeviceHolder,
    DrainScope,
    DrainWait,
    SliceSpec,
    gpus_of,
    holders_of,
    is_settled,
    newest_specs,
    selected,
)
from tests.harness.raising import fails
from tests.unit.kubectl.drain.cluster import (
    DRIVER,
    NODE,
    POOL,
    FakeApi,
    Wire,
    budget,
    claim,
    device,
    pod,
    resource_slice,
)

ALL = DrainOptions(node=NODE, driver=DRIVER)


class Run:
    """One command with a clock that advances only by sleeping."""

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
    api = FakeApi()
    report = Run(api, ALL).drain()
    assert [request.partition("=")[0] for request in api.requests] == [DRAIN_ANNOTATION, DETACH_ANNOTATION]
    assert (report.tainted, report.free, report.detached, report.result) == (True, True, True, "done")
    assert report.gpus == ("GPU-0", "GPU-1")
    assert document_of(report).annotation == "all"


def test_cordon_precedes_the_taint_and_its_undo_is_named() -> None:
    """The cluster autoscaler copies a schedulable node at each scan: the taint must come second."""
    run = Run(FakeApi(), replace(ALL, cordon=True))
    run.drain()
    asked = ["{'unschedulable': True}", DRAIN_ANNOTATION, DETACH_ANNOTATION]
    assert [request.partition("=")[0] for request in run.api.requests] == asked
    assert run.report.next_steps[-1] == f"afterwards: kubectl dra undrain {NODE}, then kubectl uncordon {NODE}"
    before = Run(FakeApi(), replace(ALL, cordon=True, dry_run=True))
    before.drain()
    assert before.api.requests == []
    assert before.said[-1] == f"dry run: would cordon node {NODE} and drain 2 GPUs; nothing was changed"
    assert (document_of(run.report).cordoned, document_of(before.report).cordoned) == (True, False)


def test_an_unfinished_drain_names_the_cordon_and_its_undo() -> None:
    class Refused(FakeApi):
        def merge_patch(self, path: str, body: Mapping[str, object]) -> Wire:
            if "metadata" in body:
                raise ApiUnreachableError("refused")
            return super().merge_patch(path, body)

    cordoned = f"node {NODE} stays cordoned: kubectl uncordon {NODE}"
    for api, error in ((Refused(), ApiUnreachableError), (FakeApi(node_process=False), DrainFailedError)):
        run = Run(api, replace(ALL, cordon=True))
        with pytest.raises(error):
            run.drain()
        left = state_left(run.report)
        assert left[0] == cordoned
        assert "nothing was changed" not in left


def test_a_dry_run_names_the_pods_and_changes_nothing() -> None:
    api = FakeApi(pods=[pod("a"), pod("bare", controller="")])
    api.claims = [claim("one", "gpu-0", "a"), claim("two", "gpu-1", "bare")]
    run = Run(api, replace(ALL, evict=True, dry_run=True))
    run.drain()
    assert (run.report.result, run.report.evicted, api.requests, api.annotations) == ("done", [], [], {})
    shown = "\n".join(run.said)
    assert "would evict: pod team/a" in shown
    assert "would not evict: pod team/bare: it has no controller" in shown
    items = to_wire(document_of(run.report))["items"]
    assert [(each["claim"], each["pods"][0]["pod"]) for each in items] == [("one", "a"), ("two", "bare")]


def test_an_unlisted_pod_has_the_fields_of_others_and_is_not_evicted() -> None:
    api = FakeApi(pods=[pod("a")], claims=[claim("one", "gpu-0", "a", "unlisted")])
    run = Run(api, replace(ALL, evict=True, dry_run=True))
    run.drain()
    (item,) = to_wire(document_of(run.report))["items"]
    fields = {"namespace", "pod", "uid", "controller", "ending", "keptReason"}
    assert [set(each) for each in item["pods"]] == [fields, fields]
    assert not any("team/unlisted" in text for text in run.said)


def test_a_dry_run_of_undrain_changes_nothing() -> None:
    api = FakeApi(annotations={DRAIN_ANNOTATION: "GPU-1"})
    run = Run(api, replace(ALL, dry_run=True))
    run.undrain()
    assert (run.said, api.requests) == (["dry run: would undrain 1 GPU; nothing was changed"], [])


def test_odd_objects_end_no_drain() -> None:
    api = FakeApi(events=[{"message": 7}, {"count": "x"}])
    api.pods = [pod("a"), {"metadata": {"uid": 7, "labels": {"a": 7}}, "status": "x"}, {"metadata": {"uid": 8}}]
    api.pods[0]["metadata"]["ownerReferences"].append("x")
    api.claims = [claim("ends-by-itself", "gpu-0", "a"), {"metadata": {"name": "odd"}, "status": {"allocation": 7}}]
    report = Run(api, replace(ALL, evict=True)).drain()
    assert (report.result, report.detached, report.evicted) == ("done", True, ["team/a"])


def test_pods_are_evicted_as_budgets_allow() -> None:
    api = FakeApi(pods=[pod("a"), pod("b"), pod("bare", controller="")])
    api.claims = [
        claim("one", "gpu-0", "a"),
        claim("two", "gpu-0-mig-1g10gb-19-0", "b"),
        claim("three", "gpu-1", "bare"),
    ]
    api.budgets["b"] = budget("The disruption budget web needs 1 healthy pods and has 1 currently")
    run = Run(api, replace(ALL, evict=True), timeout_s=12.0)
    with pytest.raises(DrainFailedError, match=r"team/two.*team/three") as failed:
        run.drain()
    assert "--evict" not in str(failed.value)
    assert api.requests.count("evict b") == 3
    assert run.report.evicted == ["team/a"]
    assert set(run.report.refusals) == {"team/b", "team/bare"}
    assert len([text for text in run.said if "disruption budget web" in text]) == 1
    assert "--force" in run.report.refusals["team/bare"]
    assert DETACH_ANNOTATION not in api.annotations, "not before the GPUs are free"
    del api.budgets["b"]
    again = Run(api, replace(ALL, evict=True, force=True)).drain()
    assert (again.result, again.evicted) == ("done", ["team/b", "team/bare"])


def test_the_api_servers_retry_after_is_kept() -> None:
    api = FakeApi(pods=[pod("b")], claims=[claim("two", "gpu-0", "b")])
    refusal = budget("not now")
    refusal.retry_after_s = 10
    api.budgets["b"] = refusal
    with pytest.raises(DrainFailedError):
        Run(api, replace(ALL, evict=True), timeout_s=12.0).drain()
    assert api.requests.count("evict b") == 2


def test_missing_eviction_permission_is_reported() -> None:
    refused = {"a": ForbiddenError("403", status=403)}
    api = FakeApi(pods=[pod("a")], claims=[claim("one", "gpu-0", "a")], budgets={**refused})
    run = Run(api, replace(ALL, evict=True), timeout_s=0.0)
    with pytest.raises(DrainFailedError):
        run.drain()
    assert run.report.refusals == {"team/a": "no permission to create pods/eviction in namespace team"}


def test_drain_waits_for_claim_allocated_during_tainting() -> None:
    api = FakeApi()
    run = Run(api, ALL)
    found, late = run.sleep, [claim("ends-by-itself", "gpu-0", "a")]

    def sleep(seconds: float) -> None:
        if late:
            api.pods, api.claims = [pod("a")], [late.pop()]
        found(seconds)

    run.sleep = sleep  # type: ignore[method-assign]
    run.drain()
    assert 10 < run.now < 20
    assert not [request for request in api.requests if request.startswith("evict")], "on request only"
    assert any(text.startswith("ended:") for text in run.said)


def test_single_gpus_are_added_and_the_driver_stays_in_use() -> None:
    api = FakeApi({DRAIN_ANNOTATION: "GPU-1"}, claims=[claim("one", "gpu-1", "a")], pods=[pod("a")])
    report = Run(api, replace(ALL, gpus=("gpu-0",))).drain()
    assert (report.annotation, report.free, report.detached) == ("GPU-0,GPU-1", True, None)
    assert DETACH_ANNOTATION not in api.annotations
    assert Run(api, replace(ALL, gpus=("gpu-0",), detach=True)).drain().detached is True


def test_all_missing_rights_are_named_before_anything_is_changed() -> None:
    api = FakeApi()
    api.denied = {("list", name) for name in ("resourceclaims", "pods", "events")}
    api.denied |= {("patch", "nodes"), ("create", "pods")}
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
    assert Run(api, replace(ALL, evict=True)).drain().result == "done", "no pod needs eviction"


@pytest.mark.parametrize("evict", [False, True])
def test_a_list_that_cannot_be_read_fails_before_anything_is_changed(evict: bool) -> None:
    class Unlisted(FakeApi):
        def list(self, path: str, query: Mapping[str, str] | None = None) -> Wire:
            if path == paths.resource_claims():
                raise AnswerTooLargeError(f"GET {path}: too large")
            return super().list(path, query)

    api = Unlisted()
    with pytest.raises(AnswerTooLargeError):
        Run(api, replace(ALL, evict=evict)).drain()
    assert (api.annotations, api.requests) == ({}, [])


def test_a_node_process_that_does_not_answer_is_named() -> None:
    run = Run(FakeApi(node_process=False), ALL)
    with fails(DrainFailedError, "NotTainted"):
        run.drain()
    assert run.now == pytest.approx(60.0)
    assert run.report.annotation == "all"
    assert any("is kept" in text for text in state_left(run.report))


def test_an_unfinished_drain_of_one_gpu_names_the_undrain_of_that_gpu() -> None:
    """Without ``--gpu``, the command would also return GPUs that another drain has taken out of service."""
    run = Run(FakeApi(node_process=False), replace(ALL, gpus=("gpu-1",)))
    with fails(DrainFailedError, "NotTainted"):
        run.drain()
    assert any(f"undrain {NODE} --gpu gpu-1 " in text for text in state_left(run.report))


def test_a_detach_that_is_not_confirmed_is_a_failure() -> None:
    run = Run(FakeApi(is_silent=True), ALL)
    with fails(DrainFailedError, "DetachUnconfirmed"):
        run.drain()
    assert (run.report.free, run.report.detached) == (True, False)
    assert any(DETACH_ANNOTATION in text for text in state_left(run.report))


def test_other_writers_and_single_failed_answers_end_nothing() -> None:
    assert Run(FakeApi(conflicts=3), ALL).drain().result == "done"
    api = FakeApi(failures=[ApiUnreachableError("refused")])
    with pytest.raises(ApiUnreachableError):
        Run(api, ALL).drain()  # before anything was changed
    api.claims, api.pods = [claim("ends-by-itself", "gpu-0", "a")], [pod("a")]
    run = Run(api, ALL)
    found = run.sleep

    def sleep(seconds: float) -> None:
        found(seconds)
        if 5 < run.now < 7 and not api.failures:
            api.failures = [ApiUnreachableError("refused")] * (TRIES - 2)

    run.sleep = sleep  # type: ignore[method-assign]
    assert run.drain().result == "done"


def test_undrain_ends_what_drain_began() -> None:
    api = FakeApi()
    Run(api, ALL).drain()
    report = Run(api, ALL).undrain()
    assert (api.annotations, report.result) == ({}, "done")
    # Single GPUs of a fully drained node cannot be undrained: the remaining GPUs are unknown.
    api = FakeApi({DRAIN_ANNOTATION: "GPU-0,GPU-1"})
    assert Run(api, replace(ALL, gpus=("gpu-0",))).undrain().annotation == "GPU-1"
    api.annotations[DRAIN_ANNOTATION] = "all"
    with fails(ConfigurationError, "WholeNodeDrained"):
        Run(api, replace(ALL, gpus=("gpu-0",))).undrain()


def test_detach_ends_with_its_last_gpu() -> None:
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
    api = FakeApi({DRAIN_ANNOTATION: "GPU-0,GPU-1", DETACH_ANNOTATION: "kubectl dra drain 1a2b3c4d"})
    assert Run(api, replace(ALL, gpus=("gpu-0",))).undrain().detached is True
    assert Run(api, replace(ALL, gpus=("gpu-1",))).undrain().detached is False
    assert api.annotations == {}


@pytest.mark.parametrize("reason", ["", "driver  580\n", "long " * 100])
def test_detach_reason_of_other_tools_is_kept(reason: str) -> None:
    api = FakeApi({DETACH_ANNOTATION: reason})
    assert Run(api, ALL).drain().detached is True
    report = Run(api, ALL).undrain()
    assert (api.annotations, report.detached) == ({DETACH_ANNOTATION: reason}, True)
    assert f"{DETACH_ANNOTATION}-" in report.next_steps[0]


def test_a_node_or_gpu_that_does_not_exist_is_named() -> None:
    with pytest.raises(ConfigurationError, match="gpu-z"):
        Run(FakeApi(), replace(ALL, node="gpu-z")).drain()
    run = Run(FakeApi(), replace(ALL, gpus=("gpu-0", "GPU-typo")))
    run.drain()
    assert [text for text in run.said if "does not publish GPU-typo:" in text]


def specs(slices: list[Wire], node: str = NODE) -> list[SliceSpec]:
    return newest_specs(slices, node, DRIVER)


SLICES = [
    resource_slice(device("gpu-0", "GPU-0", taint=True), device("gpu-0-mig-1g10gb-19-0", "GPU-0"), generation=2),
    resource_slice(device("gpu-1", "GPU-1", taint=True), generation=2),
    resource_slice(device("gpu-9", "GPU-9"), generation=1),
    resource_slice(device("gpu-7", "GPU-7"), node="other"),
    resource_slice(device("gpu-8", "GPU-8"), driver="other"),
]
PUBLISHED = gpus_of(specs(SLICES))


def test_gpus_of_newest_generation_are_selected_by_uuid_or_name() -> None:
    found = [(gpu.name, gpu.uuid, len(gpu.devices), gpu.drained, gpu.marked) for gpu in PUBLISHED]
    assert found == [("gpu-0", "GPU-0", 2, False, True), ("gpu-1", "GPU-1", 1, True, True)]
    assert selected(PUBLISHED, ["gpu-1", "GPU-0", "GPU-1", "GPU-lost"]) == ("GPU-1", "GPU-0", "GPU-lost")
    with pytest.raises(ConfigurationError, match=r"gpu-5.*gpu-0 \(GPU-0\)"):
        selected(PUBLISHED, ["gpu-5"])


def test_a_pool_in_the_middle_of_a_change_is_not_settled() -> None:
    """A taint would seem to be gone, or to be there, while half of the resource slices are of the old generation."""
    half = [resource_slice(device("gpu-0", "GPU-0"), generation=2, of=2)]
    whole = [*half, resource_slice(device("gpu-1", "GPU-1"), generation=2, of=2)]
    old = resource_slice(device("gpu-1", "GPU-1"), generation=1, of=2)
    assert not is_settled(specs([*half, old]))
    assert is_settled(specs([*whole, old]))
    assert is_settled(specs([]))
    assert is_settled(specs(half, "other"))


def held(claims: list[Wire], pods: list[Wire], gpus: set[str] | None = None, *, force: bool) -> list[DeviceHolder]:
    chosen = None if gpus is None else {GpuUuid(gpu) for gpu in gpus}
    scope = DrainScope(driver=DRIVER, pool=POOL, gpus=chosen, published=PUBLISHED)
    return list(holders_of(claims, pods, scope, force=force))


def lines(*claims: Wire, gpus: set[str] | None = None) -> list[str]:
    pods = [pod("a"), pod("bare", controller="")]
    return [line(holder) for holder in held(list(claims), pods, gpus, force=False)]


def test_every_form_is_found() -> None:
    extended = claim("made", "gpu-1", "a")
    extended["metadata"]["annotations"] = {"resource.kubernetes.io/extended-resource-claim": "true"}
    found = lines(
        claim("part", "gpu-0-mig-1g10gb-19-0", "bare"),
        claim("share", "gpu-0", "a", shareID="x"),
        extended,
        claim("watch", "gpu-1", "a", adminAccess=True),
        claim("unused", "gpu-0"),
    )
    assert found == [
        "gpu-0 (share): claim team/share, pod a (ReplicaSet/web)",
        "gpu-0 (whole GPU): claim team/unused, no pod",
        "gpu-0-mig-1g10gb-19-0 (partition): claim team/part, pod bare",
        "gpu-1 (whole GPU, extended resource): claim team/made, pod a (ReplicaSet/web)",
        "gpu-1 (admin access): claim team/watch, pod a (ReplicaSet/web)",
    ]


def test_only_the_chosen_gpus_count() -> None:
    """A device that is published no more is taken for one of them by the GPU in its name, else for any."""
    claims = [claim("zero", "gpu-0"), claim("one", "gpu-1"), claim("gone", "gpu-0-mig-2g20gb-14-0")]
    claims += [claim("lost", "gpu-5"), claim("elsewhere", "gpu-0", pool="other/gpu.nvidia.com")]
    found = [text.rpartition("/")[2] for text in lines(*claims, gpus={"GPU-0"})]
    assert found == ["zero, no pod", "gone, no pod", "lost, no pod"]


def test_some_pods_are_not_evicted() -> None:
    pods = [
        pod("bare", controller=""),
        pod("static", **{"kubernetes.io/config.mirror": "x"}),
        pod("asks", **{"gpu.dra-driver.io/no-eviction": "true"}),
        pod("plain"),
    ]
    claims = [claim("c", "gpu-0", "bare", "static", "asks", "plain")]
    for force, kept in ((False, ["bare", "static", "asks"]), (True, ["static", "asks"])):
        (holder,) = held(claims, pods, force=force)
        assert [one.name for one in holder.pods if one.kept] == kept


def test_invalid_claim_of_pool_stays_a_holder() -> None:
    labelled, unnamed, broken = claim("labelled", "gpu-0", "a"), claim("unnamed", "gpu-0"), claim("broken", "gpu-0")
    labelled["metadata"]["labels"] = {"a": 7}
    del labelled["status"]["reservedFor"][0]["uid"]
    unnamed["status"]["allocation"]["devices"]["results"][0]["device"] = 7
    broken["status"]["allocation"]["devices"]["results"] = {"0": {"driver": DRIVER, "pool": POOL, "device": "gpu-0"}}
    other = claim("other", "gpu-0", pool="other")
    other["status"]["allocation"]["devices"]["results"].append("x")
    assert lines(labelled, unnamed, broken, other, {"metadata": None, "status": None}) == [
        "? (whole GPU): claim team/broken, no pod",
        "? (whole GPU): claim team/unnamed, no pod",
        "gpu-0 (whole GPU): claim team/labelled, pod a",
    ]


def test_invalid_device_does_not_hide_others() -> None:
    odd: Wire = {"name": "gpu-1", "attributes": {"uuid": {"string": "GPU-1"}, "other": 7}, "capacity": 7}
    item = resource_slice(device("gpu-0", "GPU-0"), odd, {"name": 7}, {"name": "gpu-2", "attributes": {"uuid": 7}})
    item["metadata"] = {"labels": {"a": 7}}
    assert [gpu.name for gpu in gpus_of(specs([item, {"spec": 7}]))] == ["gpu-0", "gpu-1"]


def ended(error: BaseException | None, output: str, capsys: pytest.CaptureFixture[str]) -> tuple[int, str, str]:
    report = DrainReport(command="drain", node=NODE, driver=DRIVER)

    def work() -> None:
        report.annotation, report.evicted = "all", ["team/web-1"]
        if error is not None:
            raise error
        report.result, report.next_steps = "done", ("reset it",)

    status = finish(argparse.Namespace(output=output), report, work)
    printed = capsys.readouterr()
    return status, printed.out, printed.err


def test_an_interrupt_says_what_state_it_leaves(capsys: pytest.CaptureFixture[str]) -> None:
    status, out, err = ended(KeyboardInterrupt(), "text", capsys)
    assert (status, err) == (130, "kubectl dra drain: interrupted\n")
    assert "gpu.dra-driver.io/drain=all" in out
    assert "team/web-1" in out
    assert "kubectl dra undrain gpu-a" in out


def test_a_failure_is_in_the_json_too(capsys: pytest.CaptureFixture[str]) -> None:
    status, out, err = ended(DraError("2 devices"), "json", capsys)
    document = json.loads(out)
    assert (status, document["kind"], document["result"]) == (1, "DrainReport", "failed")
    assert document["message"] == "2 devices"
    assert document["evicted"] == ["team/web-1"]
    assert "2 devices" in err


def test_finish_prints_next_steps_and_raises_wrong_usage(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert ended(None, "text", capsys) == (0, "next: reset it\n", "")
    with pytest.raises(ConfigurationError):
        ended(ConfigurationError("no such node"), "text", capsys)
