"""A real Kueue with the printed mappings and queues: MIG devices and whole GPUs of one model, charged and explained.

E2E_KUEUE names Kueue's binary, E2E_KUEUE_CRDS the folder of its CRDs (config/components/crd/bases). Needs root: Kueue
reads the certificate of its metrics in /etc/kueue.
"""

import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import trustme
import yaml

from dra_driver.kube.rest import RestClient
from dra_driver.sim.demo.requirements import Requirements
from dra_driver.sim.loop import load
from tests.e2e.cluster import RealCluster, wait
from tests.e2e.forms import IMAGE, STAY, template
from tests.e2e.gates import PARTITIONS
from tests.e2e.host import Host

REQUIREMENTS = Requirements(nodes=(("gpu-a", "1xh100-sxm5-80gb"),))
MODEL = "nvidia-h100-80gb-hbm3"
CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
QUEUES = "/apis/kueue.x-k8s.io/v1beta2"
METRICS = Path("/etc/kueue/metrics/certs")

pytestmark = [
    pytest.mark.needs(PARTITIONS),
    pytest.mark.skipif("E2E_KUEUE" not in os.environ, reason="$E2E_KUEUE is not set; it names Kueue's binary"),
]


def dra(kubeconfig: str, *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "dra_driver.kubectl.commands.kubectl", *words, "--kubeconfig", kubeconfig]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


