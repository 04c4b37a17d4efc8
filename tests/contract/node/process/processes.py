"""Whole node processes as these tests see them: slices in the API server, sockets, and the HTTP endpoint."""

import http.client
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from dra_driver.kube.rest import RestClient
from tests.fakes.kubelet import DraClient, dial, register
from tests.fakes.node_process import NodeProcess
from tests.harness.claims_api import ClaimMaker, ensure_namespace
from tests.harness.servers import free_port

NODE, DRIVER = "node-a", "gpu.nvidia.com"
SLICES = "/apis/resource.k8s.io/v1/resourceslices"
EVENTS = "/api/v1/namespaces/default/events"
POOL = 2
"""Slices of a node with two H100: their counter sets, and their devices."""


def ask(port: int, path: str) -> tuple[int, str]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    try:
        connection.request("GET", path)
        response = connection.getresponse()
        return response.status, response.read().decode()
    except OSError as error:
        return 0, str(error)
    finally:
        connection.close()


def until(condition: Callable[[], object], timeout_s: float = 10.0) -> bool:
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.005)
    return True


class Node(NodeProcess):
    """A node process with an HTTP endpoint."""

    def __init__(self, folder: Path, *, environ: Mapping[str, str] | None = None, **flags: str | None) -> None:
        self.port = free_port()
        super().__init__(folder, environ=environ, **{"http_addr": f"127.0.0.1:{self.port}", **flags})

    def ready(self) -> tuple[int, str]:
        return ask(self.port, "/readyz")

    def health(self) -> tuple[int, str]:
        return ask(self.port, "/healthz")

    def metrics(self) -> str:
        return ask(self.port, "/metrics")[1]

    def register(self) -> Any:
        """Wait for the registration socket and register as a kubelet does; the PluginInfo."""
        self.wait_for(self.registration.exists)
        return register(self.registration)

    def prepare(self, claim: dict[str, str], timeout_s: float = 10.0) -> Any:
        with dial(self.dra) as channel:
            return _named(DraClient(channel).prepare, claim, timeout_s)

    def unprepare(self, claim: dict[str, str]) -> Any:
        with dial(self.dra) as channel:
            return _named(DraClient(channel).unprepare, claim, 10.0)


def _named(call: Any, claim: dict[str, str], timeout_s: float) -> Any:
    fields = {name: claim[name] for name in ("namespace", "name") if name in claim}
    return call(claim["uid"], timeout=timeout_s, **fields).claims[claim["uid"]]


def claim_maker(rest: RestClient) -> ClaimMaker:
    ensure_namespace(rest)
    return ClaimMaker(rest, node=NODE, driver=DRIVER)


def generations(rest: RestClient) -> list[tuple[str, int]]:
    return [(item["metadata"]["name"], item["spec"]["pool"]["generation"]) for item in rest.list(SLICES)["items"]]


def published(rest: RestClient) -> list[dict[str, Any]]:
    return [device for item in rest.list(SLICES)["items"] for device in item["spec"].get("devices") or ()]


def devices(rest: RestClient) -> list[str]:
    return [device["name"] for device in published(rest)]


def taints(rest: RestClient) -> dict[str, list[dict[str, str]]]:
    return {device["name"]: device["taints"] for device in published(rest) if device.get("taints")}


def events(rest: RestClient, reason: str) -> list[str]:
    items = rest.list(EVENTS)["items"]
    return [item["message"] for item in items if item["reason"] == reason and item["involvedObject"]["kind"] == "Node"]
