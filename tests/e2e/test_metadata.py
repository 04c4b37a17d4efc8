"""Programs in containers read the metadata files of their devices (KEP-5304).

With DRA_METADATA_DECODER, the path of a program, every file is also decoded by it: ``PROGRAM FILE`` exits with 0 if
``k8s.io/dynamic-resource-allocation/devicemetadata`` decodes the file, and prints one JSON object with ``claim``
(``namespace/name``), ``podClaimName``, ``request`` and ``devices`` (names).
"""

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from dra_driver.sim.apiserver import kinds
from dra_driver.sim.apiserver.jsonvalue import dig
from dra_driver.sim.demo.requirements import Requirements
from dra_driver.sim.objects import claim_names
from tests.e2e.cluster import DRIVER
from tests.e2e.forms import STAY, Forms, pod, pod_spec, slice_of, template, whole
from tests.e2e.gates import EXTENDED, PARTITIONS
from tests.fakes.stand_in import present

REQUIREMENTS = Requirements(nodes=(("gpu-a", "2xh100-sxm5-80gb"),))
ROOT = "/var/run/kubernetes.io/dra-device-attributes"
FIND = f"cd {ROOT} && for file in $(find . -name '*.json'); do echo file ${{file#./}}; cat $file; done; echo done"
UNPRIVILEGED = {"securityContext": {"runAsUser": 65534, "runAsGroup": 65534}}
DECODER = os.environ.get("DRA_METADATA_DECODER")


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


def check(forms: Forms, found: dict[str, Any], name: str | None) -> None:
    """Assert that the file describes this claim and its allocated devices."""
    claim = present(forms.cluster.client.find(kinds.RESOURCE_CLAIMS, present(name), forms.namespace))
    meta = claim["metadata"]
    assert found["metadata"] == {key: meta[key] for key in ("name", "namespace", "uid")} | {"generation": 1}
    results = dig(claim, "status", "allocation", "devices", "results")
    (request,) = found["requests"]
    assert request["name"] == results[0]["request"]
    assert [one["name"] for one in request["devices"]] == [one["device"] for one in results]


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
