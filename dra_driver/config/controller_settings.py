"""Define the settings of the controller process, apart from the node process's, whose memory they would take."""

import re
from dataclasses import dataclass

from dra_driver.config.options import format_of_logs, http_endpoint, level_of_logs, setting, subdomain, switch, whole
from dra_driver.core.telemetry.logs import LogFormat, LogLevel

CLUSTER, EVICTION, TELEMETRY = "cluster", "eviction of pods with extended resources", "telemetry"
POLICIES, CAPACITY = "policies", "capacity"

_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")


def _namespace(text: str) -> str:
    if not _LABEL.fullmatch(text):
        raise ValueError("expected the name of a namespace: at most 63 lower-case letters, digits and dashes")
    return text


def _identity(text: str) -> str:
    if not 0 < len(text) <= 128 or not text.isprintable():
        raise ValueError("expected the name of this process' pod: 1 to 128 characters")
    return text


def _pause(text: str) -> int:
    return 0 if text == "0" else whole(60, 86400)(text)


@dataclass(frozen=True, slots=True, kw_only=True)
class ControllerSettings:
    """Settings of ``dra-driver controller``. Times are in seconds."""

    kubeconfig: str | None = setting(
        CLUSTER, "FILE", "kubeconfig of the API server; default in a pod: its service account", None
    )
    driver_name: str = setting(
        CLUSTER,
        "NAME",
        "name of this driver, the same as for kubelet-plugin",
        "gpu.nvidia.com",
        parse=subdomain(63, "gpu.nvidia.com"),
    )
    namespace: str = setting(
        CLUSTER,
        "NAME",
        "namespace of the Lease that decides which replica acts",
        "dra-driver",
        parse=_namespace,
        env="POD_NAMESPACE",
    )
    pod_name: str | None = setting(
        CLUSTER, "NAME", "name of this replica in the Lease; default: the host's name", None, parse=_identity
    )
    lease_duration: int = setting(
        CLUSTER,
        "SECONDS",
        "how long a replica that does not renew the Lease keeps it; 3 to 120. It stops acting after two thirds",
        15,
        parse=whole(3, 120),
    )
    evict_extended_resource_pods: bool = switch(
        EVICTION, "evict pods that request an extended resource from devices with a NoExecute taint", False
    )
    evict_over_grant: bool = switch(
        EVICTION, "evict pods of claims over their grant, where the GpuPolicy says so and after its grace period", False
    )
    reclaim_idle: bool = switch(
        EVICTION, "evict pods of idle claims if the GpuPolicy requests it; only pods with a controller", False
    )
    grace: int = setting(
        EVICTION,
        "SECONDS",
        "how long after the taint was added a pod is evicted, 0 to 86400",
        60,
        parse=whole(0, 86400),
        env="EVICTION_GRACE",
    )
    max_evictions_per_minute: int = setting(
        EVICTION,
        "COUNT",
        "the most pods evicted in a minute, 1 to 600; they are spread evenly over it",
        10,
        parse=whole(1, 600),
    )
    brake_percent: int = setting(
        EVICTION,
        "PERCENT",
        "evict no pod while more than this part of all GPUs, and at least two, became tainted within --brake-window"
        "; 1 to 100, 100 switches the brake off",
        20,
        parse=whole(1, 100),
    )
    brake_window: int = setting(
        EVICTION, "SECONDS", "the time for --brake-percent, 60 to 86400", 600, parse=whole(60, 86400)
    )
    policy_status: bool = switch(
        POLICIES, "write the status of GpuPolicy objects from what nodes say in their GpuNodes", True
    )
    capacity_interval: int = setting(
        CAPACITY,
        "SECONDS",
        "seconds between surveys of free, fragmented and stranded capacity for the metrics, 60 to 86400; 0: none",
        0,
        parse=_pause,
    )
    capacity_memory: int = setting(
        CAPACITY, "MIB", "memory that the program of a survey may use, 64 to 65536", 160, parse=whole(64, 65536)
    )
    http_addr: str = http_endpoint(TELEMETRY)
    log_format: LogFormat = format_of_logs(TELEMETRY)
    log_level: LogLevel = level_of_logs(TELEMETRY)
