"""What nodes and the controller write fits the schemas, however large it is, and is read back as it was."""

import json
from typing import Any

from msgspec import convert

from dra_driver.config.status import node_status, node_status_of
from dra_driver.core.model.gpu_node import (
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
)
from dra_driver.core.wire import to_wire

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


def test_a_node_without_gpus_has_a_valid_status() -> None:
    written = valid(node_status(GpuNodeStatus(driver_name="gpu.nvidia.com"), AT))
    assert written["summary"] == {"gpus": 0, "problems": 0}


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
    found = node_status_of({"status": odd})
    assert found is not None
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
