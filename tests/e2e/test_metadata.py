"""Programs in containers read the metadata files of their devices (KEP-5304), also beside files of a second driver.

With DRA_METADATA_DECODER, the path of a program, every file is also decoded by it: ``PROGRAM FILE`` exits with 0 if
``k8s.io/dynamic-resource-allocation/devicemetadata`` decodes the file, and prints one JSON object with ``claim``
(``namespace/name``), ``podClaimName``, ``request`` and ``devices`` (names).
"""

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dra_driver.core.errors import NotFoundError
from dra_driver.sim.apiserver import kinds
from dra_driver.sim.apiserver.jsonvalue import Obj, dig
from dra_driver.sim.demo.requirements import Requirements
from dra_driver.sim.objects import claim_names
from tests.e2e.cluster import DRIVER, RealCluster, wait
from tests.e2e.forms import STAY, Forms, pod, pod_spec, slice_of, template, whole
from tests.e2e.gates import EXTENDED, PARTITIONS
from tests.e2e.host import CDI_DIR, KUBELET_ROOT, START_S, STATE_DIR, Host, restart
from tests.fakes.node_process import NodeProcess
from tests.fakes.stand_in import present

REQUIREMENTS = Requirements(nodes=(("gpu-a", "2xh100-sxm5-80gb"),))
ROOT = "/var/run/kubernetes.io/dra-device-attributes"
FIND = f"cd {ROOT} && for file in $(find . -name '*.json'); do echo file ${{file#./}}; cat $file; done; echo done"
UNPRIVILEGED = {"securityContext": {"runAsUser": 65534, "runAsGroup": 65534}}
DECODER = os.environ.get("DRA_METADATA_DECODER")
POD_GROUPS = "scheduling.k8s.io/v1alpha2"
SECOND = "second.example.com"
SECOND_STATE = STATE_DIR.parent / SECOND
# Not a GPU of the first driver: two publishers of one GPU withdraw it.
SECOND_GPU = """
gpus:
- {model: l4-24gb, minor: 7, uuid: GPU-5ec0de00-0000-4000-8000-000000000007, pciBusId: "0000:e7:00.0"}
"""


def files(forms: Forms, name: str) -> dict[str, str]:
    """The files in the pod's container, by their path below `ROOT`."""
    forms.wait_line(name, "done")
    log = f"\n{forms.log(name)}".rpartition("\ndone")[0]
    return {path: f"{text}\n" for path, _, text in (part.partition("\n") for part in log.split("\nfile ")[1:])}


def decoded(text: str, folder: Path) -> dict[str, Any]:
    """The first object of the file, which the decoder agrees with if there is one."""
    found, _ = json.JSONDecoder().raw_decode(text)
    assert found["apiVersion"] == "metadata.resource.k8s.io/v1beta1"
    if DECODER:
        path = folder / "metadata.json"
        path.write_text(text)
        answer = json.loads(subprocess.run([DECODER, str(path)], capture_output=True, check=True).stdout)
        (request,) = found["requests"]
        assert answer["claim"] == f"{found['metadata']['namespace']}/{found['metadata']['name']}"
        assert answer["podClaimName"] == found.get("podClaimName", "")
        assert (answer["request"], answer["devices"]) == (request["name"], [one["name"] for one in request["devices"]])
    return dict(found)


def check(forms: Forms, found: dict[str, Any], name: str | None, driver: str = DRIVER) -> None:
    """Assert that the file describes this claim, and the devices of one request that it has from the driver."""
    claim = present(forms.cluster.client.find(kinds.RESOURCE_CLAIMS, present(name), forms.namespace))
    meta = claim["metadata"]
    assert found["metadata"] == {key: meta[key] for key in ("name", "namespace", "uid")} | {"generation": 1}
    (request,) = found["requests"]
    results = dig(claim, "status", "allocation", "devices", "results")
    devices = [one["device"] for one in results if (one["driver"], one["request"]) == (driver, request["name"])]
    assert devices
    assert [one["name"] for one in request["devices"]] == devices
    assert {one["driver"] for one in request["devices"]} == {driver}


