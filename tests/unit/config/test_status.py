"""What nodes and the controller write fits the schemas, however large it is, and is read back as it was."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import convert
from msgspec.structs import replace

from dra_driver.config.status import node_status, node_status_of, usage_in_words
from dra_driver.core.model.gpu_node import (
    MAX_REPORTED,
    NO_USAGE,
    GpuNodeStatus,
    HealthWord,
    NodeGpu,
    NodePolicy,
    NodeProblem,
    NodeTaint,
    PolicyCount,
    PolicyOrigin,
    PolicyPlace,
    PolicyState,
    PolicyStatus,
    PublishedForm,
    ReportedPod,
    ReportedUnattributed,
    ReportedUsage,
)
from dra_driver.core.wire import to_wire
from tests.fakes.stand_in import present
from tests.unit.node.process.test_usage_report import TOLD, TOLD_FOREIGN, TOLD_NOTEBOOK

AT = "2026-03-01T10:00:00Z"
GPU = NodeGpu(
    name="gpu-0",
    uuid="GPU-7277883e-ce1e-3b6e-6cc1-6d52e80cdb86",
    product_name="NVIDIA H100 80GB HBM3",
    memory="81559Mi",
    offered_as=(PublishedForm.SHARED,),
    used_as=PublishedForm.SHARED,
    policy="mps-pool",
    health=HealthWord.UNHEALTHY,
    causes=("xid",),
    message="XID 79",
    taints=(NodeTaint(key="gpu.dra-driver.io/xid", value="79", effect="NoSchedule"),),
)
POLICY = NodePolicy(
    name="mps-pool",
    origin=PolicyOrigin.OBJECT,
    state=PolicyState.WAITING,
    generation=3,
    gpus=("gpu-0", "gpu-1"),
    in_force=("gpu-0",),
    waiting=("gpu-1",),
    waiting_for=("default/train",),
    message="the GPU stays exclusive until it is released",
)
STATUS = GpuNodeStatus(
    driver_name="gpu.nvidia.com",
    driver_version="580.65.06",
    gpus=(GPU, NodeGpu(name="gpu-1", uuid="GPU-1", product_name="NVIDIA H100 80GB HBM3")),
    policies=(POLICY, NodePolicy(name="open", origin=PolicyOrigin.FILE, state=PolicyState.IN_FORCE)),
    problems=(NodeProblem(reason="GpuLeftOut", message="GPU 0000:65:00.0 cannot be used"),),
)


def valid(written: dict[str, Any]) -> dict[str, Any]:
    convert(json.loads(json.dumps(written)), GpuNodeStatus)
    return written


def test_a_status_is_read_back_as_it_was_written() -> None:
    assert node_status_of({"status": valid(node_status(STATUS, AT))}) == STATUS


def test_the_summary_says_in_words_what_the_lists_say() -> None:
    assert node_status(STATUS, AT)["summary"] == {
        "gpus": 2,
        "products": "2 x NVIDIA H100 80GB HBM3",
        "usedAs": "1 Free, 1 Shared",
        "health": "1 of 2 unhealthy: gpu-0 xid",
        "policies": "mps-pool (Waiting), open",
        "problems": 1,
        "problem": "GPU 0000:65:00.0 cannot be used",
    }
    empty = valid(node_status(GpuNodeStatus(driver_name="gpu.nvidia.com"), AT))
    assert empty["summary"] == {"gpus": 0, "problems": 0}


def test_what_is_too_long_is_cut_to_what_the_api_server_stores() -> None:
    """A refused object would leave the old one standing: nothing would say that the node is in trouble."""
    long = "x" * 5000
    gpu = NodeGpu(name="gpu-0", uuid="GPU-1", product_name=long, message=long, causes=("xid",) * 40)
    names = tuple(f"gpu-{number}" for number in range(200))
    policy = NodePolicy(
        name="p",
        origin=PolicyOrigin.FILE,
        state=PolicyState.CONFLICTING,
        gpus=names,
        waiting_for=("ns/claim",) * 90,
        conflicts_with=("q",) * 90,
        message=long,
    )
    status = GpuNodeStatus(
        driver_name="gpu.nvidia.com",
        driver_version=long,
        gpus=(gpu,) * 200,
        policies=(policy,) * 400,
        problems=(NodeProblem(reason="Reason", message=long),) * 100,
    )
    written = valid(node_status(status, AT))
    assert written["summary"]["problem"] == "x" * 119 + "…"  # a column of a table


def test_texts_of_others_are_on_one_line_without_terminal_commands() -> None:
    status = GpuNodeStatus(driver_name="d", problems=(NodeProblem(reason="R", message="a\nb\x1b[2J"),))
    assert node_status(status, AT)["problems"][0]["message"] == "a b?[2J"


def test_nonsense_is_no_status_and_entries_that_make_no_sense_are_left_out() -> None:
    nonsense: tuple[object, ...] = (None, [], {}, {"status": 1}, {"status": {}}, {"status": {"driverName": 7}})
    for written in nonsense:
        assert node_status_of(written) is None
    odd = {"driverName": "d", "gpus": [1, {"name": "gpu-0"}, {"name": "gpu-1", "uuid": "u", "usedAs": 3}]}
    odd |= {"policies": [{"name": "p"}, {"name": "p", "state": "New", "source": "File"}], "problems": "none"}
    found = present(node_status_of({"status": odd}))
    assert [(gpu.name, gpu.health) for gpu in found.gpus] == [("gpu-1", HealthWord.UNKNOWN)]
    assert found.policies == ()
    assert found.problems == ()


def test_the_status_of_a_policy_fits_its_schema() -> None:
    place = PolicyPlace(node="n", gpus=("gpu-0",), claims=("ns/claim",) * 50, policies=("q",), message="y" * 5000)
    count = PolicyCount(nodes=10_000, gpus=80_000, places=(place,) * 40)
    written = to_wire(PolicyStatus(observed_generation=2, selected=count, waiting=count))
    convert(written, PolicyStatus)
    assert written["inForce"] == {"nodes": 0, "gpus": 0}
    assert len(written["selected"]["places"]) == 20


ALL = ReportedUsage(
    over_grant=(TOLD,), idle=(TOLD_NOTEBOOK,), unattributed=(TOLD_FOREIGN,), checked_at="2026-07-01T12:00:00Z"
)


def valid_usage(told: ReportedUsage) -> Any:
    written = json.loads(json.dumps(to_wire(told)))
    convert(written, ReportedUsage)
    return written


def read(written: object) -> ReportedUsage:
    status = present(node_status_of({"status": {"driverName": "d", "usage": written}}))
    return status.usage


def test_what_is_written_fits_and_is_read_back() -> None:
    assert read(valid_usage(ALL)) == ALL
    assert to_wire(NO_USAGE) == {}
    assert read(None) == NO_USAGE


def test_the_largest_fits_the_schema() -> None:
    long = replace(TOLD, namespace="n" * 253, claim="c" * 253, claim_uid="u" * 128, processes=10**9)
    pods = (ReportedPod(name="p" * 253, uid="u" * 128),) * 50
    foreign = ReportedUnattributed(
        gpu="gpu-0", processes=10**9, memory=None, since="x", commands=("\n" * 900, "ü" * 900) * 9
    )
    told = ReportedUsage(
        over_grant=(replace(long, pods=pods),) * 99, unattributed=(foreign,) * 99, idle=(TOLD_NOTEBOOK,) * 99
    )
    written = valid_usage(told)
    assert [len(written[name]) for name in ("overGrant", "unattributed", "idle")] == [MAX_REPORTED] * 3
    assert len(json.dumps(written)) < 200_000


def test_words_for_a_column() -> None:
    assert usage_in_words(ALL) == ("1 over grant: team/llm; 1 idle: team/notebook; 1 with processes of no claim: gpu-0")
    assert usage_in_words(NO_USAGE) is None


@pytest.mark.parametrize(
    ("section", "changed"),
    [
        ("overGrant", {"claimUid": None}), ("overGrant", {"graceSeconds": None}), ("overGrant", {"graceSeconds": -1}),
        ("overGrant", {"graceSeconds": 86401}), ("idle", {"afterMinutes": 0}), ("idle", {"afterMinutes": 10081}),
        ("unattributed", {"gpu": 7}),
    ],
)  # fmt: skip
def test_an_entry_that_makes_no_sense_is_left_out(section: str, changed: dict[str, Any]) -> None:
    """A grace period that cannot be read is not one of 0 seconds."""
    written = valid_usage(ALL)
    written[section][0] |= changed
    found = read(written)
    assert {"overGrant": found.over_grant, "idle": found.idle, "unattributed": found.unattributed}[section] == ()


def test_an_unknown_action_asks_for_nothing() -> None:
    written = valid_usage(ALL)
    written["overGrant"][0]["action"] = written["idle"][0]["action"] = "Delete"
    assert not read(written).asks


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["name", "uid", "pods"]), inner),
    max_leaves=8,
)


@given(st.sampled_from(["overGrant", "unattributed", "idle", "checkedAt"]), st.sampled_from(["pods", "since"]), JSON)
def test_no_value_anywhere_breaks_the_reader(section: str, field: str, value: Any) -> None:
    read(valid_usage(ALL) | {section: value})
    written = valid_usage(ALL)
    if section != "checkedAt":
        written[section][0][field] = value
        read(written)
