"""Define the settings of the usage exporter."""

from dataclasses import dataclass

from dra_driver.config.options import format_of_logs, http_addr, level_of_logs, path, setting, switch, whole
from dra_driver.core.telemetry.logs import LogFormat, LogLevel

NODE, USAGE, TELEMETRY = "node", "usage", "telemetry"


@dataclass(frozen=True, slots=True, kw_only=True)
class ExporterSettings:
    """Settings of ``dra-driver exporter``. Times are in seconds."""

    node_name: str = setting(NODE, "NAME", "name of this node")
    driver_name: str = setting(NODE, "NAME", "name of this driver, the same as for kubelet-plugin", "gpu.nvidia.com")
    kubelet_plugins_dir: str = path(
        NODE,
        "DIR",
        "the kubelet's plugins directory; the node process writes assignments of claims below it",
        "/var/lib/kubelet/plugins",
    )
    pod_resources_socket: str = path(
        NODE,
        "PATH",
        "kubelet socket that reports the devices of each container",
        "/var/lib/kubelet/pod-resources/kubelet.sock",
    )
    proc_dir: str = path(NODE, "DIR", "the host's /proc as this process sees it", "/proc")
    log_dir: str = path(
        NODE,
        "DIR",
        "directory with the kubelet's log links, whose names map ids to containers; logs are not read",
        "/var/log/containers",
    )
    host_root: str = path(
        NODE, "DIR", "the host's / as this process sees it; the NVIDIA driver is searched below it", "/"
    )
    driver_root: str | None = path(
        NODE,
        "DIR",
        "root of the NVIDIA driver's installation as this process sees it; default: searched below --host-root",
        None,
    )
    simulate: str | None = setting(NODE, "SPEC", "simulated GPUs in place of the node's, as for kubelet-plugin", None)
    interval: int = setting(
        USAGE,
        "SECONDS",
        "sampling interval in seconds, 1 to 30",
        10,
        parse=whole(1, 30),
    )
    window: int = setting(
        USAGE,
        "SECONDS",
        "window of the reported peaks and energy in seconds, 60 to 86400",
        3600,
        parse=whole(60, 86400),
    )
    keep_ended: int = setting(
        USAGE,
        "SECONDS",
        "how long the series of a claim or container stay that has ended, 0 to 3600",
        300,
        parse=whole(0, 3600),
    )
    dcgm_names: bool = switch(
        USAGE,
        "also serve values of whole GPUs under dcgm-exporter's names; not beside dcgm-exporter, where sums "
        "would be twice as large",
        False,
    )
    http_addr: str = setting(
        TELEMETRY, "HOST:PORT", "address that serves /metrics, /usage, /healthz and /readyz", ":8082", parse=http_addr
    )
    log_format: LogFormat = format_of_logs(TELEMETRY)
    log_level: LogLevel = level_of_logs(TELEMETRY)
