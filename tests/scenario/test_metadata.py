"""Containers of the embedded cluster see the metadata files of their claims.

With DRA_METADATA_DECODER, `tests/e2e/test_metadata.py` has its form, the program decodes each file, too.
"""

from pathlib import Path
from typing import Any

from dra_driver.sim.apiserver.jsonvalue import dig
from dra_driver.sim.apiserver.kinds import PODS, RESOURCE_CLAIMS
from dra_driver.sim.cluster import Cluster
from dra_driver.sim.objects import claim_names, extended_claim_name, uid
from tests.e2e.test_metadata import decoded
from tests.scenario.conftest import Pods, make_template

CLUSTER = {"nodes": {"gpu-a": "3xh100-sxm5-80gb"}}
DRIVER = "gpu.nvidia.com"


def only_file(cluster: Cluster, pods: Pods, name: str, folder: Path) -> tuple[str, dict[str, Any]]:
    """The only metadata file in the pod's container: its path, and its first object."""
    rootfs = cluster.nodes["gpu-a"].folders.views / uid(pods.get(name)) / "main" / "rootfs"
    inside = rootfs / "var/run/kubernetes.io/dra-device-attributes"
    (path,) = inside.rglob("*.json")
    return str(path.relative_to(inside)), decoded(path.read_text(), folder)


def test_files_are_found_by_the_kind_of_claim(cluster: Cluster, namespace: str, pods: Pods, tmp_path: Path) -> None:
    template = make_template(cluster, namespace)
    pods.run("generated", template=template)
    exactly = {"deviceClassName": DRIVER}
    spec = {"devices": {"requests": [{"name": "one", "exactly": exactly}]}}
    cluster.store.create(RESOURCE_CLAIMS, {"metadata": {"name": "direct"}, "spec": spec}, namespace=namespace)
    pods.create("named", claim="direct")
    limits = {"limits": {"nvidia.com/gpu": "1"}, "requests": {"nvidia.com/gpu": "1"}}
    container = {"name": "main", "image": "example.com/app:1", "resources": limits}
    cluster.store.create(
        PODS, {"metadata": {"name": "extended"}, "spec": {"containers": [container]}}, namespace=namespace
    )
    pods.wait_ready("named", "extended")
    generated = dict(claim_names(pods.get("generated")))["gpu"]
    extended = extended_claim_name(pods.get("extended"))
    expected = {
        "generated": ("resourceclaimtemplates/gpu", generated),
        "named": ("resourceclaims/direct", "direct"),
        "extended": (f"resourceclaims/{extended}", extended),
    }
    for name, (place, claim_name) in expected.items():
        path, found = only_file(cluster, pods, name, tmp_path)
        claim = cluster.store.get(RESOURCE_CLAIMS, claim_name or "", namespace)
        (result,) = dig(claim, "status", "allocation", "devices", "results")
        assert path == f"{place}/{result['request']}/{DRIVER}-metadata.json"
        assert (found["metadata"]["name"], found["metadata"]["uid"]) == (claim_name, uid(claim))
        assert found.get("podClaimName") == ("gpu" if name == "generated" else None)
        (request,) = found["requests"]
        assert [(one["pool"], one["name"]) for one in request["devices"]] == [(result["pool"], result["device"])]
        assert f"UUID: {request['devices'][0]['attributes']['uuid']['string']})" in pods.log(name)
    for name in expected:
        pods.end(name)
    cluster.store.delete(RESOURCE_CLAIMS, "direct", namespace)
