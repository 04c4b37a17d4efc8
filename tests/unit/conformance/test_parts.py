"""Parts of the suite: published pools and claim templates, CDI directories, reports, and the choice of checks."""

import json
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from msgspec.structs import replace

from dra_driver.conformance import cdi_folder, report, suite
from dra_driver.conformance.bench import Bench
from dra_driver.conformance.checks import CHECKS
from dra_driver.conformance.checks.prepare import check_devices
from dra_driver.conformance.cluster import CheckClaim, counters, devices, incomplete, narrowed, read_template, together
from dra_driver.conformance.plugin import AnsweredDevice, ClaimKey
from dra_driver.conformance.values import CAPABILITIES, Check, CheckOutcome, ViolationError
from dra_driver.core.errors import ConfigurationError
from dra_driver.core.finding import Finding, Status
from dra_driver.core.unix_grpc import CallError

Wire = dict[str, Any]


def slice_of(name: str, *, generation: int = 1, count: int = 1, **content: Any) -> Wire:
    pool = {"name": "pool", "generation": generation, "resourceSliceCount": count}
    return {"metadata": {"name": name}, "spec": {"driver": "d", "pool": pool, **content}}


def uses(name: str, amount: str) -> Wire:
    return {"name": name, "consumesCounters": [{"counterSet": "card", "counters": {"memory": {"value": amount}}}]}


CARD = slice_of("b", count=2, sharedCounters=[{"name": "card", "counters": {"memory": {"value": "8Gi"}}}])


def test_pools_without_all_of_their_slices_are_named() -> None:
    assert incomplete([slice_of("a", count=2, devices=[]), CARD]) == ""
    assert "has 1 slices of its newest generation 1, and they say that there are 2" in incomplete([CARD])
    assert incomplete([]) == "the driver has published no ResourceSlice for this node"


def test_slices_of_older_generations_do_not_count() -> None:
    old, new = slice_of("a", devices=[{"name": "old"}]), slice_of("b", generation=2, devices=[{"name": "new"}])
    assert [device.name for device in devices([old, new])] == ["new"]
    assert incomplete([old, new]) == ""


def test_devices_that_exclude_each_other_are_not_chosen_together() -> None:
    offered = [uses("whole", "8Gi"), uses("part-0", "4Gi"), uses("part-1", "4Gi"), uses("part-2", "4Gi")]
    slices = [slice_of("a", count=2, devices=offered), CARD]
    assert [device.name for device in together(slices, devices(slices), 32)] == ["part-0", "part-1"]


def test_shares_and_more_devices_than_wanted_are_left_out() -> None:
    offered = [{"name": "shared", "allowMultipleAllocations": True}, *({"name": f"d-{at}"} for at in range(5))]
    slices = [slice_of("a", devices=offered)]
    assert [device.name for device in together(slices, devices(slices), 3)] == ["d-0", "d-1", "d-2"]


def test_narrowed_slices_keep_their_counters() -> None:
    slices = [slice_of("a", count=2, devices=[uses("part-0", "4Gi"), uses("part-1", "4Gi")]), CARD]
    kept = narrowed(slices, {("pool", "part-1")})
    assert [device.name for device in devices(kept)] == ["part-1"]
    assert counters(kept) == counters(slices)
    assert len(devices(slices)) == 2  # the original is not changed


SPEC = "devices: {requests: [{name: a, exactly: {deviceClassName: c}}]}"
CLAIM = f"kind: ResourceClaim\nspec: {{{SPEC}}}\n"
TEMPLATE = f"kind: ResourceClaimTemplate\nspec: {{spec: {{{SPEC}}}}}\n"
CLASS = "kind: DeviceClass\nmetadata: {name: c}\nspec: {}\n"


@pytest.mark.parametrize("text", [CLAIM, TEMPLATE, f"{CLASS}---\n{TEMPLATE}---\n"])
def test_a_claim_or_template_is_read(tmp_path: Path, text: str) -> None:
    path = tmp_path / "t.yaml"
    path.write_text(text)
    template = read_template(path)
    assert template.spec["devices"]["requests"][0]["name"] == "a"
    assert len(template.classes) == text.count("DeviceClass\n")


