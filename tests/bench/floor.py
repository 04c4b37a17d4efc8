"""Measure the floor of a prepare on this machine, from Python: GET of a claim that was just created, by http.client;
one durable write of 4 KiB by fdatasync; one gRPC call with both ends in this process."""

import http.client
import os
import time
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import grpc

from dra_driver.kube.access import Access
from dra_driver.kube.rest import RestClient
from tests.harness.claims_api import CLAIMS

_PAGE = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class Floor:
    get: float
    fdatasync: float
    grpc: float

    @property
    def total(self) -> float:
        return self.get + self.fdatasync + self.grpc

    def figures(self) -> dict[str, float]:
        return {**asdict(self), "total": self.total}

    def __str__(self) -> str:
        return (
            f"GET of a claim {self.get:.2f} + fdatasync of 4 KiB {self.fdatasync:.2f} "
            f"+ gRPC call {self.grpc:.2f} = {self.total:.2f} ms"
        )


def measure(rest: RestClient, access: Access, folder: Path, rounds: int) -> Floor:
    return Floor(
        get=_median(_gets(rest, access, rounds)),
        fdatasync=_median(_syncs(folder / "floor-page", rounds)),
        grpc=_median(_calls(folder / "floor.sock", rounds)),
    )


def _median(figures: Iterator[float]) -> float:
    ordered = sorted(figures)
    return ordered[len(ordered) // 2] * 1000


def _gets(rest: RestClient, access: Access, rounds: int) -> Iterator[float]:
    url = urlsplit(access.server)
    connection: http.client.HTTPConnection
    if url.scheme == "https":
        connection = http.client.HTTPSConnection(url.hostname or "", url.port or 443, context=access.tls())
    else:
        connection = http.client.HTTPConnection(url.hostname or "", url.port or 443)
    headers = {"Authorization": f"Bearer {access.token}"} if access.token else {}
    request = {"name": "gpu", "exactly": {"deviceClassName": "gpu.nvidia.com"}}
    for _ in range(rounds):
        name = f"floor-{uuid.uuid4().hex[:12]}"
        metadata, spec = {"name": name}, {"devices": {"requests": [request]}}
        kind = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim"}
        rest.create(CLAIMS, {**kind, "metadata": metadata, "spec": spec})
        begin = time.perf_counter()
        connection.request("GET", f"{CLAIMS}/{name}", headers=headers)
        connection.getresponse().read()
        yield time.perf_counter() - begin
        rest.delete(f"{CLAIMS}/{name}")
    connection.close()


def _syncs(path: Path, rounds: int) -> Iterator[float]:
    descriptor = os.open(path, os.O_CREAT | os.O_RDWR, 0o600)
    try:
        for number in range(rounds):
            begin = time.perf_counter()
            os.pwrite(descriptor, b"x" * _PAGE, number % 64 * _PAGE)
            os.fdatasync(descriptor)
            yield time.perf_counter() - begin
    finally:
        os.close(descriptor)
        path.unlink()


def _calls(socket: Path, rounds: int) -> Iterator[float]:
    server = grpc.server(ThreadPoolExecutor(2))
    echo: Any = grpc.unary_unary_rpc_method_handler(lambda request, _: request)
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("bench.Floor", {"Call": echo}),))
    server.add_insecure_port(f"unix://{socket}")
    server.start()
    with grpc.insecure_channel(f"unix://{socket}") as channel:
        call: Any = channel.unary_unary("/bench.Floor/Call")
        call(b"x" * 200, wait_for_ready=True)
        for _ in range(rounds):
            begin = time.perf_counter()
            call(b"x" * 200)
            yield time.perf_counter() - begin
    server.stop(0).wait()
