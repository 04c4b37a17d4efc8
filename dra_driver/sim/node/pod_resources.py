"""The simulated kubelet's PodResources API v1: List returns running pods, their containers, and per claim the devices
of drivers, without claims of extended resources (kubernetes/kubernetes pkg/kubelet/apis/podresources/server_v1.go,
pkg/kubelet/cm/dra/manager.go GetContainerClaimInfos)."""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

import grpc

from dra_driver.core._pb.podresources_v1 import api_pb2 as pb
from dra_driver.sim.apiserver.jsonvalue import Obj, dig, entries
from dra_driver.sim.node.kubelet_state import DeviceResponse, KubeletState
from dra_driver.sim.objects import claim_names, key

STOP_S: Final = 1.0


class PodResourcesServer:
    """Serves ``answer`` at ``socket``. ``start`` once, ``stop`` once."""

    def __init__(self, socket: Path, answer: Callable[[], Any]) -> None:
        self._server = grpc.server(ThreadPoolExecutor(2, thread_name_prefix="pod-resources"))
        method = grpc.unary_unary_rpc_method_handler(
            lambda _request, _context: answer(),
            request_deserializer=pb.ListPodResourcesRequest.FromString,
            response_serializer=pb.ListPodResourcesResponse.SerializeToString,
        )
        handler = grpc.method_handlers_generic_handler("v1.PodResourcesLister", {"List": method})
        self._server.add_generic_rpc_handlers((handler,))
        socket.unlink(missing_ok=True)
        self._server.add_insecure_port(f"unix:{socket}")

    def start(self) -> None:
        self._server.start()

    def stop(self) -> None:
        self._server.stop(STOP_S).wait(STOP_S)


def answer_of(pods: Sequence[Obj], state: KubeletState) -> Any:
    """Return the kubelet's answer for these pods of its node. No I/O."""
    answer = pb.ListPodResourcesResponse()
    for pod in pods:
        if dig(pod, "status", "phase") != "Running":
            continue
        namespace, name = key(pod)
        reported = answer.pod_resources.add(name=name, namespace=namespace)
        claims = {local: claim for local, claim in claim_names(pod) if claim}
        for container in entries(pod, "spec", "containers"):
            shown = reported.containers.add(name=container["name"])
            for local, devices in _of_container(container, claims, namespace, state):
                claim = shown.dynamic_resources.add(claim_name=claims[local], claim_namespace=namespace)
                for each in devices:
                    claim.claim_resources.add(
                        driver_name=each.driver,
                        pool_name=each.pool,
                        device_name=each.device,
                        share_id=each.share_id,
                    )
    return answer


def _of_container(
    container: Obj, claims: dict[str, str], namespace: str, state: KubeletState
) -> Iterator[tuple[str, list[DeviceResponse]]]:
    for reference in entries(container, "resources", "claims"):
        local, request = reference["name"], reference.get("request", "")
        if local in claims:
            devices = state.devices_of(namespace, claims[local])
            yield local, [each for each in devices if not request or request in each.requests]
