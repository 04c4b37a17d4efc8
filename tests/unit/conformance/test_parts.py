"""Parts of the suite: published pools and claim templates, CDI directories, reports, and the choice of checks."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from xml.etree import ElementTree

import msgspec
import pytest
from msgspec.structs import replace

from dra_driver.conformance import cdi_folder, cluster, report, suite
from dra_driver.conformance.bench import Bench
from dra_driver.conformance.cdi_edits import AnsweredEdits, Host, MergedEdits, sameness
from dra_driver.conformance.checks import CHECKS
from dra_driver.conformance.checks.prepare import check_devices
from dra_driver.conformance.cluster import CheckClaim, counters, devices, incomplete, narrowed, read_template, together
from dra_driver.conformance.plugin import AnsweredDevice, ClaimKey
from dra_driver.conformance.values import CAPABILITIES, Check, CheckOutcome, ViolationError
from dra_driver.core.errors import AlreadyExistsError, ConfigurationError
from dra_driver.core.finding import Finding, Status
from dra_driver.core.unix_grpc import CallError
from tests.harness.raising import fails

Wire = dict[str, Any]


def slice_of(name: str, *, generation: int = 1, count: int = 1, **content: Any) -> Wire:
    pool = {"name": "pool", "generation": generation, "resourceSliceCount": count}
    return {"metadata": {"name": name}, "spec": {"driver": "d", "pool": pool, **content}}


def uses(name: str, amount: str) -> Wire:
    return {"name": name, "consumesCounters": [{"counterSet": "card", "counters": {"memory": {"value": amount}}}]}


CARD = slice_of("b", count=2, sharedCounters=[{"name": "card", "counters": {"memory": {"value": "8Gi"}}}])


def test_pools_without_all_of_their_slices_are_named() -> None:
    assert incomplete([slice_of("a", count=2, devices=[]), CARD]) == ""
    assert incomplete([CARD]).startswith("pool pool has 1 slices of its newest generation 1")
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


def test_a_namespace_that_stays_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """An API server without controllers never ends the deletion: no check could create a claim."""

    def exists(*_: object) -> None:
        raise AlreadyExistsError("exists")

    rest: Any = SimpleNamespace(
        create=exists, get=lambda _: {"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}}
    )
    monkeypatch.setattr(cluster, "DELETION_S", 0.0)
    monkeypatch.setattr(cluster, "PAUSE_S", 0.0)
    with fails(ConfigurationError, "StillDeleted"):
        cluster.ClusterObjects(rest, node="n", driver="d").prepare()


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
AT = " - at `$.containerEdits."


def document(**fields: Any) -> dict[str, Any]:
    return {"cdiVersion": "0.5.0", "kind": "v.com/gpu", "devices": [{"name": "one", "containerEdits": EDITS}]} | fields


def node(**fields: Any) -> dict[str, Any]:
    return {"containerEdits": {"deviceNodes": [{"path": "/dev/x", **fields}]}}


def hook(**fields: Any) -> dict[str, Any]:
    return {"containerEdits": {"hooks": [{"hookName": "prestart", "path": "/bin/true", **fields}]}}


def lacks(version: str, expected: str) -> str:
    return f"cdiVersion {version} lacks a field of the file, expected {expected}"


def older(**edits: Any) -> dict[str, Any]:
    return {"cdiVersion": "0.3.0", "containerEdits": edits}


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
    assert cdi_folder.unresolved(folders, ["v.com/gpu=one"]) == ["v.com/gpu=one: 2 files of one directory define it"]


def test_a_later_folder_wins_over_a_conflict(folders: list[Path]) -> None:
    for folder, name in ((folders[0], "a.json"), (folders[0], "b.json"), (folders[1], "c.json")):
        (folder / name).write_text(json.dumps(document()))
    assert cdi_folder.unresolved(folders, ["v.com/gpu=one"]) == []


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"cdiVersion": "9.0.0"}, "cdiVersion '9.0.0' is unknown"),
        ({"kind": "gpu"}, "gpu=one is not vendor/class=name"),
        ({"devices": []}, "Expected `array` of length >= 1 - at `$.devices`"),
        ({"devices": [{"name": "one", "containerEdits": {}}]}, "device one has no containerEdits"),
        ({"devices": [{"name": "one", "containerEdits": EDITS}] * 2}, "a device is defined twice"),
        ({"devices": ["one"]}, "Expected `object`, got `str` - at `$.devices[0]`"),
        ({"containerEdits": {"env": "A=b"}}, "Expected `array | null`, got `str` - at `$.containerEdits.env`"),
        ({"containerEdits": {"env": ["A"]}}, "Expected `str` matching regex '^[^=]+=' - at `$.containerEdits.env[0]`"),
        (
            {"containerEdits": {"mounts": [{"hostPath": "/x"}]}},
            "Object missing required field `containerPath`" + AT + "mounts[0]`",
        ),
        (node(path=""), "Expected `str` of length >= 1 - at `$.containerEdits.deviceNodes[0].path`"),
        (node(type="x"), "Invalid enum value 'x' - at `$.containerEdits.deviceNodes[0].type`"),
        (node(major="1"), "Expected `int | null`, got `str` - at `$.containerEdits.deviceNodes[0].major`"),
        (
            node(permissions="rx"),
            "Expected `str` matching regex '^[rwm]*$'" + AT + "deviceNodes[0].permissions`",
        ),
        (hook(env=["A"]), "Expected `str` matching regex '^[^=]+=' - at `$.containerEdits.hooks[0].env[0]`"),
        (hook(path="x"), "Expected `str` matching regex '^/' - at `$.containerEdits.hooks[0].path`"),
        (older(netDevices=[{"name": "a"}]), lacks("0.3.0", "1.1.0")),
        (older(additionalGids=[1]), lacks("0.3.0", "0.7.0")),
        (
            {"cdiVersion": "0.5.0", "annotations": {"a": "b"}},
            lacks("0.5.0", "0.6.0"),
        ),
        ({"cdiVersion": "0.5.0", "kind": "v.com/a.b"}, lacks("0.5.0", "0.6.0")),
        (
            older(deviceNodes=[{"path": "/x", "hostPath": "/y"}]),
            lacks("0.3.0", "0.5.0"),
        ),
        (
            older(mounts=[{"hostPath": "/", "containerPath": "/", "type": "bind"}]),
            lacks("0.3.0", "0.4.0"),
        ),
    ],
)
def test_a_file_that_runtimes_refuse_is_explained(folders: list[Path], fields: dict[str, Any], problem: str) -> None:
    path = folders[0] / "a.json"
    path.write_text(json.dumps(document(**fields)))
    assert cdi_folder.read(path).problem == problem
    assert f"no file defines it ({path}: " in cdi_folder.unresolved(folders, ["v.com/gpu=one"])[0]


def test_a_huge_file_is_not_read(folders: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cdi_folder, "MAX_BYTES", 10)
    (folders[0] / "a.json").write_text(json.dumps(document()))
    assert cdi_folder.read(folders[0] / "a.json").problem.startswith("larger than")


def test_an_answer_for_one_of_two_shares_is_not_enough() -> None:
    """Both shares have the same pool and device, so sets of devices are equal."""
    result = {"driver": "d", "pool": "p", "device": "shared", "request": "r"}
    claim = CheckClaim(key=ClaimKey(namespace="n", name="c", uid="u"), wire={}, results=(result, result))
    bench: Any = SimpleNamespace(subject=SimpleNamespace(driver="d"))
    answered = AnsweredDevice(requests=("r",), pool="p", device="shared", cdi_ids=())
    check_devices(bench, claim, (answered, answered))
    with fails(ViolationError, "DevicesDiffer", match="p/shared, p/shared"):
        check_devices(bench, claim, (answered,))


def test_hidden_and_other_files_do_not_count(folders: list[Path]) -> None:
    for name in (".a.json", "a.txt"):
        (folders[0] / name).write_text(json.dumps(document()))
    assert cdi_folder.files(folders) == {}


def test_qualified_names() -> None:
    assert all(map(cdi_folder.is_qualified, ("v.com/gpu=one", "nvidia.com/gpu=GPU-1:0", "a/b=c")))
    wrong = ("one", "gpu=one", "v.com/gpu=", "v.com/=one", "1v/gpu=one", "v.com/gpu=one\n", "v/g=-")
    assert not any(map(cdi_folder.is_qualified, wrong))


def test_nodes_and_hooks_are_looked_for_below_each_root(tmp_path: Path) -> None:
    """A driver root has what the suite's own root lacks."""
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/devices").write_text("Character devices:\n4095 gpu\n\nBlock devices:\n4094 disk\n")
    program = tmp_path / "hook"
    program.touch(mode=0o755)
    host = Host(roots=(Path("/no/such/root"), tmp_path))
    numbers = [{"path": "/dev/x", "type": kind, "major": major} for kind, major in (("c", 4095), ("b", 4095), ("p", 0))]
    assert len(list(host.node_problems(edits_of(deviceNodes=numbers)))) == 1
    hooks = [{"hookName": "prestart", "path": "/hook"}, {"hookName": "startContainer", "path": "/in/the/container"}]
    mounts = [{"hostPath": "/hook", "containerPath": "/x"}, {"hostPath": "x", "containerPath": "/y", "type": "tmpfs"}]
    assert list(host.hook_problems(edits_of(hooks=hooks, mounts=mounts))) == []


