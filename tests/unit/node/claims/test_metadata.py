"""Metadata files of claims: their content, their place in containers, and the times at which they are written."""

import json
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import pytest
from msgspec.structs import replace

from dra_driver.core.errors import StorageError
from dra_driver.core.model.claim import AllocatedClaim
from dra_driver.core.model.ids import GpuUuid
from dra_driver.core.model.terms import AttributeValue, GpuTerms, Strategy
from tests.fakes.claims import DRIVER, POOL, changed, claim, gpu, ref, result, share_result, uid
from tests.fakes.fuse import Fuse, Fused, Killed
from tests.unit.node.claims.conftest import SMALL, ClaimsNode, Run, config, instances, mps, shared

FULL = StorageError("the disk is full")
INSIDE = "/var/run/kubernetes.io/dra-device-attributes"
Json = dict[str, Any]


def objects(run: Run, number: int = 1, request: str = "gpu") -> list[Json]:
    """The objects of a file, each printed as the helper prints it, with one newline after it."""
    text = run.node.writer.metadata_files[uid(number), request].decode()
    found = [json.loads(part + "}") for part in text.split("\n}\n")[:-1]]
    assert text == "".join(json.dumps(each, indent=2) + "\n" for each in found)
    return found


def attributes(run: Run, number: int = 1, request: str = "gpu", position: int = 0) -> Mapping[str, Any]:
    """Each attribute's value; its type is the key beside it."""
    (described,) = objects(run, number, request)[0]["requests"]
    return {name: next(iter(value.values())) for name, value in described["devices"][position]["attributes"].items()}


def mounts(run: Run, number: int = 1) -> dict[str, list[str]]:
    """The container paths of metadata files, by the CDI device that brings them."""
    document = json.loads(run.node.writer.files[uid(number)])
    return {
        device["name"]: [
            mount["containerPath"].removeprefix(f"{INSIDE}/")
            for mount in device["containerEdits"].get("mounts", ())
            if mount["containerPath"].startswith(INSIDE)
        ]
        for device in document["devices"]
    }


def of_template(number: int, pod_claim: str = "accelerator") -> AllocatedClaim:
    return replace(claim(number), pod_claim=pod_claim)


def test_file_has_both_versions_of_the_claim(run: Run) -> None:
    run.prepare(of_template(1))
    newest, older = objects(run)
    assert {**newest, "apiVersion": older["apiVersion"]} == older
    assert list(newest) == ["kind", "apiVersion", "metadata", "podClaimName", "requests"]
    assert [each["apiVersion"] for each in (newest, older)] == [
        "metadata.resource.k8s.io/v1beta1",
        "metadata.resource.k8s.io/v1alpha1",
    ]
    assert newest["kind"] == "DeviceMetadata"
    assert newest["metadata"] == {"name": "claim-1", "namespace": "default", "uid": uid(1), "generation": 1}
    assert newest["podClaimName"] == "accelerator"
    (request,) = newest["requests"]
    (device,) = request["devices"]
    assert (request["name"], device["driver"], device["pool"], device["name"]) == ("gpu", DRIVER, POOL, "gpu-0")
    assert device["attributes"]["uuid"] == {"string": gpu(0).uuid}
    assert device["attributes"]["deviceMinor"] == {"int": 0}


@pytest.mark.parametrize(
    ("made", "request_name", "path"),
    [
        (of_template(1), "gpu", "resourceclaimtemplates/accelerator/gpu"),
        (claim(1, name="train.shared"), "gpu", "resourceclaims/train.shared/gpu"),
        (
            claim(1, result(request="container-0-request-1"), name="pod-extended-resources-x7k2p"),
            "container-0-request-1",
            "resourceclaims/pod-extended-resources-x7k2p/container-0-request-1",
        ),
        (claim(1, result(request="main/large")), "main", "resourceclaims/claim-1/main"),
    ],
    ids=["template", "direct", "extended", "subrequest"],
)
def test_path_in_the_container_follows_the_claim(run: Run, made: AllocatedClaim, request_name: str, path: str) -> None:
    run.prepare(made)
    assert mounts(run) == {f"{uid(1)}-gpu-0": [f"{path}/{DRIVER}-metadata.json"]}
    (described,) = objects(run, request=request_name)[0]["requests"]
    assert described["name"] == made.results[0].request
    (mount,) = json.loads(run.node.writer.files[uid(1)])["devices"][0]["containerEdits"]["mounts"]
    assert mount["hostPath"] == f"/metadata/{uid(1)}_{request_name}.json"
    assert {"ro", "bind"} <= set(mount["options"])


