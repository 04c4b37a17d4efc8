"""Run the hardware check as a pod on a node, follow its lines, and bring the report back."""

import secrets
import time
from collections.abc import Callable
from typing import Final

from msgspec import Struct

from dra_driver.diagnose.hardware import storage
from dra_driver.diagnose.hardware.node_pod import pod_for
from dra_driver.diagnose.hardware.values import HardwareReport
from dra_driver.kube.pod_run import PodApi, PodLog, PodPlace, Say, read_daemon_set, run_pod

COMMAND: Final = "kubectl dra hardware-check"
LOG: Final = PodLog(report=storage.unpack, lines=storage.without_report)


class NodeCheck(Struct, frozen=True, kw_only=True):
    """What to run where. ``arguments`` are flags of ``dra-driver hardware-check``."""

    node: str
    namespace: str
    daemon_set: str
    arguments: tuple[str, ...] = ()
    keep: bool = False


def run_on_node(
    api: PodApi,
    check: NodeCheck,
    said: Say,
    *,
    sleep: Callable[[float], None] = time.sleep,
    clock: Callable[[], float] = time.monotonic,
) -> HardwareReport:
    """Create the pod, pass on its lines as they come, and return its report. The pod is deleted in any case, unless it
    is to be kept.

    Raises ConfigurationError (no such node or DaemonSet), KubernetesApiError, and PodFailedError.
    """
    place = PodPlace(
        command=COMMAND,
        node=check.node,
        namespace=check.namespace,
        daemon_set=check.daemon_set,
        keep=check.keep,
    )
    body = pod_for(read_daemon_set(api, place), check.node, check.arguments, suffix=secrets.token_hex(4))
    return run_pod(api, body, place, LOG, said, sleep=sleep, clock=clock)
