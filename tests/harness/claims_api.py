"""Allocated claims for measuring, created in the state in which a scheduler leaves them, and the kubelet's timed
calls."""

import time
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc

from dra_driver.kube.rest import RestClient
from tests.fakes.kubelet import DraClient, dial, v1

NAMESPACE = "dra-bench"
CLAIMS = f"/apis/resource.k8s.io/v1/namespaces/{NAMESPACE}/resourceclaims"
SLICES = "/apis/resource.k8s.io/v1/resourceslices"
ADMIN_LABEL = "resource.kubernetes.io/admin-access"


class ClaimMaker:
    def __init__(self, rest: RestClient, *, node: str, driver: str) -> None:
        self._rest = rest
        self._node = node
        self._driver = driver
        self.gpus = self._full_gpus()

    def _full_gpus(self) -> list[tuple[str, str]]:
        listed = self._rest.get(
            SLICES, query={"fieldSelector": f"spec.nodeName={self._node},spec.driver={self._driver}"}
        )
        return [
            (item["spec"]["pool"]["name"], device["name"])
            for item in listed["items"]
            for device in item["spec"].get("devices") or ()
            if device["attributes"]["type"] == {"string": "gpu"}
        ]

    def make(self, index: int, *, admin: bool = False) -> dict[str, str]:
        """One claim for GPU number ``index`` (modulo their number); returns namespace, name and uid."""
        pool, device = self.gpus[index % len(self.gpus)]
        exactly: dict[str, Any] = {"deviceClassName": "gpu.nvidia.com"} | ({"adminAccess": True} if admin else {})
        claim = self._rest.create(
            CLAIMS,
            {
                "apiVersion": "resource.k8s.io/v1",
                "kind": "ResourceClaim",
                "metadata": {"name": f"bench-{uuid.uuid4().hex[:12]}"},
                "spec": {"devices": {"requests": [{"name": "gpu", "exactly": exactly}]}},
            },
        )
        result = {"request": "gpu", "driver": self._driver, "pool": pool, "device": device}
        claim["status"] = self._status(result | ({"adminAccess": True} if admin else {}))
        name = claim["metadata"]["name"]
        self._rest.update(f"{CLAIMS}/{name}/status", claim)
        return {"namespace": NAMESPACE, "name": name, "uid": claim["metadata"]["uid"]}

    def _status(self, result: dict[str, Any]) -> dict[str, Any]:
        here = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": [self._node]}]}
        return {
            "allocation": {"devices": {"results": [result]}, "nodeSelector": {"nodeSelectorTerms": [here]}},
            # Not a pod: the controller of a cluster takes a claim back from pods that do not exist.
            "reservedFor": [
                {"apiGroup": "bench.example.com", "resource": "rounds", "name": "bench", "uid": str(uuid.uuid4())}
            ],
        }

    def drop(self, claim: dict[str, str]) -> None:
        path = f"{CLAIMS}/{claim['name']}"
        current = self._rest.get(path)
        current["status"] = {}
        self._rest.update(f"{path}/status", current)
        self._rest.delete(path)


def ensure_namespace(rest: RestClient) -> None:
    """Create the namespace with the admin-access label, for claims that overlap; wait a minute for one being
    deleted."""
    deadline = time.monotonic() + 60.0
    while found := [item for item in rest.get("/api/v1/namespaces")["items"] if item["metadata"]["name"] == NAMESPACE]:
        if "deletionTimestamp" not in found[0]["metadata"]:
            return
        assert time.monotonic() < deadline, f"namespace {NAMESPACE} is still being deleted"
        time.sleep(0.2)
    metadata = {"name": NAMESPACE, "labels": {ADMIN_LABEL: "true"}}
    rest.create("/api/v1/namespaces", {"apiVersion": "v1", "kind": "Namespace", "metadata": metadata})


CALL_TIMEOUT_S = 45.0


class TimedKubelet:
    """Each call has any number of claims, and returns its seconds. An error of a claim ends the program."""

    def __init__(self, channel: grpc.Channel) -> None:
        self._client = DraClient(channel)

    def prepare(self, *claims: Mapping[str, str]) -> float:
        return _timed(self._client.prepare_method, v1.NodePrepareResourcesRequest(claims=_messages(claims)))

    def unprepare(self, *claims: Mapping[str, str]) -> float:
        return _timed(self._client.unprepare_method, v1.NodeUnprepareResourcesRequest(claims=_messages(claims)))


def _messages(claims: "tuple[Mapping[str, str], ...]") -> list[Any]:
    return [v1.Claim(**{name: claim[name] for name in ("namespace", "name", "uid")}) for claim in claims]


def _timed(call: Any, request: Any) -> float:
    begin = time.perf_counter()
    response = call(request, timeout=CALL_TIMEOUT_S)
    elapsed = time.perf_counter() - begin
    assert len(response.claims) == len(request.claims)
    if errors := [answer.error for answer in response.claims.values() if answer.error]:
        raise SystemExit(f"the driver answered: {errors[0]}")
    return elapsed


@contextmanager
def timed_kubelet(socket: Path) -> Iterator[TimedKubelet]:
    with dial(socket) as channel:
        grpc.channel_ready_future(channel).result(timeout=20)
        yield TimedKubelet(channel)


@contextmanager
def held(maker: ClaimMaker, kubelet: TimedKubelet, count: int) -> Iterator[None]:
    """Keep ``count`` claims prepared while the body runs; they have admin access, so that they may overlap."""
    kept = [maker.make(index, admin=True) for index in range(count)]
    for claim in kept:
        kubelet.prepare(claim)
    yield
    for claim in kept:
        kubelet.unprepare(claim)
        maker.drop(claim)


def round_times_ms(
    maker: ClaimMaker, kubelet: TimedKubelet, rounds: int, *, warm_up: int, batch: int = 1
) -> dict[str, list[float]]:
    """Milliseconds of each round's calls, after ``warm_up`` rounds; ``batch`` is the number of claims in one call."""
    times: dict[str, list[float]] = {"prepare": [], "again": [], "unprepare": []}
    for number in range(rounds + warm_up):
        claims = [maker.make(position if batch > 1 else number) for position in range(batch)]
        found = (kubelet.prepare(*claims), kubelet.prepare(*claims), kubelet.unprepare(*claims))
        if number >= warm_up:
            for figures, elapsed in zip(times.values(), found, strict=True):
                figures.append(elapsed * 1000)
        for claim in claims:
            maker.drop(claim)
    return times
