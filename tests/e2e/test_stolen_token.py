"""A stolen token of one node, on a real API server: it writes its own objects only, and what it invents there neither
holds nor loosens the brakes for the other nodes.

Needs no GPU: Nodes, pods and claims are objects. Each node has four GPUs, so that two nodes with a case on each exceed
the brake; one case beside those of the thief does not.
"""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from itertools import count
from pathlib import Path

import pytest

from dra_driver.core.errors import ForbiddenError, InvalidObjectError, NotFoundError
from dra_driver.kube import paths
from dra_driver.kube.connection import Connection
from dra_driver.kube.rest import RestClient
from tests.e2e.cluster import holds, wait
from tests.e2e.gates import EXTENDED, TAINTS
from tests.e2e.host import controllers
from tests.fakes import chart
from tests.fakes.dra_objects import DRIVER, gpu, resource_slice
from tests.fakes.extended_pods import claim_status, pod_status, special_claim
from tests.rights import forbidden
from tests.rights.accounts import account_on, installed, pod_on
from tests.rights.lives import is_leaving
from tests.rights.request import Obj, refusal

SUFFIX = os.urandom(3).hex()
NODES = THIEF, VICTIM, THIRD = tuple(f"stolen-{name}-{SUFFIX}" for name in ("own", "victim", "third"))
NAMESPACE, TENANT = f"stolen-{SUFFIX}", f"stolen-tenant-{SUFFIX}"
WORLD = forbidden.World(own=THIEF, other=VICTIM, namespace=NAMESPACE, tenant=TENANT)
VALUES = {"eviction": {"enabled": True, "overGrant": True, "reclaimIdle": True}}
USAGE = {"evict_over_grant": "true", "reclaim_idle": "true"}
GPUS, INVENTED, ENTRIES, MOST_GPUS = 4, 128, 32, 64
WAIT_S = 60.0
CLOCK = (f"2026-07-01T{number // 60:02}:{number % 60:02}:00Z" for number in count())
Say = Callable[[str], None]


