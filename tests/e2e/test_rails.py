"""GPUs and network cards of two drivers on a real scheduler and kubelet: one PCIe root, and pods pinned to rails.

`dra-driver sim up --nics` has the same driver of cards; here it registers with the real kubelet.
"""

from collections.abc import Iterator

import pytest

from dra_driver.core.model.claim import PreparedDevice
from dra_driver.core.model.ids import ClaimUid, DeviceName, PoolName
from dra_driver.kube.connection import Connection
from dra_driver.kube.rest import RestClient
from dra_driver.kubectl.commands import kubectl
from dra_driver.sim.apiserver.jsonvalue import Obj
from dra_driver.sim.apiserver.kinds import DEVICE_CLASSES, PODS, RESOURCE_CLAIMS, RESOURCE_SLICES
from dra_driver.sim.demo.expectations import why_unscheduled
from dra_driver.sim.demo.requirements import Requirements
from dra_driver.sim.loop import load
from dra_driver.sim.node import network
from dra_driver.sim.node.network import NetworkDriver
from dra_driver.sim.objects import is_ready
from tests.e2e.cluster import GONE_S, REACH_S, ROOT, RealCluster, wait
from tests.e2e.forms import STAY, pod, pod_spec
from tests.e2e.host import KUBELET_ROOT, Host

EXAMPLES = ROOT / "examples" / "topology"
REQUIREMENTS = Requirements(nodes=(("gpu-a", "4xl4-24gb"),), policies=(EXAMPLES / "rails-policy.yaml",))
RAILS = {"0": 0, "1": 0, "2": 1, "3": 1}
"""The rail, and the number of the PCIe root, by the number of a GPU or card."""
OTHER = ClaimUid("11111111-2222-3333-4444-555555555555")


@pytest.fixture
def cards(
    cluster: RealCluster, own_host: Host, kubeconfig: str, node_name: str, namespace: str
) -> Iterator[NetworkDriver]:
    """The driver of a network card for each GPU, with its class."""
    folders = {"registry": KUBELET_ROOT / "plugins_registry", "plugins": KUBELET_ROOT / "plugins"}
    gpus = own_host.hardware.as_described().gpus
    driver = NetworkDriver(node_name, gpus, RestClient(Connection.load(kubeconfig)), **folders)
    cluster.client.create(network.DEVICE_CLASS, "")
    driver.start()
    try:
        wait(lambda: None if _slices(cluster) else "no slice of the network driver", 60.0)
        yield driver
        for each in cluster.pods(namespace):
            cluster.client.delete(PODS, each["metadata"]["name"], namespace)
        wait(lambda: ", ".join(driver.prepared), GONE_S)
    finally:
        driver.stop()
        for each in _slices(cluster):
            cluster.client.delete(RESOURCE_SLICES, each["metadata"]["name"], "")
        cluster.client.delete(DEVICE_CLASSES, "dranet", "")


def _slices(cluster: RealCluster) -> list[Obj]:
    found = cluster.client.list(RESOURCE_SLICES, "")
    return [item for item in found if item["spec"]["driver"] == network.DRIVER]


def ready(cluster: RealCluster, namespace: str, *names: str) -> None:
    def unready() -> str:
        return ", ".join(name for name in names if not is_ready(cluster.pod(name, namespace)))

    wait(unready, REACH_S)


def rails(cluster: RealCluster, namespace: str, name: str, driver: str) -> list[int]:
    """The rails of a pod's devices of a driver, sorted."""
    granted = cluster.granted_devices(cluster.pod(name, namespace))
    return sorted(RAILS[device[-1]] for device in granted if device.startswith(driver))


