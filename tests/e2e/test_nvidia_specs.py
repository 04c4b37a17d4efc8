"""Claims written for NVIDIA's own driver work unchanged.

The specs are tests/bats/specs/gpu-*.yaml and demo/specs/quickstart/v1/gpu-test4.yaml of NVIDIA's public DRA driver
repository. They are read from the folder in E2E_NVIDIA_SPECS and applied unchanged; `SPECS` has the expected results.
"""

import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from dra_driver.hardware.gpu.backend import ComputeMode
from dra_driver.kube.published.listing import Devices, observed_devices
from dra_driver.sim.apiserver.jsonvalue import Obj
from dra_driver.sim.demo.expectations import parse_expectation
from dra_driver.sim.demo.requirements import Requirements
from dra_driver.sim.loop import load
from tests.e2e.cluster import RealCluster
from tests.e2e.forms import check_partitions, reached
from tests.e2e.gates import gates_of
from tests.e2e.host import Hardware, Host

ANY = Requirements()
POLICIES = Path(__file__).parent / "policies"
H100_IN_TURNS = Requirements(policies=(POLICIES / "time-sliced-h100.yaml",))
# One GPU: the scheduler of 1.34 tries GPUs in random order, and each share would fit on another.
H100_BY_MEMORY = Requirements(nodes=(("gpu-a", "1xh100-sxm5-80gb"),), policies=(POLICIES / "memory-shares-h100.yaml",))
FOUR_A100 = Requirements(nodes=(("gpu-a", "4xa100-sxm4-40gb+mig"),))


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    cluster: RealCluster
    namespace: str
    hardware: Hardware

    @property
    def pods(self) -> list[Obj]:
        return self.cluster.pods(self.namespace)

    def observations(self) -> list[Devices]:
        logs = [self.cluster.all_logs(pod).values() for pod in self.pods]
        return [sum(map(observed_devices, texts), Devices()) for texts in logs]

    def gpu(self) -> str:
        (uuid,) = {uuid for observation in self.observations() for uuid in observation.listed}
        return uuid


@dataclass(frozen=True, slots=True, kw_only=True)
class Spec:
    """``lines`` is the number of GPUs that ``nvidia-smi -L`` lists in the first containers of all ``pods`` together;
    a MIG device is listed below its GPU. ``check`` checks side effects while the pods run."""

    reaches: Sequence[str]
    pods: int = 1
    lines: int = 1
    requirements: Requirements = ANY
    check: Callable[[View], None] | None = None


def two_pods(first: str, second: str, requirements: Requirements = ANY, *, relation: str = "") -> Spec:
    reaches = [f"pod/{name} Running sees 1 GPU" for name in (first, second)]
    related = [f"pods {first} {second} {relation}"] if relation else []
    return Spec(reaches=[*reaches, *related], pods=2, lines=2, requirements=requirements)


def different_gpus(view: View) -> None:
    """Every pod has a GPU of its own."""
    observations = view.observations()
    assert len({uuid for observation in observations for uuid in observation.listed}) == len(observations)


def job_has_ended(view: View) -> None:
    logs = view.cluster.logs(view.namespace)
    assert all(log.endswith("GPU Job completed successfully\n") for log in logs.values()), logs


def short_turns(view: View) -> None:
    """nvidia-smi set the time slice of this GPU once; after the claim it sets the default."""
    gpu = view.gpu()
    assert view.hardware.time_slice(gpu) == 1
    assert view.hardware.said("nvidia-smi")[-1].endswith(f"nvidia-smi compute-policy -i {gpu} --set-timeslice 1")


def mps_daemon(view: View) -> None:
    gpu, said = view.gpu(), [line.split(" ", 1)[1] for line in view.hardware.said("mps-control")]
    newest = said[len(said) - said[::-1].index("start -f") :]
    assert f"devices {gpu}" in newest, newest
    assert "command set_default_active_thread_percentage 50" in newest, newest
    assert f"command set_default_device_pinned_mem_limit {gpu} 10240M" in newest, newest
    assert "exit" not in newest, newest
    assert len(view.hardware.daemons()) == 1
    assert view.hardware.compute_mode(gpu) is ComputeMode.EXCLUSIVE_PROCESS


def four_quartets(view: View) -> None:
    observations = view.observations()
    assert [sorted(part.profile for part in observation.partitions) for observation in observations] == [
        ["1g.5gb", "1g.5gb", "2g.10gb", "3g.20gb"]
    ] * 4
    assert all(len(observation.parents) == 1 for observation in observations)
    different_gpus(view)


