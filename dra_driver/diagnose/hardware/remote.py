"""Run the hardware check as a pod copied from the DaemonSet of the node process, and return its report."""

import secrets
import time
from collections.abc import Callable, Sequence
from typing import Final

from dra_driver.diagnose.hardware import storage
from dra_driver.diagnose.hardware.values import HardwareReport
from dra_driver.kube.pod_run import PodApi, PodLog, PodPlace, Say, node_container, node_pod, read_daemon_set, run_pod
from dra_driver.kube.state import Wire

NAME: Final = "hardware-check"
DEADLINE_S: Final = 900
"""The kubelet ends the pod after this: 10 min for the checks, the rest for pulling the image and restoring."""
GRACE_S: Final = 90
"""Time between SIGTERM and SIGKILL, to restore a GPU whose MIG mode was changed."""
_SCRATCH: Final = "hardware-check-scratch"
"""A writable directory for the checks, even if the container's root is read-only."""
_SCRATCH_SIZE: Final = "256Mi"
"""Size for two copies of NVML's library, and the output of libraries and programs of the driver."""


def pod_for(
    daemon_set: Wire, node: str, arguments: Sequence[str], *, suffix: str, total_s: float | None = None
) -> Wire:
    """The pod for ``node``; its name ends with ``suffix``. ``total_s`` is the time of ``--for``.

    Raises ConfigurationError if the DaemonSet does not run the node process.
    """
    made = node_container(daemon_set, NAME, [NAME, "--print-report", *arguments])
    made["resources"] = {"requests": {"cpu": "10m", "memory": "128Mi"}, "limits": {"memory": "1Gi"}}
    made["volumeMounts"] = [*made.get("volumeMounts", ()), {"name": _SCRATCH, "mountPath": "/tmp"}]  # noqa: S108
    of_template = daemon_set["spec"]["template"]["spec"].get("volumes", ())
    volumes = [*of_template, {"name": _SCRATCH, "emptyDir": {"sizeLimit": _SCRATCH_SIZE}}]
    deadline_s = DEADLINE_S + int(total_s or 0)
    return node_pod(daemon_set, node, made, volumes, suffix=suffix, deadline_s=deadline_s, grace_s=GRACE_S)


LOG: Final = PodLog(report=storage.unpack, lines=storage.without_report)


def run_on_node(
    api: PodApi,
    place: PodPlace,
    arguments: Sequence[str],
    said: Say,
    *,
    total_s: float | None = None,
    sleep: Callable[[float], None] = time.sleep,
    clock: Callable[[], float] = time.monotonic,
) -> HardwareReport:
    """See `run_pod`. ``arguments`` are flags of ``dra-driver hardware-check``.

    Raises ConfigurationError (no such node or DaemonSet), KubernetesApiError, and PodFailedError.
    """
    suffix = secrets.token_hex(4)
    body = pod_for(read_daemon_set(api, place), place.node, arguments, suffix=suffix, total_s=total_s)
    return run_pod(api, body, place, LOG, said, sleep=sleep, clock=clock)
