"""A kubelet's side of the plugin protocol, small enough to misbehave on request, and its PodResources socket."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

import grpc

from dra_driver.core._pb.dra_v1 import api_pb2 as v1
from dra_driver.core._pb.dra_v1beta1 import api_pb2 as v1beta1
from dra_driver.core._pb.health_v1 import api_pb2 as health_v1
from dra_driver.core._pb.pluginregistration import api_pb2 as registration
from dra_driver.core._pb.podresources_v1 import api_pb2 as pb

TIMEOUT_S = 10.0


@contextmanager
def dial(socket: Path) -> Iterator[grpc.Channel]:
    """A connection as the kubelet makes it: its ``:authority`` is the percent-encoded path."""
    authority = quote(str(socket), safe="")
    # A connection of its own: by default a new channel to the same path may get the one of a channel that was closed.
    options = [("grpc.default_authority", authority), ("grpc.use_local_subchannel_pool", 1)]
    with grpc.insecure_channel(f"unix://{socket}", options=options) as channel:
        yield channel


def method(channel: grpc.Channel, path: str, response: Any, *, stream: bool = False) -> Any:
    make = channel.unary_stream if stream else channel.unary_unary
    return make(path, request_serializer=lambda m: m.SerializeToString(), response_deserializer=response.FromString)


def get_info(channel: grpc.Channel) -> Any:
    call = method(channel, "/pluginregistration.Registration/GetInfo", registration.PluginInfo)
    return call(registration.InfoRequest(), timeout=TIMEOUT_S)


def notify(channel: grpc.Channel, *, registered: bool, error: str = "") -> Any:
    path = "/pluginregistration.Registration/NotifyRegistrationStatus"
    call = method(channel, path, registration.RegistrationStatusResponse)
    return call(registration.RegistrationStatus(plugin_registered=registered, error=error), timeout=TIMEOUT_S)


def register(socket: Path) -> Any:
    with dial(socket) as channel:
        info = get_info(channel)
        notify(channel, registered=True)
    return info


class DraClient:
    def __init__(self, channel: grpc.Channel, messages: Any = v1) -> None:
        service = f"/{messages.DESCRIPTOR.services_by_name['DRAPlugin'].full_name}"
        self._messages = messages
        self.prepare_method = method(channel, f"{service}/NodePrepareResources", messages.NodePrepareResourcesResponse)
        self.unprepare_method = method(
            channel, f"{service}/NodeUnprepareResources", messages.NodeUnprepareResourcesResponse
        )

    def prepare(self, *uids: str, timeout: float = TIMEOUT_S, **fields: Any) -> Any:
        request = self._messages.NodePrepareResourcesRequest(claims=[self.claim(uid, **fields) for uid in uids])
        return self.prepare_method(request, timeout=timeout)

    def unprepare(self, *uids: str, timeout: float = TIMEOUT_S, **fields: Any) -> Any:
        request = self._messages.NodeUnprepareResourcesRequest(claims=[self.claim(uid, **fields) for uid in uids])
        return self.unprepare_method(request, timeout=timeout)

    def claim(self, uid: str, namespace: str = "default", name: str = "claim") -> Any:
        return self._messages.Claim(namespace=namespace, uid=uid, name=name)


def watch_health(channel: grpc.Channel, package: str) -> Any:
    """Opens the health stream of ``v1`` or ``v1alpha1``; no timeout, as the kubelet."""
    path = f"/{package}.DRAResourceHealth/NodeWatchResources"
    call = method(channel, path, health_v1.NodeWatchResourcesResponse, stream=True)
    return call(health_v1.NodeWatchResourcesRequest())


class FakePodResources:
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
        found = self.answer.pod_resources.add(name=pod, namespace=namespace).containers.add(name=container)
        found.dynamic_resources.add(claim_name=claim, claim_namespace=namespace).claim_resources.add(
            driver_name="gpu.nvidia.com", **device
        )

    def stop(self) -> None:
        self._server.stop(None)


__all__ = ["DraClient", "dial", "get_info", "method", "notify", "register", "v1", "v1beta1", "watch_health"]