def test_claim_of_a_template_is_found_by_its_name_in_the_pod(forms: Forms, tmp_path: Path) -> None:
    """By a user other than root."""
    spec = pod_spec("template", f"{FIND}; {STAY}", **UNPRIVILEGED)
    forms.cluster.apply([template("template", whole()), pod("template", spec)], forms.namespace)
    forms.wait_ready("template")
    [(path, text)] = files(forms, "template").items()
    assert path == f"resourceclaimtemplates/device/device/{DRIVER}-metadata.json"
    found = decoded(text, tmp_path)
    assert found["podClaimName"] == "device"
    check(forms, found, dict(claim_names(forms.get("template")))["device"])


def test_claim_named_in_two_pods_is_found_by_its_own_name(forms: Forms, tmp_path: Path) -> None:
    claim = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": "direct"},
        "spec": {"devices": {"requests": [{"name": "gpu", "exactly": whole()}]}},
    }
    pods = []
    for name in ("first", "second"):
        spec = pod_spec("unused", f"{FIND}; {STAY}")
        spec["resourceClaims"] = [{"name": "device", "resourceClaimName": "direct"}]
        pods.append(pod(name, spec))
    forms.cluster.apply([claim, *pods], forms.namespace)
    forms.wait_ready("first", "second")
    seen = [files(forms, name) for name in ("first", "second")]
    assert seen[0] == seen[1]
    [(path, text)] = seen[0].items()
    assert path == f"resourceclaims/direct/gpu/{DRIVER}-metadata.json"
    found = decoded(text, tmp_path)
    assert "podClaimName" not in found
    check(forms, found, "direct")


def test_claim_of_a_pod_group_is_the_same_file_in_its_pods(forms: Forms, tmp_path: Path) -> None:
    """Needs the feature gates GenericWorkload and DRAWorkloadResourceClaims, and their alpha API."""
    try:
        forms.rest.get(f"/apis/{POD_GROUPS}")
    except NotFoundError:
        pytest.skip(f"this cluster does not serve {POD_GROUPS}")
    claims = [{"name": "device", "resourceClaimTemplateName": "group"}]
    group = {
        "apiVersion": POD_GROUPS,
        "kind": "PodGroup",
        "metadata": {"name": "pair"},
        "spec": {"schedulingPolicy": {"gang": {"minCount": 2}}, "resourceClaims": claims},
    }
    forms.cluster.apply([template("group", whole())], forms.namespace)
    forms.rest.create(f"/apis/{POD_GROUPS}/namespaces/{forms.namespace}/podgroups", group)
    spec = pod_spec("group", f"{FIND}; {STAY}", schedulingGroup={"podGroupName": "pair"})
    forms.cluster.apply([pod(name, spec) for name in ("first", "second")], forms.namespace)
    forms.wait_ready("first", "second")
    seen = [files(forms, name) for name in ("first", "second")]
    assert seen[0] == seen[1]
    [(path, text)] = seen[0].items()
    assert path == f"resourceclaimtemplates/device/device/{DRIVER}-metadata.json"
    (name,) = {dict(claim_names(forms.get(name)))["device"] for name in ("first", "second")}
    check(forms, decoded(text, tmp_path), name)


@pytest.mark.needs(EXTENDED)
def test_extended_resource_is_found_by_the_generated_claim(forms: Forms, tmp_path: Path) -> None:
    spec = pod_spec("unused", f"{FIND}; {STAY}")
    del spec["resourceClaims"]
    spec["containers"][0]["resources"] = {"limits": {"nvidia.com/gpu": "1"}}
    forms.cluster.apply([pod("extended", spec)], forms.namespace)
    forms.wait_ready("extended")
    status = forms.get("extended")["status"]["extendedResourceClaimStatus"]
    name, request = status["resourceClaimName"], status["requestMappings"][0]["requestName"]
    [(path, text)] = files(forms, "extended").items()
    assert path == f"resourceclaims/{name}/{request}/{DRIVER}-metadata.json"
    check(forms, decoded(text, tmp_path), name)


