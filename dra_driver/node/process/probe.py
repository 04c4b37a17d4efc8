"""The liveness probe: calls this process' own sockets as the kubelet would.

``GetInfo`` goes through a real connection, gRPC's event loop and a worker thread. The DRA socket is only connected to:
its workers may be busy for as long as an API server is slow, and a restart would not make the API server faster.
"""

import time
from collections.abc import Callable
from typing import Final

import grpc

from dra_driver.core._pb.pluginregistration import api_pb2 as pb
from dra_driver.node.process.sockets import SocketPaths, is_served

TIMEOUT_S = 2.0
GOOD_S: Final = 25.0
"""How long a good answer counts. The kubelet asks every 10 s, and the connection of a check wakes all threads of gRPC
for a while: checking each time was a third of what a node process at rest does."""


class Probe:
    """Remembers a good answer for `GOOD_S`; after a bad one each call checks. From any thread."""

    def __init__(self, check: Callable[[], list[str]], clock: Callable[[], float] = time.monotonic) -> None:
        self._check, self._clock = check, clock
        self._good_until = float("-inf")  # replaced as a whole

    def problems(self) -> list[str]:
        """See `problems`."""
        now = self._clock()
        if now < self._good_until:
            return []
        found = self._check()
        self._good_until = float("-inf") if found else now + GOOD_S
        return found


def problems(paths: SocketPaths) -> list[str]:
    """Reasons why the kubelet would get no answer; empty when it would get one. Takes at most about 3 s."""
    found = []
    if not is_served(paths.dra):
        found.append(f"nothing accepts connections on {paths.dra}")
    try:
        get_info(paths)
    except grpc.RpcError as error:
        found.append(f"no answer to GetInfo on {paths.registration}: {error}")
    return found


def get_info(paths: SocketPaths) -> pb.PluginInfo:
    """One ``GetInfo`` on a connection of its own; raises grpc.RpcError."""
    # The default subchannel pool is process-wide; with a local one nothing outlives the probe.
    with grpc.insecure_channel(
        f"unix:{paths.registration}", options=[("grpc.use_local_subchannel_pool", 1)]
    ) as channel:
        call = channel.unary_unary(
            "/pluginregistration.Registration/GetInfo",
            request_serializer=pb.InfoRequest.SerializeToString,
            response_deserializer=pb.PluginInfo.FromString,
        )
        info: pb.PluginInfo = call(pb.InfoRequest(), timeout=TIMEOUT_S)
        return info