def test_gpu_and_card_of_one_root_are_prepared_by_their_drivers(
    cluster: RealCluster, cards: NetworkDriver, namespace: str
) -> None:
    example = load(EXAMPLES / "gpu-and-nic.yaml")
    cluster.apply(example, namespace)
    ready(cluster, namespace, "gpu-and-nic")
    claim = cluster.client.find(RESOURCE_CLAIMS, "gpu-and-nic", namespace)
    assert claim is not None
    gpu, card = claim["status"]["allocation"]["devices"]["results"]
    assert (gpu["driver"], card["driver"]) == ("gpu.nvidia.com", "dra.net")
    assert RAILS[gpu["device"][-1]] == RAILS[card["device"][-1]]
    assert [[each.device for each in held] for held in cards.prepared.values()] == [[card["device"]]]
    assert "NVIDIA L4" in cluster.logs(namespace)["gpu-and-nic"]
    cluster.remove(example, namespace)


def test_two_pods_pinned_to_rails_run_and_explain_says_why_a_third_waits(
    cluster: RealCluster, cards: NetworkDriver, namespace: str, kubeconfig: str, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster.apply(load(EXAMPLES / "rails.yaml"), namespace)
    ready(cluster, namespace, "prefill", "decode")
    for name in ("prefill", "decode"):
        assert rails(cluster, namespace, name, "gpu-") == rails(cluster, namespace, name, "nic-") == [0, 1]
    assert len(cards.prepared) == 4
    (third,) = (each for each in load(EXAMPLES / "rails.yaml") if each["metadata"]["name"] == "prefill")
    cluster.client.create({**third, "metadata": {"name": "third"}}, namespace)
    wait(lambda: None if why_unscheduled(cluster.pod("third", namespace)) else "not rejected yet", 60.0)
    assert kubectl.main(["explain", "third", "-n", namespace, "--kubeconfig", kubeconfig]) == 1
    said = capsys.readouterr().out
    assert "-2 selector: device.attributes" in said
    assert "seen: rail = 1 (2 devices)" in said
    assert "-2 in use" in said
    cluster.client.delete(PODS, "prefill", namespace)
    ready(cluster, namespace, "third")
    assert rails(cluster, namespace, "third", "gpu-") == [0, 1]


def near(name: str, *, kind: str = "") -> Obj:
    """A template for a GPU and a network card of its root; ``kind`` of parameters that the GPU's driver refuses."""
    requests = [{"name": "gpu", "exactly": {"deviceClassName": "gpu.nvidia.com"}}]
    requests.append({"name": "nic", "exactly": {"deviceClassName": "dranet"}})
    same = [{"requests": ["gpu", "nic"], "matchAttribute": "resource.kubernetes.io/pcieRoot"}]
    opaque = {"driver": "gpu.nvidia.com", "parameters": {"apiVersion": "resource.nvidia.com/v1beta1", "kind": kind}}
    config = [{"requests": ["gpu"], "opaque": opaque}] if kind else []
    header = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaimTemplate", "metadata": {"name": name}}
    return {**header, "spec": {"spec": {"devices": {"requests": requests, "constraints": same, "config": config}}}}


def test_pod_waits_while_one_of_two_drivers_refuses_its_claim(
    cluster: RealCluster, cards: NetworkDriver, namespace: str
) -> None:
    """Afterwards neither driver has anything of the pods (see `namespace` and `cards`)."""

    def refused(name: str, message: str) -> None:
        def silent() -> str | None:
            found = cluster.warnings(namespace, "FailedPrepareDynamicResources")
            return None if any(each.startswith(name) and message in each for each in found) else f"events: {found}"

        wait(silent, 60.0)
        assert not is_ready(cluster.pod(name, namespace))

    cluster.apply([near("refused", kind="Unknown"), pod("first", pod_spec("refused", STAY))], namespace)
    refused("first", "Unknown")
    cluster.client.delete(PODS, "first", namespace)
    wait(lambda: ", ".join(cards.prepared), GONE_S)
    cards.prepared[OTHER] = tuple(
        PreparedDevice(
            request_names=("nic",), pool=PoolName("x"), device=DeviceName(f"nic-{number}"), cdi_device_ids=()
        )
        for number in range(4)
    )
    cluster.apply([near("good"), pod("second", pod_spec("good", STAY))], namespace)
    refused("second", f"is prepared for claim {OTHER}")
    del cards.prepared[OTHER]
    ready(cluster, namespace, "second")