@pytest.fixture
def queued(cluster: RealCluster, own_host: Host, kubeconfig: str, namespace: str, tmp_path: Path) -> Iterator[str]:
    """A namespace with a LocalQueue of a Kueue that runs on this host with the printed objects."""
    made = [crd for path in sorted(Path(os.environ["E2E_KUEUE_CRDS"]).glob("*.yaml")) for crd in load(path)]
    for crd in made:
        cluster.rest.create(CRDS, crd)
    wait(lambda: None if _served(cluster.rest) else "the API server does not serve Kueue's objects", 30.0)
    certificate = trustme.CA().issue_cert("localhost")
    for folder in (tmp_path, METRICS):
        folder.mkdir(parents=True, exist_ok=True)
        certificate.private_key_pem.write_to_path(folder / "tls.key")
        certificate.cert_chain_pems[0].write_to_path(folder / "tls.crt")
    config = yaml.safe_load(dra(kubeconfig, "kueue", "config").stdout)
    config |= {
        "internalCertManagement": {"enable": False},
        "webhook": {"port": free_port(), "certDir": str(tmp_path)},
        "metrics": {"bindAddress": f"127.0.0.1:{free_port()}"},
        "health": {"healthProbeBindAddress": f"127.0.0.1:{free_port()}"},
        "leaderElection": {"leaderElect": False},
        "integrations": {"frameworks": ["batch/job"]},
        "featureGates": {**config.get("featureGates", {}), "VisibilityOnDemand": False},
    }
    (tmp_path / "kueue.yaml").write_text(yaml.safe_dump(config))
    command = [os.environ["E2E_KUEUE"], "--config", str(tmp_path / "kueue.yaml")]
    with (tmp_path / "log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, env={**os.environ, "KUBECONFIG": kubeconfig})
    printed = [each for each in yaml.safe_load_all(dra(kubeconfig, "kueue", "queues", "-n", namespace).stdout) if each]
    try:
        for each in printed:
            cluster.rest.create(_path(each), each)
        yield namespace
    finally:
        for job in cluster.rest.list(f"/apis/batch/v1/namespaces/{namespace}/jobs")["items"]:
            path = f"/apis/batch/v1/namespaces/{namespace}/jobs/{job['metadata']['name']}"
            cluster.rest.delete(path, propagation="Background")
        wait(lambda: f"{len(cluster.pods(namespace))} pods" if cluster.pods(namespace) else None, 60.0)
        process.terminate()
        process.wait(30)
        for each in printed:
            if each["kind"] == "DeviceClass":
                cluster.rest.delete(f"{_path(each)}/{each['metadata']['name']}")
        for kind in ("workloads", "localqueues", "clusterqueues", "resourceflavors"):  # without their finalizers
            for item in cluster.rest.list(f"{QUEUES}/{kind}")["items"]:
                space = item["metadata"].get("namespace")
                place = f"{QUEUES}/namespaces/{space}/{kind}" if space else f"{QUEUES}/{kind}"
                cluster.rest.merge_patch(f"{place}/{item['metadata']['name']}", {"metadata": {"finalizers": None}})
        for crd in made:
            cluster.rest.delete(f"{CRDS}/{crd['metadata']['name']}")
        wait(lambda: "Kueue's CRDs exist" if _kueue_crds(cluster.rest) else None, 60.0)
        shutil.rmtree(METRICS.parents[1])


def _kueue_crds(rest: RestClient) -> list[str]:
    names = [item["metadata"]["name"] for item in rest.list(CRDS)["items"]]
    return [name for name in names if name.endswith(".kueue.x-k8s.io")]


def _served(rest: RestClient) -> bool:
    try:
        rest.list(f"{QUEUES}/clusterqueues")
        rest.list(f"{QUEUES}/workloads")
    except Exception:  # noqa: BLE001 - not served yet
        return False
    return True


def _path(item: dict[str, Any]) -> str:
    space = item["metadata"].get("namespace")
    inside = f"/namespaces/{space}" if space else ""
    return f"/apis/{item['apiVersion']}{inside}/{item['kind'].lower()}{'es' if item['kind'] == 'DeviceClass' else 's'}"


def job(name: str, of_template: str) -> dict[str, Any]:
    container = {
        "name": "main", "image": IMAGE, "command": ["bash", "-c", STAY],
        "resources": {"claims": [{"name": "device"}]},
    }  # fmt: skip
    claims = [{"name": "device", "resourceClaimTemplateName": of_template}]
    pod = {"restartPolicy": "Never", "containers": [container], "resourceClaims": claims}
    metadata = {"name": name, "labels": {"kueue.x-k8s.io/queue-name": "gpus"}}
    spec = {"suspend": True, "template": {"spec": pod}}
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": metadata, "spec": spec}


def test_seven_of_eight_are_admitted_and_the_eighth_is_explained(
    cluster: RealCluster, kubeconfig: str, queued: str
) -> None:
    small = {"deviceClassName": f"{MODEL}.mig.nvidia.com"}
    profile = 'device.attributes["gpu.nvidia.com"].profile == "1g.10gb"'
    small["selectors"] = [{"cel": {"expression": profile}}]  # type: ignore[assignment]
    cluster.apply([template("small", small), template("whole", {"deviceClassName": f"{MODEL}.gpu.nvidia.com"})], queued)
    for number in range(8):
        cluster.rest.create(f"/apis/batch/v1/namespaces/{queued}/jobs", job(f"small-{number}", "small"))

    def running() -> str | None:
        ready = [pod for pod in cluster.pods(queued) if pod["status"].get("phase") == "Running"]
        return None if len(ready) == 7 else f"{len(ready)} pods run: {cluster.warnings(queued)}"

    wait(running, 120.0)
    workloads = cluster.rest.list(f"{QUEUES}/namespaces/{queued}/workloads")["items"]
    charges = [
        each["resourceUsage"]
        for item in workloads
        for each in ((item.get("status") or {}).get("admission") or {}).get("podSetAssignments") or ()
    ]
    assert [charge[f"gpu.nvidia.com/{MODEL}-memory"] for charge in charges] == ["9984Mi"] * 7
    assert [charge[f"gpu.nvidia.com/{MODEL}-decoders"] for charge in charges] == ["1"] * 7
    owners = {item["metadata"]["ownerReferences"][0]["name"]: item for item in workloads}
    waits = next(name for name, item in owners.items() if not (item.get("status") or {}).get("admission"))
    said = dra(kubeconfig, "explain", "job", waits, "-n", queued)
    assert (said.returncode, said.stdout) == (1, "")
    assert "Kueue has not admitted it (queue gpus" in said.stderr
    assert f"insufficient unused quota for gpu.nvidia.com/{MODEL}-decoders" in said.stderr
    assert "wait until others finish" in said.stderr
    cluster.rest.create(f"/apis/batch/v1/namespaces/{queued}/jobs", job("whole", "whole"))
    wait(
        lambda: None if "has no pods" in dra(kubeconfig, "explain", "job", "whole", "-n", queued).stderr else "no", 30.0
    )
