"""A real Kueue with the printed mappings and queues: charges, waiting jobs, and their explanations.

E2E_KUEUE names Kueue's binary, E2E_KUEUE_CRDS the folder of its CRDs (config/components/crd/bases). Needs root: Kueue
reads the certificate of its metrics in /etc/kueue.
"""

import json
import os
import shutil
import socket
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import trustme
import yaml

from dra_driver.core.model.mig import parse_partition_name
from dra_driver.kube.rest import RestClient
from dra_driver.scheduler.allocation import nano
from dra_driver.sim.apiserver.jsonvalue import Obj, dig
from dra_driver.sim.apiserver.kinds import RESOURCE_CLAIMS
from dra_driver.sim.demo.requirements import Requirements
from dra_driver.sim.loop import load
from tests.e2e.cluster import DRIVER, REACH_S, RealCluster, wait
from tests.e2e.forms import IMAGE, STAY, template
from tests.e2e.gates import EXTENDED, PARTITIONS, SHARES
from tests.e2e.host import Host
from tests.fakes.node_process import DriverProcess

ONE = Requirements(nodes=(("gpu-a", "1xh100-sxm5-80gb"),))
REQUIREMENTS = ONE
POLICY = Path(__file__).parent / "policies" / "mps-minor-2.yaml"
MIXED = Requirements(nodes=(("gpu-a", "3xh100-sxm5-80gb,2xl4-24gb"),), policies=(POLICY,))
MODEL = "nvidia-h100-80gb-hbm3"
QUOTA = f"gpu.nvidia.com/{MODEL}"
PRIORITY = "kueue.x-k8s.io/priority-class"
PRIORITY_CLASS = {"apiVersion": "kueue.x-k8s.io/v1beta2", "kind": "WorkloadPriorityClass"}
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
        for kind in (
            "workloads",
            "localqueues",
            "clusterqueues",
            "resourceflavors",
            "workloadpriorityclasses",
        ):  # without their finalizers
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


def job(name: str, of_template: str = "", *, priority: str = "", resources: dict[str, str] | None = None) -> Obj:
    """A Job of one pod with a claim of the template, or with extended resources."""
    claims = {"claims": [{"name": "device"}]} if of_template else {"limits": resources, "requests": resources}
    container = {"name": "main", "image": IMAGE, "command": ["bash", "-c", STAY], "resources": claims}
    pod: Obj = {"restartPolicy": "Never", "containers": [container], "terminationGracePeriodSeconds": 1}
    if of_template:
        pod["resourceClaims"] = [{"name": "device", "resourceClaimTemplateName": of_template}]
    labels = {"kueue.x-k8s.io/queue-name": "gpus"} | ({PRIORITY: priority} if priority else {})
    spec = {"suspend": True, "template": {"spec": pod}}
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": name, "labels": labels}, "spec": spec}


def mig(profile: str) -> Obj:
    selector = {"cel": {"expression": f'device.attributes["gpu.nvidia.com"].profile == "{profile}"'}}
    return {"deviceClassName": f"{MODEL}.mig.nvidia.com", "selectors": [selector]}


class Queue:
    """The jobs of one namespace, with their Workloads and explanations."""

    def __init__(self, cluster: RealCluster, kubeconfig: str, namespace: str) -> None:
        self.cluster, self.namespace, self._kubeconfig = cluster, namespace, kubeconfig
        self._jobs = f"/apis/batch/v1/namespaces/{namespace}/jobs"

    def templates(self, requests: dict[str, Obj]) -> None:
        self.cluster.apply([template(name, request) for name, request in requests.items()], self.namespace)

    def start(self, *jobs: Obj) -> None:
        for each in jobs:
            self.cluster.rest.create(self._jobs, each)

    def delete(self, *names: str) -> None:
        for name in names:
            self.cluster.rest.delete(f"{self._jobs}/{name}", propagation="Background")

    def workloads(self) -> dict[str, Obj]:
        """By the name of their job."""
        items = self.cluster.rest.list(f"{QUEUES}/namespaces/{self.namespace}/workloads")["items"]
        return {item["metadata"]["ownerReferences"][0]["name"]: item for item in items}

    def charges(self) -> dict[str, dict[str, str]]:
        """Return the charges of admitted jobs for devices."""
        return {
            name: {key: amount for each in sets for key, amount in each["resourceUsage"].items() if "/" in key}
            for name, item in self.workloads().items()
            if (sets := dig(item, "status", "admission", "podSetAssignments"))
        }

    def running(self) -> set[str]:
        pods = (pod for pod in self.cluster.pods(self.namespace) if pod["status"].get("phase") == "Running")
        return {pod["metadata"]["labels"]["job-name"] for pod in pods}

    def wait_running(self, *names: str, within_s: float = 120.0) -> None:
        def complaint() -> str | None:
            found = self.running()
            return None if found == set(names) else f"{found} run: {self.cluster.warnings(self.namespace)}"

        wait(complaint, within_s)

    def said(self, *words: str) -> str:
        """Return the output of a command of kubectl dra, on one line."""
        done = dra(self._kubeconfig, *words)
        return " ".join((done.stdout + done.stderr).split())

    def wait_explained(self, name: str, *parts: str, within_s: float = 30.0) -> str:
        said: list[str] = []

        def complaint() -> str | None:
            said.append(self.said("explain", "job", name, "-n", self.namespace))
            return None if all(part in said[-1] for part in parts) else said[-1]

        wait(complaint, within_s)
        print(f"explain {name}: {said[-1]}")  # noqa: T201 - for `pytest -s`
        return said[-1]