def test_each_request_has_its_own_file_beside_its_first_device(run: Run) -> None:
    many = [result("gpu-0", request="two"), result("gpu-1", request="two"), result("gpu-2", request="one")]
    run.prepare(claim(1, *many))
    described = {request: objects(run, request=request)[0]["requests"] for request in ("two", "one")}
    assert [device["name"] for device in described["two"][0]["devices"]] == ["gpu-0", "gpu-1"]
    assert [device["name"] for device in described["one"][0]["devices"]] == ["gpu-2"]
    name = f"{DRIVER}-metadata.json"
    assert mounts(run) == {
        f"{uid(1)}-gpu-0": [f"resourceclaims/claim-1/two/{name}"],
        f"{uid(1)}-gpu-1": [],
        f"{uid(1)}-gpu-2": [f"resourceclaims/claim-1/one/{name}"],
    }


def test_requests_for_one_device_bring_both_files(run: Run) -> None:
    """Both have the same CDI device."""
    run.prepare(claim(1, result("gpu-0", request="use"), result("gpu-0", request="watch", admin_access=True)))
    (paths,) = mounts(run).values()
    assert sorted(path.split("/")[2] for path in paths) == ["use", "watch"]
    assert objects(run, request="watch")[0]["requests"][0]["devices"][0]["name"] == "gpu-0"


def test_monitoring_device_has_its_own_type(run: Run) -> None:
    run.prepare(claim(1, result("gpu-0-monitor", admin_access=True)))
    assert (attributes(run)["type"], attributes(run)["uuid"]) == ("monitor", gpu(0).uuid)


def test_partition_has_the_ids_of_its_instance(h100: Run) -> None:
    """Its ResourceSlice cannot have them: the instance does not exist before the prepare."""
    h100.prepare(claim(1, result(h100.node.part(SMALL, 2))))
    (instance,) = instances(h100)
    assert instance.device is not None
    found = attributes(h100)
    assert (found["uuid"], found["parentUUID"]) == (instance.device.uuid, h100.node.gpus[0].uuid)
    assert (found["migGpuInstance"], found["migComputeInstance"]) == (instance.gi_id, instance.device.ci_id)
    assert (found["profile"], found["placementStart"], found["type"]) == (SMALL, 2, "mig")


def test_share_has_its_limits(node: ClaimsNode) -> None:
    run = shared(node, Strategy.MPS)
    run.prepare(claim(1, share_result(1, "10Gi", 25)))
    found = attributes(run)
    assert (found["sharingStrategy"], found["shareMemoryBytes"], found["shareComputePercent"]) == (
        "MPS",
        10 << 30,
        25,
    )


def test_claim_with_its_own_mps_daemon_names_the_strategy(h100: Run) -> None:
    h100.prepare(claim(1, configs=[config("GpuConfig", mps())]))
    assert attributes(h100)["sharingStrategy"] == "MPS"


def test_facts_and_standard_attributes_win_over_those_of_a_policy(node: ClaimsNode) -> None:
    wanted: dict[str, AttributeValue] = {f"label{number:02}": "x" * 64 for number in range(40)}
    wanted["deviceMinor"] = "east"
    node.terms = {GpuUuid(gpu(0).uuid): GpuTerms(policy="labels", attributes=wanted)}
    run = node.run()
    run.prepare(claim(1))
    found = attributes(run)
    assert len(found) == 32
    assert list(found) == sorted(found)
    assert (found["deviceMinor"], found["uuid"]) == (0, gpu(0).uuid)
    assert [name for name in found if name.startswith("label")][:2] == ["label00", "label01"]


def test_repeat_keeps_the_file_and_its_mount(run: Run) -> None:
    answer = run.prepare(of_template(1))
    before, places = dict(run.node.writer.metadata_files), mounts(run)
    run.node.hardware = changed(run.node.hardware, 0, product_name="renamed")
    del run.node.writer.files[uid(1)]  # as after /var/run/cdi was emptied
    assert run.prepare(ref(1)) == answer
    assert run.node.writer.metadata_files == before
    assert mounts(run) == places
    assert run.node.api.reads == 1