@pytest.mark.parametrize(
    "text", ["", "kind: Pod\n", f"{CLAIM}---\n{CLAIM}", "kind: ResourceClaim\nspec: 1\n", "a: [", "- 1\n", CLASS, None]
)
def test_other_files_are_refused_by_name(tmp_path: Path, text: str | None) -> None:
    path = tmp_path / "t.yaml"
    if text is not None:
        path.write_text(text)
    with pytest.raises(ConfigurationError, match=r"--claim-template .*t\.yaml"):
        read_template(path)


EDITS = {"env": ["A=b"]}


def document(**fields: Any) -> dict[str, Any]:
    return {"cdiVersion": "0.5.0", "kind": "v.com/gpu", "devices": [{"name": "one", "containerEdits": EDITS}]} | fields


@pytest.fixture
def folders(tmp_path: Path) -> list[Path]:
    made = [tmp_path / "etc", tmp_path / "run"]
    for folder in made:
        folder.mkdir()
    return made


def test_a_device_of_any_folder_resolves(folders: list[Path]) -> None:
    (folders[0] / "a.json").write_text(json.dumps(document()))
    nic = "cdiVersion: 0.6.0\nkind: w.com/nic\ndevices:\n- name: x\n  containerEdits:\n    env: [A=b]\n"
    (folders[1] / "b.yaml").write_text(nic)
    assert cdi_folder.unresolved(folders, ["v.com/gpu=one", "w.com/nic=x"]) == []


def test_two_files_of_one_folder_conflict(folders: list[Path]) -> None:
    for name in ("a.json", "b.json"):
        (folders[0] / name).write_text(json.dumps(document()))
    assert cdi_folder.unresolved(folders, ["v.com/gpu=one"]) == ["v.com/gpu=one: 2 files of one folder define it"]


def test_a_later_folder_wins_over_a_conflict(folders: list[Path]) -> None:
    for folder, name in ((folders[0], "a.json"), (folders[0], "b.json"), (folders[1], "c.json")):
        (folder / name).write_text(json.dumps(document()))
    assert cdi_folder.unresolved(folders, ["v.com/gpu=one"]) == []


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"cdiVersion": "9.0.0"}, "cdiVersion '9.0.0' is unknown"),
        ({"kind": "gpu"}, "gpu=one is not vendor/class=name"),
        ({"devices": []}, "no devices"),
        ({"devices": [{"name": "one", "containerEdits": {}}]}, "device one has no containerEdits"),
        ({"devices": [{"name": "one", "containerEdits": EDITS}] * 2}, "a device is defined twice"),
        ({"devices": ["one"]}, "v.com/gpu=None is not vendor/class=name"),
    ],
)
def test_a_file_that_runtimes_refuse_is_explained(folders: list[Path], fields: dict[str, Any], problem: str) -> None:
    path = folders[0] / "a.json"
    path.write_text(json.dumps(document(**fields)))
    message = f"v.com/gpu=one: no file defines it ({path}: {problem})"
    assert cdi_folder.unresolved(folders, ["v.com/gpu=one"]) == [message]


def test_a_huge_file_is_not_read(folders: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cdi_folder, "MAX_BYTES", 10)
    (folders[0] / "a.json").write_text(json.dumps(document()))
    assert cdi_folder.read(folders[0] / "a.json").problem.startswith("larger than")


def test_hidden_and_other_files_do_not_count(folders: list[Path]) -> None:
    for name in (".a.json", "a.txt"):
        (folders[0] / name).write_text(json.dumps(document()))
    assert cdi_folder.files(folders) == {}


def test_qualified_names() -> None:
    assert all(map(cdi_folder.is_qualified, ("v.com/gpu=one", "nvidia.com/gpu=GPU-1:0", "a/b=c")))
    wrong = ("one", "gpu=one", "v.com/gpu=", "v.com/=one", "1v/gpu=one", "v.com/gpu=one\n", "v/g=-")
    assert not any(map(cdi_folder.is_qualified, wrong))


def something(_bench: Bench) -> None:
    """Something is done.

    It must.
    """