@pytest.fixture
def queue(cluster: RealCluster, kubeconfig: str, queued: str) -> Queue:
    return Queue(cluster, kubeconfig, queued)


def journal_amounts(queue: Queue, own_host: Host, folder: Path) -> dict[str, dict[str, int]]:
    """Return the prepared amounts of each job in Kueue's names: counters of the slices, or granted memory."""
    kept = ("node_name", "simulate", "kubelet_registrar_dir", "kubelet_plugins_dir", "cdi_dir")
    flags = {name: own_host.process.flags[name] for name in kept}
    command = [*DriverProcess("state", folder, flags, own_host.process.environ).command(), "-o", "json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=own_host.process.environ)
    prepared = {claim["uid"]: claim for claim in json.loads(done.stdout)["items"]}
    published = {device["name"]: device for device in queue.cluster.devices()}
    claims = queue.cluster.client.list(RESOURCE_CLAIMS, queue.namespace)
    jobs = {
        pod["metadata"]["name"]: pod["metadata"]["labels"]["job-name"] for pod in queue.cluster.pods(queue.namespace)
    }
    found: dict[str, Counter[str]] = {}
    for claim in claims:
        results = dig(claim, "status", "allocation", "devices", "results") or []
        assert {result["device"] for result in results} == set(prepared[claim["metadata"]["uid"]]["devices"])
        amounts = found.setdefault(jobs[claim["metadata"]["ownerReferences"][0]["name"]], Counter())
        for result in results:
            amounts.update(_amounts(published[result["device"]], result.get("consumedCapacity") or {}))
    return {name: dict(amounts) for name, amounts in found.items()}


def _amounts(device: Obj, consumed: dict[str, str]) -> dict[str, int]:
    model = device["attributes"]["productName"]["string"].lower().replace(" ", "-")
    if consumed:
        return {f"{DRIVER}/{model}-shared-memory": nano(consumed["memory"])}
    counters = {
        key: each["value"] for part in device.get("consumesCounters") or () for key, each in part["counters"].items()
    }
    if not counters:
        return {f"{DRIVER}/{model}-gpus": nano("1")}
    return {f"{DRIVER}/{model}-{key}": nano(counters[key]) for key in ("memory", "decoders")}


def test_seven_of_eight_are_admitted_and_the_eighth_is_explained(queue: Queue) -> None:
    queue.templates({"small": mig("1g.10gb"), "whole": {"deviceClassName": f"{MODEL}.gpu.nvidia.com"}})
    names = [f"small-{number}" for number in range(8)]
    queue.start(*(job(name, "small") for name in names))
    wait(lambda: None if len(queue.running()) == 7 else f"{queue.running()}", 120.0)
    charges = queue.charges()
    assert list(charges.values()) == [{f"{QUOTA}-memory": "9984Mi", f"{QUOTA}-decoders": "1"}] * 7
    waits = next(name for name in names if name not in charges)
    queue.wait_explained(
        waits,
        f"job {waits} has no pods: Kueue has not admitted it (queue gpus, charge",
        f"insufficient unused quota for {QUOTA}-decoders",
        "wait until others finish",
    )
    assert "clusterqueue/gpus gpu.nvidia.com/nvidia-h100-80gb-hbm3-decoders 7 7 0" in queue.said("quota", "-A")
    queue.start(job("whole", "whole"))
    queue.wait_explained("whole", "has no pods: Kueue has not admitted it")


@pytest.mark.parametrize("requirements", [MIXED], indirect=True)
@pytest.mark.needs(SHARES, EXTENDED)
def test_charges_of_every_form_equal_the_journal(queue: Queue, own_host: Host, tmp_path: Path) -> None:
    """MIG devices of three sizes, a whole GPU with and without MIG placements, and shares."""
    share = {
        "deviceClassName": f"{MODEL}.shared.nvidia.com",
        "capacity": {"requests": {"memory": "20Gi", "computePercent": "25"}},
    }
    queue.templates(
        {
            "small": mig("1g.10gb"), "medium": mig("2g.20gb"), "large": mig("3g.40gb"),
            "whole": {"deviceClassName": f"{MODEL}.gpu.nvidia.com"},
            "board": {"deviceClassName": "nvidia-l4.gpu.nvidia.com"}, "share": share,
        }
    )  # fmt: skip
    claimed = ["whole", "board", "share", "large", "medium", "small"]
    for number, name in enumerate(claimed, 1):  # one after another: the scheduler would put parts on both H100
        queue.start(job(name, name))
        queue.wait_running(*claimed[:number])
    charges = queue.charges()
    print(f"charges: {charges}")  # noqa: T201 - for `pytest -s`
    amounts = {name: {key: nano(amount) for key, amount in found.items()} for name, found in charges.items()}
    assert amounts == journal_amounts(queue, own_host, tmp_path)
    queue.start(job("plain", resources={"nvidia.com/gpu": "1"}))
    queue.wait_running(*claimed, "plain")
    assert queue.charges()["plain"] == {"nvidia.com/gpu": "1"}
    print(f"quota: {queue.said('quota', '-A')}")  # noqa: T201 - for `pytest -s`
    queue.start(job("plain-4", resources={"nvidia.com/gpu": "4"}), job("board-2", "board"))
    queue.wait_explained("plain-4", "insufficient unused quota for nvidia.com/gpu", "wait until others finish")
    queue.wait_explained("board-2", "Kueue has admitted it", "it waits for the scheduler, not for quota")
    running = [*claimed, "plain"]
    for name in ("share-2", "share-3"):
        queue.start(job(name, "share"))
        queue.wait_running(*(running := [*running, name]), within_s=REACH_S)
    queue.start(job("share-4", "share"))
    queue.wait_explained("share-4", f"insufficient unused quota for {QUOTA}-shared-memory")


@pytest.mark.parametrize("requirements", [ONE], indirect=True)
def test_preempted_refused_and_disagreeing_jobs_are_explained(queue: Queue) -> None:
    rest = queue.cluster.rest
    rest.merge_patch(f"{QUEUES}/clusterqueues/gpus", {"spec": {"preemption": {"withinClusterQueue": "LowerPriority"}}})
    for name, value in (("low", 1), ("high", 9)):
        rest.create(f"{QUEUES}/workloadpriorityclasses", {**PRIORITY_CLASS, "metadata": {"name": name}, "value": value})
    queue.templates(
        {
            "whole": {"deviceClassName": f"{MODEL}.gpu.nvidia.com"},
            "two": {"deviceClassName": f"{MODEL}.gpu.nvidia.com", "count": 2},
            "small": mig("1g.10gb"), "half": mig("4g.40gb"),
            "unmapped": {"deviceClassName": "mig.nvidia.com"},
        }
    )  # fmt: skip
    queue.start(job("low", "whole", priority="low"))
    queue.wait_running("low")
    queue.start(job("high", "whole", priority="high"))
    queue.wait_running("high")
    queue.wait_explained("low", "Kueue has not admitted it", "preempted", "insufficient unused quota")
    queue.start(job("two", "two"), job("unmapped", "unmapped"))
    queue.wait_explained("two", "insufficient matching devices", "not a quota")
    queue.wait_explained("unmapped", "DeviceClass mig.nvidia.com is not mapped", "use a class of `kubectl dra kueue")
    said = queue.said("doctor")
    print(f"doctor: {said}")  # noqa: T201 - for `pytest -s`
    assert "DeviceClass mig.nvidia.com is not mapped" in said
    queue.delete("high", "low", "two", "unmapped")
    smalls = [f"small-{number}" for number in range(4)]
    queue.start(*(job(name, "small") for name in smalls))
    queue.wait_running(*smalls)
    first = next(name for name, start in _starts(queue).items() if start < 4)
    queue.delete(*(name for name in smalls if name != first))
    queue.wait_running(first)
    queue.start(job("half", "half"))
    queue.wait_explained(
        "half", "Kueue has admitted it (queue gpus, charge", "it waits for the scheduler, not for quota"
    )


def _starts(queue: Queue) -> dict[str, int]:
    """The first memory slice of each job's MIG device."""
    found = {}
    for pod in queue.cluster.pods(queue.namespace):
        (device,) = queue.cluster.granted_devices(pod)
        name = parse_partition_name(device.rpartition("/")[2])
        assert name is not None
        found[pod["metadata"]["labels"]["job-name"]] = name.start
    return found
