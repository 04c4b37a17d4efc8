"""The settings of the controller process: names, defaults and checks of the values alone.

Apart from those of the node process, whose memory they would take.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass

from dra_driver.config import common_options
from dra_driver.config.options import Option, setting
from dra_driver.core.telemetry.logs import LogFormat, LogLevel

CLUSTER, EVICTION, TELEMETRY = "cluster", "eviction of pods with extended resources", "telemetry"
POLICIES, CAPACITY = "policies", "capacity"

_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
_SUBDOMAIN = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")


def _driver(text: str) -> str:
    if len(text) > 63 or not _SUBDOMAIN.fullmatch(text):
        raise ValueError("expected a DNS subdomain of at most 63 lower-case characters, such as gpu.nvidia.com")
    return text


def _namespace(text: str) -> str:
    if not _LABEL.fullmatch(text):
        raise ValueError("expected the name of a namespace: at most 63 lower-case letters, digits and dashes")
    return text


def _identity(text: str) -> str:
    if not 0 < len(text) <= 128 or not text.isprintable():
        raise ValueError("expected the name of this process' pod: 1 to 128 characters")
    return text


def whole(least: int, most: int) -> Callable[[str], int]:
    def parse(text: str) -> int:
        number = int(text) if text.isascii() and text.isdigit() and len(text) <= 8 else -1
        if not least <= number <= most:
            raise ValueError(f"expected a whole number from {least} to {most}")
        return number

    return parse


def _pause(text: str) -> int:
    return 0 if text == "0" else whole(60, 86400)(text)


@dataclass(frozen=True, slots=True, kw_only=True)
class ControllerSettings:
    """Settings of ``dra-driver controller``. Times are in seconds."""

    kubeconfig: str | None = setting(
        Option(CLUSTER, "KUBECONFIG", "FILE", "kubeconfig of the API server; default in a pod: its service account"),
        None,
    )
    driver_name: str = setting(
        Option(CLUSTER, "DRIVER_NAME", "NAME", "name of this driver, the same as for kubelet-plugin", _driver),
        "gpu.nvidia.com",
    )
    namespace: str = setting(
        Option(CLUSTER, "POD_NAMESPACE", "NAME", "namespace of the Lease that decides which replica acts", _namespace),
        "dra-driver",
    )
    pod_name: str | None = setting(
        Option(CLUSTER, "POD_NAME", "NAME", "name of this replica in the Lease; default: the host's name", _identity),
        None,
    )
    lease_duration: int = setting(
        Option(
            CLUSTER,
            "LEASE_DURATION",
            "SECONDS",
            "how long a replica that does not renew the Lease keeps it; 3 to 120. It stops acting after two thirds",
            whole(3, 120),
        ),
        15,
    )
    evict_extended_resource_pods: bool = setting(
        Option(
            EVICTION,
            "EVICT_EXTENDED_RESOURCE_PODS",
            "true|false",
            "evict pods that came by an extended resource when a device of theirs has a NoExecute taint",
            common_options.switch,
        ),
        False,
    )
    evict_over_grant: bool = setting(
        Option(
            EVICTION,
            "EVICT_OVER_GRANT",
            "true|false",
            "evict pods of claims over their grant, where the GpuPolicy says so and after its grace time",
            common_options.switch,
        ),
        False,
    )
    reclaim_idle: bool = setting(
        Option(
            EVICTION,
            "RECLAIM_IDLE",
            "true|false",
            "evict pods of idle claims, where the GpuPolicy says so; never a pod without a controller",
            common_options.switch,
        ),
        False,
    )
    grace: int = setting(
        Option(
            EVICTION,
            "EVICTION_GRACE",
            "SECONDS",
            "how long after the taint was added a pod is evicted, 0 to 86400",
            whole(0, 86400),
        ),
        60,
    )
    max_evictions_per_minute: int = setting(
        Option(
            EVICTION,
            "MAX_EVICTIONS_PER_MINUTE",
            "COUNT",
            "the most pods evicted in a minute, 1 to 600; they are spread evenly over it",
            whole(1, 600),
        ),
        10,
    )
    brake_percent: int = setting(
        Option(
            EVICTION,
            "BRAKE_PERCENT",
            "PERCENT",
            "evict no pod while more than this part of all GPUs, and at least two, became tainted within --brake-window"
            "; 1 to 100, 100 switches the brake off",
            whole(1, 100),
        ),
        20,
    )
    brake_window: int = setting(
        Option(EVICTION, "BRAKE_WINDOW", "SECONDS", "the time for --brake-percent, 60 to 86400", whole(60, 86400)),
        600,
    )
    policy_status: bool = setting(
        Option(
            POLICIES,
            "POLICY_STATUS",
            "true|false",
            "write the status of GpuPolicy objects from what nodes say in their GpuNodes",
            common_options.switch,
        ),
        True,
    )
    capacity_interval: int = setting(
        Option(
            CAPACITY,
            "CAPACITY_INTERVAL",
            "SECONDS",
            "survey what is free, fragmented and stranded that often for the metrics, 60 to 86400; 0: never",
            _pause,
        ),
        0,
    )
    capacity_memory: int = setting(
        Option(
            CAPACITY,
            "CAPACITY_MEMORY",
            "MIB",
            "memory that the program of a survey may use, 64 to 65536",
            whole(64, 65536),
        ),
        160,
    )
    http_addr: str = setting(common_options.http_endpoint(TELEMETRY), "")
    log_format: LogFormat = setting(common_options.log_format(TELEMETRY), "text")
    log_level: LogLevel = setting(common_options.log_level(TELEMETRY), "info")
