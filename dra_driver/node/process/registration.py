"""The registration service: describes this driver to the kubelet and remembers the kubelet's last answer.

The kubelet finds the registration socket in its directory, dials it, calls ``GetInfo`` and reports with
``NotifyRegistrationStatus`` (kubernetes/kubernetes pkg/kubelet/pluginmanager). After a refusal it asks again by itself,
with growing pauses of up to two minutes. So nothing is retried here: a refusal is logged, counted and a reason for not
being ready.
"""

import logging
import threading
from pathlib import Path

import grpc

from dra_driver.core._pb.pluginregistration import api_pb2 as pb
from dra_driver.core.telemetry import metrics
from dra_driver.node.process.server import Method, generic_handler

log = logging.getLogger(__name__)

# The kubelet uses the first entry that it knows, so the newest comes first.
SUPPORTED_VERSIONS = ("v1.DRAPlugin", "v1beta1.DRAPlugin", "v1.DRAResourceHealth", "v1alpha1.DRAResourceHealth")
_NOT_YET = (
    "the kubelet has not registered this driver yet: check that it runs and reads the directory of"
    " --kubelet-registrar-dir"
)


class Registration:
    """The registration service of one driver. Thread-safe."""

    def __init__(self, *, driver: str, endpoint: Path) -> None:
        """``endpoint`` is the DRA socket under the path that the kubelet sees."""
        self._driver = driver
        self._endpoint = endpoint
        self._lock = threading.Lock()  # guards _problem
        self._problem: str | None = _NOT_YET

    def handler(self) -> grpc.GenericRpcHandler:
        methods: dict[str, Method] = {"GetInfo": self.get_info, "NotifyRegistrationStatus": self.notify}
        return generic_handler(pb.DESCRIPTOR.services_by_name["Registration"], methods)

    def get_info(self, _request: pb.InfoRequest, _context: grpc.ServicerContext) -> pb.PluginInfo:
        """The driver's name, the DRA socket and the supported services."""
        return pb.PluginInfo(
            type="DRAPlugin",
            name=self._driver,
            endpoint=str(self._endpoint),
            supported_versions=SUPPORTED_VERSIONS,
        )

    def notify(self, request: pb.RegistrationStatus, _context: grpc.ServicerContext) -> pb.RegistrationStatusResponse:
        """Remembers whether the kubelet registered this driver."""
        if request.plugin_registered:
            self._answered(None)
            log.info("registered with the kubelet", extra={"driver": self._driver, "endpoint": self._endpoint})
        else:
            reason = request.error or "it gave no reason"
            self._answered(f"the kubelet refused to register driver {self._driver}: {reason}")
            log.error("the kubelet refused the registration", extra={"driver": self._driver, "reason": reason})
        metrics.registrations_total.labels("registered" if request.plugin_registered else "refused").inc()
        return pb.RegistrationStatusResponse()

    def forget(self) -> None:
        """Back to not registered: the socket was created again, and the kubelet will ask again."""
        self._answered(_NOT_YET)

    @property
    def problem(self) -> str | None:
        """Why this driver is not registered with the kubelet; None while it is."""
        with self._lock:
            return self._problem

    def _answered(self, problem: str | None) -> None:
        with self._lock:
            self._problem = problem
        metrics.registered.set(problem is None)