def edits_of(**fields: Any) -> MergedEdits:
    return MergedEdits((msgspec.convert(fields, AnsweredEdits),))


def claim_edits(uid: str, *paths: str, env: str = "A=b", **others: Any) -> tuple[str, MergedEdits]:
    nodes = [{"path": path} for path in paths]
    return uid, edits_of(env=[env, f"CLAIM_{uid.replace('-', '_')}=1"], deviceNodes=nodes, **others)


@pytest.mark.parametrize(
    ("first", "second", "problem"),
    [
        (claim_edits("1-a", "/dev/x", "/dev/0"), claim_edits("1-b", "/dev/x", "/dev/1"), ""),
        (claim_edits("1-a", "/dev/x"), claim_edits("1-b", "/dev/x"), "both claims get device nodes '/dev/x'"),
        (claim_edits("1-a", "/dev/x", env="A=1"), claim_edits("1-b", "/dev/x", env="A=2"), "both claims get device"),
        (claim_edits("1-a", "/dev/x"), claim_edits("1-b", "/dev/x", "/dev/1"), "both claims get device nodes '/dev/x'"),
        (claim_edits("1-a", "/dev/x"), claim_edits("1-b", "/dev/x", additionalGids=[1]), ""),
        (claim_edits("1-a", env="A=1"), claim_edits("1-b", env="A=2"), ""),
        (claim_edits("1-a"), claim_edits("1-b"), "the edits of both claims are equal"),
    ],
)
def test_claims_are_kept_apart_by_what_containers_get(
    first: tuple[str, MergedEdits], second: tuple[str, MergedEdits], problem: str
) -> None:
    assert sameness([first, second])[: len(problem) or None] == problem


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
    verdicts = [check["verdict"] for check in document["items"]]
    assert verdicts == ["passed", "failed", "advice", "not applicable", "unable"]
    assert document["items"][0]["source"] == "file.go:1"
    assert document["summary"] == {"checks": 5} | dict.fromkeys(verdicts, 1)


def test_the_summary_counts_every_verdict() -> None:
    line = "2 checks: 1 passed, 0 failed, 0 advice, 0 not applicable, 1 unable"
    assert report.summary([outcome(Status.OK), outcome(Status.UNKNOWN)]) == line


def test_the_pipeline_expects_every_check_to_pass() -> None:
    """A check that is lost, or that does not apply any more, fails the run."""
    script = Path(__file__).parents[3].joinpath(".ci/run").read_text()
    assert f'verdicts="{report.summary([outcome(Status.OK)] * len(CHECKS))}"' in script
    assert "--profile full --strict" in script


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