@pytest.mark.needs(PARTITIONS)
def test_partition_file_has_the_uuid_that_the_program_sees(forms: Forms, tmp_path: Path) -> None:
    forms.create("part", slice_of("1g.10gb"), f"nvidia-smi -L; {FIND}")
    forms.wait_ready("part")
    [text] = files(forms, "part").values()
    (device,) = decoded(text, tmp_path)["requests"][0]["devices"]
    assert f"UUID: {device['attributes']['uuid']['string']})" in forms.log("part")


def second_slices(cluster: RealCluster) -> list[Obj]:
    return [item for item in cluster.client.list(kinds.RESOURCE_SLICES, "") if item["spec"]["driver"] == SECOND]


@pytest.fixture
def second(forms: Forms, own_host: Host, node_name: str, folder: Path) -> Iterator[None]:
    """A second driver on this node with one GPU of its own."""
    spec = folder / "second.yaml"
    spec.write_text(SECOND_GPU)
    process = NodeProcess(
        folder,
        environ=own_host.process.environ,
        driver_name=SECOND,
        node_name=node_name,
        simulate=str(spec),
        kubelet_registrar_dir=str(KUBELET_ROOT / "plugins_registry"),
        kubelet_plugins_dir=str(STATE_DIR.parent),
        cdi_dir=str(CDI_DIR),
    )
    try:
        restart(process)
        wait(lambda: None if second_slices(forms.cluster) else process.text, START_S)
        with forms.cleared():
            yield
        assert not list((SECOND_STATE / "dra-device-metadata").iterdir())
    finally:
        process.kill()
        for item in second_slices(forms.cluster):
            forms.cluster.client.delete(kinds.RESOURCE_SLICES, item["metadata"]["name"], "")
        for path in (KUBELET_ROOT / "plugins_registry").glob(f"{SECOND}*"):
            path.unlink()
        for path in CDI_DIR.glob(f"*{SECOND}*"):
            path.unlink()
        shutil.rmtree(SECOND_STATE, ignore_errors=True)


@pytest.fixture
def class_of_both(cluster: RealCluster) -> Iterator[str]:
    """A DeviceClass of the whole GPUs of both drivers."""
    expression = f'device.driver in {json.dumps([DRIVER, SECOND])} && device.attributes[device.driver].type == "gpu"'
    made = {"apiVersion": "resource.k8s.io/v1", "kind": "DeviceClass", "metadata": {"name": "gpus-of-both"}}
    cluster.client.create(made | {"spec": {"selectors": [{"cel": {"expression": expression}}]}}, "")
    yield "gpus-of-both"
    cluster.client.delete(kinds.DEVICE_CLASSES, "gpus-of-both", "")


@pytest.mark.usefixtures("second")
@pytest.mark.parametrize(
    "requests",
    [
        pytest.param({"one": [DRIVER], "other": [SECOND]}, id="a-request-each"),
        pytest.param({"both": [DRIVER, SECOND]}, id="one-request"),
    ],
)
def test_each_driver_of_a_claim_has_its_file(
    forms: Forms, class_of_both: str, tmp_path: Path, requests: dict[str, list[str]]
) -> None:
    """``requests``: the drivers of all whole GPUs that each request has."""
    claim = template("shared", {})
    claim["spec"]["spec"]["devices"]["requests"] = [
        {"name": name, "exactly": all_of(class_of_both, drivers)} for name, drivers in requests.items()
    ]
    forms.cluster.apply([claim, pod("shared", pod_spec("shared", f"{FIND}; {STAY}"))], forms.namespace)
    forms.wait_ready("shared")
    seen = files(forms, "shared")
    name = dict(claim_names(forms.get("shared")))["device"]
    expected = [(request, driver) for request, drivers in requests.items() for driver in drivers]
    assert len(seen) == len(expected)
    for request, driver in expected:
        found = decoded(seen[f"resourceclaimtemplates/device/{request}/{driver}-metadata.json"], tmp_path)
        assert found["requests"][0]["name"] == request
        check(forms, found, name, driver)


def all_of(class_name: str, drivers: list[str]) -> Obj:
    of_drivers = {"cel": {"expression": f"device.driver in {json.dumps(drivers)}"}}
    return {"deviceClassName": class_name, "allocationMode": "All", "selectors": [of_drivers]}
