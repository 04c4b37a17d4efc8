"""The settings of the usage exporter: names, defaults and checks of the values alone."""

from dataclasses import dataclass

from dra_driver.config import common_options
from dra_driver.config.controller_settings import whole
from dra_driver.config.options import Option, setting
from dra_driver.core.telemetry.logs import LogFormat, LogLevel

NODE, USAGE, TELEMETRY = "node", "usage", "telemetry"


@dataclass(frozen=True, slots=True, kw_only=True)
class ExporterSettings:
    """Settings of ``dra-driver exporter``. Times are in seconds."""

    node_name: str = setting(Option(NODE, "NODE_NAME", "NAME", "name of this node"))
    driver_name: str = setting(
        Option(NODE, "DRIVER_NAME", "NAME", "name of this driver, the same as for kubelet-plugin"), "gpu.nvidia.com"
    )
    kubelet_plugins_dir: str = setting(
        Option(
            NODE,
            "KUBELET_PLUGINS_DIR",
            "DIR",
            "the kubelet's plugins directory; the node process writes assignments of claims below it",
            common_options.absolute,
        ),
        "/var/lib/kubelet/plugins",
    )
    pod_resources_socket: str = setting(
        Option(
            NODE,
            "POD_RESOURCES_SOCKET",
            "PATH",
            "socket on which the kubelet tells which containers have which devices",
            common_options.absolute,
        ),
        "/var/lib/kubelet/pod-resources/kubelet.sock",
    )
    proc_dir: str = setting(
        Option(NODE, "PROC_DIR", "DIR", "the host's /proc as this process sees it", common_options.absolute), "/proc"
    )
    log_dir: str = setting(
        Option(
            NODE,
            "LOG_DIR",
            "DIR",
            "folder with the kubelet's links to logs, whose names tell which container an id is; no log is read",
            common_options.absolute,
        ),
        "/var/log/containers",
    )
    host_root: str = setting(
        Option(
            NODE,
            "HOST_ROOT",
            "DIR",
            "the host's / as this process sees it; the NVIDIA driver is searched below it",
            common_options.absolute,
        ),
        "/",
    )
    driver_root: str | None = setting(
        Option(
            NODE,
            "DRIVER_ROOT",
            "DIR",
            "root of the NVIDIA driver's installation as this process sees it; default: searched below --host-root",
            common_options.absolute,
        ),
        None,
    )
    simulate: str | None = setting(
        Option(NODE, "SIMULATE", "SPEC", "simulated GPUs in place of the node's, as for kubelet-plugin"), None
    )
    interval: int = setting(
        Option(
            USAGE,
            "INTERVAL",
            "SECONDS",
            "time between two looks, 1 to 30: after a longer gap the watchdog counts 30 seconds",
            whole(1, 30),
        ),
        10,
    )
    window: int = setting(
        Option(USAGE, "WINDOW", "SECONDS", "time over which peaks and energy are told, 60 to 86400", whole(60, 86400)),
        3600,
    )
    keep_ended: int = setting(
        Option(
            USAGE,
            "KEEP_ENDED",
            "SECONDS",
            "how long the series of a claim or container stay that has ended, 0 to 3600",
            whole(0, 3600),
        ),
        300,
    )
    dcgm_names: bool = setting(
        Option(
            USAGE,
            "DCGM_NAMES",
            "true|false",
            "also serve values of whole GPUs under dcgm-exporter's names; not beside dcgm-exporter, where sums "
            "would be twice as large",
            common_options.switch,
        ),
        False,
    )
    http_addr: str = setting(
        Option(
            TELEMETRY,
            "HTTP_ADDR",
            "HOST:PORT",
            "address that serves /metrics, /usage, /healthz and /readyz",
            common_options.http_addr,
        ),
        ":8082",
    )
    log_format: LogFormat = setting(common_options.log_format(TELEMETRY), "text")
    log_level: LogLevel = setting(common_options.log_level(TELEMETRY), "info")