@pytest.fixture(scope="module")
def admin(kubeconfig: str) -> Iterator[RestClient]:
    rest = RestClient(Connection.load(kubeconfig))
    tenant = f"/api/v1/namespaces/{TENANT}"
    with installed(rest, chart.objects(VALUES, namespace=NAMESPACE), NAMESPACE, SUFFIX):
        try:
            rest.create("/api/v1/namespaces", {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": TENANT}})
            for name in NODES:
                rest.create(paths.nodes(), {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}})
            wait(lambda: "" if rest.get(f"{tenant}/serviceaccounts/default") else "no account", WAIT_S)
            wait(lambda: "" if rest.get(paths.gpu_nodes()) else "GpuNodes are not served", WAIT_S)
            yield rest
        finally:
            for name in NODES:
                withdraw(rest, name)
                for path in (paths.gpu_nodes(name), paths.node(name)):
                    with suppress(NotFoundError):
                        rest.delete(path)
            rest.delete(tenant)


@pytest.fixture(scope="module")
def thief(admin: RestClient, kubeconfig: str, tmp_path_factory: pytest.TempPathFactory) -> RestClient:
    """With the token of the node's pod. The API server needs a moment until it applies the admission policies."""
    target = tmp_path_factory.mktemp("thief") / "conf"
    rest = account_on(admin, "dra-driver-node", NAMESPACE, THIEF).client(Path(kubeconfig), target)

    def complaint() -> str:
        for path, body in (
            (paths.resource_slices(), forbidden.slice_of(VICTIM, f"{VICTIM}/{DRIVER}")),
            (paths.gpu_nodes(), forbidden.gpu_node(VICTIM)),
        ):
            try:
                rest.create(path, body, dry_run=True)
            except ForbiddenError as error:
                if "may not change" in str(error):
                    continue
            return f"{path} is not guarded yet"
        return ""

    wait(complaint, WAIT_S)
    return rest


@pytest.fixture(scope="module")
def controller_file(admin: RestClient, kubeconfig: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("controller") / "conf"
    return account_on(admin, "dra-driver-controller", NAMESPACE, THIRD).kubeconfig(Path(kubeconfig), target)


@contextmanager
def controller(config: Path, folder: Path, **flags: str) -> Iterator[None]:
    own = {"kubeconfig": str(config), "namespace": NAMESPACE, "lease_duration": "3", "policy_status": "false"}
    with controllers(folder, {**own, "max_evictions_per_minute": "600", **flags}) as start:
        process = start(f"c-{os.urandom(2).hex()}")
        yield
        assert process.end()[0] == 0


def withdraw(rest: RestClient, node: str) -> None:
    for item in rest.list(paths.resource_slices(), {"fieldSelector": f"spec.nodeName={node}"})["items"]:
        rest.delete(paths.resource_slices(item["metadata"]["name"]))


def publish(rest: RestClient, node: str, gpus: int, tainted: int = 0) -> None:
    withdraw(rest, node)
    added = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    taint = {"key": "gpu.nvidia.com/xid", "value": "79", "effect": "NoExecute", "timeAdded": added}
    devices = [gpu(f"gpu-{number}", uuid=f"GPU-{node[-16:]}-{number}") for number in range(gpus)]
    for device in devices[:tainted]:
        device["taints"] = [taint]
    parts = [devices[start : start + 64] for start in range(0, gpus, 64)]  # the most in a slice with taints
    for number, part in enumerate(parts):
        name = f"rights-{node}" + (f"-{number}" if number else "")
        rest.create(paths.resource_slices(), resource_slice(node, *part, count=len(parts), name=name))


def run_pod(admin: RestClient, node: str, name: str, device: str) -> Obj:
    """A pod with a claim for the device, as scheduler and kubelet leave them, and what a GpuNode says of its use."""
    body = pod_on(node, "default", TENANT, name)
    body["spec"] |= {"terminationGracePeriodSeconds": 0}  # no kubelet ends it
    body["spec"]["containers"][0]["resources"] = {"limits": {"nvidia.com/gpu": "1"}}
    pod = admin.create(paths.pods(TENANT), body)
    claim = admin.create(paths.resource_claims(TENANT), special_claim(pod))
    claim["status"] = claim_status(pod, f"{node}/{DRIVER}", device)
    admin.update(f"{paths.resource_claim(TENANT, claim['metadata']['name'])}/status", claim)
    admin.merge_patch(f"{paths.pod(TENANT, name)}/status", {"status": pod_status(claim)})
    return over(claim["metadata"]["name"], claim["metadata"]["uid"], device, name, pod["metadata"]["uid"])


def over(claim: str, uid: str, device: str, pod: str, pod_uid: str) -> Obj:
    about: Obj = {"namespace": TENANT, "claim": claim, "claimUid": uid, "since": "2026-07-01T12:00:00Z"}
    use: Obj = {"gpu": device, "used": "20Gi", "granted": "12Gi", "processes": 2, "action": "Evict", "graceSeconds": 0}
    return {**about, **use, "pods": [{"name": pod, "uid": pod_uid}]}


def tell(rest: RestClient, node: str, gpus: int = GPUS, **usage: list[Obj]) -> None:
    named = [{"name": f"gpu-{number}", "uuid": f"GPU-{number}"} for number in range(gpus)]
    now, head = next(CLOCK), forbidden.gpu_node(node)
    status: Obj = {
        **{"observedAt": now, "driverName": DRIVER, "summary": {"gpus": gpus, "problems": 0}},
        "gpus": [each | {"offeredAs": [], "usedAs": "Shared", "health": "Healthy"} for each in named],
        **{"policies": [], "problems": [], "usage": {"checkedAt": now, **usage}},
    }
    try:
        rest.get(paths.gpu_nodes(node))
    except NotFoundError:
        rest.create(paths.gpu_nodes(), head)
    rest.apply(f"{paths.gpu_nodes(node)}/status", {**head, "status": status}, "test")


def invented() -> dict[str, list[Obj]]:
    grants = [over(f"x-{n}", f"uid-x-{n}", f"gpu-{n % GPUS}", f"x-{n}", f"uid-x-{n}") for n in range(ENTRIES)]
    kept = {"namespace", "claim", "claimUid", "since"}
    plain = [{key: value for key, value in each.items() if key in kept} for each in grants]
    return {"overGrant": grants, "idle": [each | {"action": "Reclaim", "afterMinutes": 1} for each in plain]}


def gone(admin: RestClient, *pods: str) -> str:
    return ", ".join(f"{pod} stays" for pod in pods if not is_leaving(admin, TENANT, pod))


def said(admin: RestClient, namespace: str, reason: str, part: str = "") -> list[str]:
    found = [item for item in admin.list(paths.events(namespace))["items"] if item["reason"] == reason]
    return [item["message"] for item in found if part in item["message"] + item["involvedObject"]["name"]]


def test_a_stolen_token_is_refused_what_is_another_nodes(admin: RestClient, thief: RestClient, say: Say) -> None:
    publish(admin, VICTIM, GPUS)
    tell(admin, VICTIM)
    wanted = [request for part in (forbidden.gpu_nodes, forbidden.slices) for request in part(WORLD)]
    requests = [request for request in wanted if "another" in request.what and "driver" not in request.what]
    assert len(requests) >= 9
    for request in requests:
        say(f"{request.what}: {refusal(thief, request)}")
    with pytest.raises(InvalidObjectError) as refused:
        tell(thief, THIEF, INVENTED)
    say(f"{INVENTED} GPUs in its own GpuNode: {refused.value}")


def test_the_usage_brake(admin: RestClient, thief: RestClient, controller_file: Path, folder: Path, say: Say) -> None:
    lies, case = invented(), run_pod(admin, VICTIM, "real", "gpu-0")
    own = [run_pod(admin, THIEF, f"own-{number}", f"gpu-{number}") for number in range(GPUS)]
    own.append(run_pod(admin, THIRD, "bystander", "gpu-0"))
    lies["overGrant"][: len(own)] = own

    def renew() -> None:
        tell(thief, THIEF, MOST_GPUS, **lies)
        tell(admin, VICTIM, overGrant=[case])
        tell(admin, THIRD)

    renew()
    with controller(controller_file, folder, **USAGE):
        wait(lambda: "" if said(admin, TENANT, "GpuEvictionAnnounced", "real") else "not announced", WAIT_S)
        renew()
        wait(lambda: gone(admin, "real"), WAIT_S)
    assert not is_leaving(admin, TENANT, "bystander")
    say(f"beside {ENTRIES} + {ENTRIES} cases of the thief: {said(admin, TENANT, 'GpuEviction', 'real')}")

    names = {node: [f"{node[7:12]}-{number}" for number in range(GPUS)] for node in (VICTIM, THIRD)}
    real = {node: [run_pod(admin, node, n, f"gpu-{i}") for i, n in enumerate(pods)] for node, pods in names.items()}

    def renew_all() -> None:
        tell(thief, THIEF, MOST_GPUS, **invented())
        for node, cases in real.items():
            tell(admin, node, overGrant=cases)

    renew_all()
    with controller(controller_file, folder, **USAGE):
        wait(lambda: "" if said(admin, NAMESPACE, "GpuEvictionBraked", "Usage evictions") else "no brake", WAIT_S)
        renew_all()
        everyone = [name for pods in names.values() for name in pods]
        holds(lambda: not any(is_leaving(admin, TENANT, name) for name in everyone))
        say(f"beside {MOST_GPUS} GPUs of the thief: {said(admin, NAMESPACE, 'GpuEvictionBraked', 'Usage')}")
        real[THIRD] = []
        renew_all()
        wait(lambda: gone(admin, *names[VICTIM]), WAIT_S)
    assert gone(admin, *names[THIRD]).count("stays") == GPUS


@pytest.mark.needs(EXTENDED, TAINTS)
def test_the_brake_of_taints(
    admin: RestClient, thief: RestClient, controller_file: Path, folder: Path, say: Say
) -> None:
    publish(thief, THIEF, INVENTED, tainted=INVENTED)
    publish(admin, VICTIM, GPUS, tainted=1)
    publish(admin, THIRD, GPUS)
    flags = {"evict_extended_resource_pods": "true", "grace": "0"}
    run_pod(admin, VICTIM, "tainted", "gpu-0")
    with controller(controller_file, folder, **flags):
        wait(lambda: gone(admin, "tainted"), WAIT_S)
    say(f"beside {INVENTED} tainted GPUs of the thief: {said(admin, TENANT, 'GpuEviction', 'tainted')}")

    publish(thief, THIEF, INVENTED)
    for node in (VICTIM, THIRD):
        publish(admin, node, GPUS, tainted=GPUS)
    run_pod(admin, VICTIM, "waits", "gpu-0")
    with controller(controller_file, folder, **flags):
        wait(lambda: "" if said(admin, NAMESPACE, "GpuEvictionBraked", "became tainted") else "no brake", WAIT_S)
        holds(lambda: not is_leaving(admin, TENANT, "waits"))
        say(f"beside {INVENTED} GPUs of the thief: {said(admin, NAMESPACE, 'GpuEvictionBraked', 'became tainted')}")
        publish(admin, THIRD, GPUS)
        wait(lambda: gone(admin, "waits"), WAIT_S)