SPECS = {
    "gpu-simple-full": Spec(reaches=["pod/pod-full-gpu Running sees 1 GPU"]),
    "gpu-2pods-2gpus": two_pods("pod1", "pod2", relation="different GPUs"),
    "gpu-2pods-1gpu": two_pods("pod1", "pod2", relation="same GPU"),
    "gpu-1pod-2cnt-1gpu": Spec(reaches=["pod/pod1 Running sees 1 GPU", "containers pod1/ctr0 pod1/ctr1 same GPU"]),
    "gpu-two-claims-one-pod": Spec(reaches=["pod/pod-two-claims Running sees 2 GPUs"], lines=2),
    "gpu-job-rct": Spec(reaches=["job/gpu-job-rct Complete"], pods=2, lines=2, check=job_has_ended),
    "gpu-job-rct-parallel": Spec(
        reaches=["deployment/gpu-deploy-parallel Available"], pods=2, lines=2, check=different_gpus
    ),
    "gpu-cel-nomatch": Spec(reaches=["pod/pod-cel-nomatch Pending"], lines=0),
    "gpu-simple-mig": Spec(reaches=["pod/pod-mig1g Running sees 1 MIG device"]),
    "gpu-multiple-mig": Spec(
        reaches=[
            "pod/pod-2mig Running sees 2 MIG devices",
            "containers pod-2mig/ctr0 pod-2mig/ctr1 different MIG devices",
        ]
    ),
    "gpu-anymig": Spec(reaches=["pod/pod-anymig Running sees 1 MIG device"]),
    "gpu-simple-mig-ts": Spec(reaches=["pod/pod-mig1g Running sees 1 MIG device"]),
    "gpu-timeslicing": Spec(
        reaches=[
            "pod/pod-timeslicing Running sees 1 GPU",
            "containers pod-timeslicing/ctr0 pod-timeslicing/ctr1 same GPU",
        ],
        check=short_turns,
    ),
    "gpu-mps": Spec(
        reaches=["pod/pod-mps Running sees 1 GPU", "containers pod-mps/ctr0 pod-mps/ctr1 same GPU"], check=mps_daemon
    ),
    "gpu-consumable-shares-memory": two_pods(
        "pod-share-memory-0", "pod-share-memory-1", H100_BY_MEMORY, relation="same GPU"
    ),
    # It asks for a count of shares and for no memory, which here means all memory: the pods run on different GPUs.
    "gpu-consumable-shares-integer": two_pods("pod-share-integer-0", "pod-share-integer-1", H100_IN_TURNS),
    "gpu-test4": Spec(
        reaches=["deployment/pod Available"], pods=4, lines=4, requirements=FOUR_A100, check=four_quartets
    ),
}


FOLDER = os.environ.get("E2E_NVIDIA_SPECS")
_LISTED = re.compile(r"GPU \d+: ")
# Those with the same needs follow each other, so that GPUs and policies are changed seldom.
ORDER = sorted(SPECS, key=lambda name: str(SPECS[name].requirements))


@pytest.fixture
def requirements(name: str) -> Requirements:
    if not FOLDER:
        pytest.skip("E2E_NVIDIA_SPECS does not name a folder with NVIDIA's specs")
    return SPECS[name].requirements


def marked(name: str) -> pytest.MarkDecorator:
    return pytest.mark.needs(*(gates_of(load(Path(FOLDER) / f"{name}.yaml")) if FOLDER else ()))


@pytest.mark.parametrize("name", [pytest.param(name, marks=marked(name)) for name in ORDER])
def test_nvidia_spec(name: str, cluster: RealCluster, host: Host | None, namespace: str) -> None:
    """The expected state, with exactly as many GPUs in the logs as it requests.

    After its deletion, GPUs are whole, modes and time slices as before, and no MPS daemon runs (see namespace).
    """
    spec, path = SPECS[name], Path(str(FOLDER)) / f"{name}.yaml"
    with reached(cluster, path, namespace, [parse_expectation(text) for text in spec.reaches]) as home:
        assert len(cluster.pods(home)) == spec.pods
        logs = cluster.logs(home) if spec.lines else {}
        listed = [line for log in logs.values() for line in log.splitlines() if _LISTED.match(line)]
        assert len(listed) == spec.lines, logs
        if host is not None:
            check_partitions(cluster, host.hardware, home)
            if spec.check is not None:
                spec.check(View(cluster=cluster, namespace=home, hardware=host.hardware))