def outcome(status: Status, seen: str = "", *, seconds: float = 0.0) -> CheckOutcome:
    check = Check(id="a-check", source="file.go:1", run=something)
    return CheckOutcome(check=check, finding=Finding(status=status, seen=seen), seconds=seconds)


STATUSES = (Status.OK, Status.FAIL, Status.WARN, Status.SKIPPED, Status.UNKNOWN)


def test_a_line_has_verdict_rule_source_and_what_was_seen() -> None:
    text = report.line(outcome(Status.FAIL, "it did\x1b[31m not", seconds=1.25))
    assert text.splitlines() == [
        "FAIL    a-check                      Something is done (1.2 s)",
        "        It must. [file.go:1]",
        "        seen: it did?[31m not",
    ]


def test_json_has_every_check() -> None:
    document = json.loads(report.as_json("d.example.com", "full", [outcome(status) for status in STATUSES]))
    assert document["driver"] == "d.example.com"
    verdicts = [check["verdict"] for check in document["checks"]]
    assert verdicts == ["passed", "failed", "advice", "not applicable", "unable"]
    assert document["checks"][0]["source"] == "file.go:1"


def test_junit_counts_failures_errors_and_skips() -> None:
    outcomes = [outcome(status, "\x00<seen>") for status in STATUSES]
    root = ElementTree.fromstring(report.as_junit("d.example.com", outcomes))  # noqa: S314 - our own text
    assert [root.get(name) for name in ("tests", "failures", "errors", "skipped")] == ["5", "1", "1", "1"]
    failure = root.find("./testcase/failure")
    assert failure is not None
    assert (failure.get("message"), failure.text) == ("?<seen>", "It must. [file.go:1]")


def test_the_basic_profile_is_a_part_of_the_full_one() -> None:
    basic, full = suite.select("basic"), suite.select("full")
    assert set(basic) < set(full) == set(CHECKS)
    assert all(not check.needs or "restart" not in check.needs for check in basic)


def test_checks_have_unique_ids_rules_and_sources() -> None:
    assert len({check.id for check in CHECKS}) == len(CHECKS) >= 75
    assert all(check.rule and check.source and check.title for check in CHECKS)
    assert {need for check in CHECKS for need in check.needs} == set(CAPABILITIES)


class StubBench:
    """Only what `check_devices` and `suite.run` ask of a bench."""

    class subject:  # noqa: N801
        driver = "d"

    def begin(self) -> None: ...

    def clean(self) -> None: ...


@pytest.mark.parametrize(
    ("answered", "problem"),
    [("ab", ""), ("a", "has devices"), ("aa", "has devices"), ("abc", "has devices"), ("cd", "has devices")],
)
def test_an_answer_has_exactly_the_claims_devices(answered: str, problem: str) -> None:
    results = tuple({"driver": "d", "pool": "p", "device": name, "request": "r/sub"} for name in "ab")
    claim = CheckClaim(key=ClaimKey(namespace="n", name="c", uid="u"), wire={}, results=results)
    found = tuple(AnsweredDevice(requests=("r",), pool="p", device=name, cdi_ids=()) for name in answered)
    bench: Any = StubBench()
    if not problem:
        check_devices(bench, claim, found)
        return
    with pytest.raises(ViolationError, match=problem):
        check_devices(bench, claim, found)


def test_shares_of_one_device_are_all_answered() -> None:
    shares = tuple({"driver": "d", "pool": "p", "device": "a", "request": "r", "shareID": each} for each in "12")
    claim = CheckClaim(key=ClaimKey(namespace="n", name="c", uid="u"), wire={}, results=shares)
    bench: Any = StubBench()
    with pytest.raises(ViolationError, match="has devices"):
        check_devices(bench, claim, (AnsweredDevice(requests=("r",), pool="p", device="a", cdi_ids=()),))


@pytest.mark.parametrize(("level", "status"), [("must", Status.FAIL), ("should", Status.WARN)])
def test_a_call_that_fails_is_a_failed_check(level: Any, status: Status) -> None:
    def run(bench: Bench) -> None:
        raise CallError("UNAVAILABLE", "gone")

    stub: Any = StubBench()
    (outcome,) = suite.run(stub, [replace(CHECKS[0], run=run, level=level)])
    assert outcome.finding.status is status
