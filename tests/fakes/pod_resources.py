"""A kubelet's PodResources socket, with the containers that a test gives it."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc

from dra_driver.core._pb.podresources_v1 import api_pb2 as pb


class FakePodResources:
    """Serves ``answer``, which the test changes, until ``stop``."""

    def __init__(self, socket: Path) -> None:
        self.answer = pb.ListPodResourcesResponse()
        self._server = grpc.server(ThreadPoolExecutor(2))
        method = grpc.unary_unary_rpc_method_handler(
            lambda _request, _context: self.answer,
            request_deserializer=pb.ListPodResourcesRequest.FromString,
            response_serializer=pb.ListPodResourcesResponse.SerializeToString,
        )
        handler = grpc.method_handlers_generic_handler("v1.PodResourcesLister", {"List": method})
        self._server.add_generic_rpc_handlers((handler,))
        self._server.add_insecure_port(f"unix:{socket}")
        self._server.start()

    def add(self, namespace: str, pod: str, container: str, claim: str, **device: Any) -> None:
        """A container with one device of a claim; ``device`` are fields of ClaimResource."""
        found = self.answer.pod_resources.add(name=pod, namespace=namespace).containers.add(name=container)
        found.dynamic_resources.add(claim_name=claim, claim_namespace=namespace).claim_resources.add(
            driver_name="gpu.nvidia.com", **device
        )

    def stop(self) -> None:
        self._server.stop(None)