@pytest.mark.parametrize("loss", ["never written", "empty", "no JSON", "other JSON", "bad name"])
def test_prepared_claim_without_a_whole_file_keeps_working(node: ClaimsNode, loss: str) -> None:
    """An earlier version prepared it without one, or a power cut left half of it."""
    answer = node.run().replaced(metadata=loss != "never written").prepare(of_template(1))
    contents = {"empty": b"", "no JSON": b"{", "other JSON": b"[]", "bad name": b'{"podClaimName": "../../etc"}'}
    if loss in contents:
        node.writer.metadata_files[uid(1), "gpu"] = contents[loss]
    again = node.run("run-2")
    assert again.prepare(ref(1)) == answer
    assert mounts(again) == {f"{uid(1)}-gpu-0": []}


def test_file_stays_when_metadata_is_switched_off(node: ClaimsNode) -> None:
    run = node.run()
    run.prepare(of_template(1))
    before = mounts(run)
    off = node.run("run-2").replaced(metadata=False)
    off.prepare(ref(1))
    assert mounts(off) == before
    off.prepare(claim(2, result("gpu-1")))
    assert mounts(off, 2) == {f"{uid(2)}-gpu-1": []}
    off.unprepare(ref(1))
    assert node.writer.metadata_files == {}


def test_unprepare_removes_the_file(run: Run) -> None:
    run.prepare(claim(1))
    run.prepare(claim(2, result("gpu-1")))
    assert run.unprepare(ref(1)) is None
    assert list(run.node.writer.metadata_files) == [(uid(2), "gpu")]


def test_start_removes_files_of_claims_outside_the_journal(node: ClaimsNode) -> None:
    node.run().prepare(claim(1))
    node.writer.metadata_files[uid(7), "gpu"] = b"{}"
    node.run("run-2")
    assert list(node.writer.metadata_files) == [(uid(1), "gpu")]


def test_failed_write_fails_only_its_claim(run: Run) -> None:
    write = run.node.writer.write_metadata

    def full(of: str, files: Mapping[str, bytes]) -> None:
        if of == uid(2):
            raise FULL
        write(of, files)

    run.node.writer.write_metadata = full  # type: ignore[method-assign]
    refs = [run.node.api.put(claim(number, result(f"gpu-{number}"))).ref for number in (1, 2)]
    answers = run.service.prepare(refs)
    assert isinstance(answers[uid(1)], tuple)
    assert answers[uid(2)] is FULL
    assert run.journal.uids() == set(run.node.writer.files) == {uid(1)}
    assert list(run.node.writer.metadata_files) == [(uid(1), "gpu")]


def test_failed_write_leaves_no_partition(h100: Run) -> None:
    def full(of: str, files: Mapping[str, bytes]) -> None:
        raise FULL

    h100.node.writer.write_metadata = full  # type: ignore[method-assign]
    assert h100.refusal(claim(1, result(h100.node.part(SMALL, 0)))) is FULL
    assert h100.journal.uids() == set()
    assert h100.node.is_whole_again()


def test_claim_that_is_refused_leaves_no_file(run: Run) -> None:
    run.prepare(claim(1))
    run.refusal(claim(2))
    assert list(run.node.writer.metadata_files) == [(uid(1), "gpu")]


@pytest.mark.parametrize("steps", range(8))
def test_recorded_claim_has_its_file_after_a_kill(node: ClaimsNode, steps: int) -> None:
    """The kubelet repeats the call after the restart; the answer then comes from the journal."""
    fuse = Fuse()
    node.wrap = lambda each: Fused(each, fuse, frozenset({"write_metadata", "record_prepared", "write_claim"}))
    run = node.run()
    node.api.put(of_template(1))
    fuse.left = steps
    with suppress(Killed):
        run.service.prepare([ref(1)])
    fuse.left = None
    again = node.run("run-2")
    again.prepare(ref(1))
    assert mounts(again) == {f"{uid(1)}-gpu-0": [f"resourceclaimtemplates/accelerator/gpu/{DRIVER}-metadata.json"]}
    assert objects(again)[0]["metadata"]["uid"] == uid(1)
    again.unprepare(ref(1))
    assert node.writer.metadata_files == {}
