"""The settings of the node process.

Owns names, defaults and the checks that need nothing but the value. Refuses to look at the machine: whether a directory
exists and can be written is checked where it is used (``kubelet/preflight.py``).

Directories are those of the kubelet (``--root-dir``, by default ``/var/lib/kubelet``) and of the Container Device
Interface (``/etc/cdi`` and ``/var/run/cdi`` are what runtimes read). Name rules: ResourceSlice ``spec.driver`` is a DNS
subdomain of at most 63 characters, a node name one of at most 253, and a pool name of at most 253 in all.
"""

import re
from collections.abc import Mapping
from pathlib import PurePosixPath
from typing import Annotated, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

from dra_driver.config.options import Flag, Option, flags_of, load
from dra_driver.telemetry.logs import LogFormat, LogLevel

_SUBDOMAIN = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
_POD_UID = re.compile(r"[0-9A-Za-z][0-9A-Za-z-]{0,62}")
_MAX_POOL_NAME = 253

NODE, KUBELET, HARDWARE, TELEMETRY = "node and API server", "kubelet and container runtime", "hardware", "telemetry"


def _subdomain(limit: int) -> AfterValidator:
    def check(value: str) -> str:
        if len(value) > limit or not _SUBDOMAIN.fullmatch(value):
            raise ValueError(
                f"expected a DNS subdomain of at most {limit} lower-case characters, such as node-1.example"
            )
        return value

    return AfterValidator(check)


def _absolute(value: str | None) -> str | None:
    if value is not None and (not value.startswith("/") or "\0" in value):
        raise ValueError("expected an absolute path")
    return value if value is None else str(PurePosixPath(value))


def _pod_uid(value: str | None) -> str | None:
    if value is not None and not _POD_UID.fullmatch(value):
        raise ValueError("expected the pod's metadata.uid: letters, digits and dashes, at most 63")
    return value


def _http_addr(value: str) -> str:
    host, colon, port = value.rpartition(":")
    if value and not (colon and port.isascii() and port.isdigit() and int(port) < 65536 and "/" not in host):
        raise ValueError("expected HOST:PORT or :PORT, such as :8080 or 127.0.0.1:8080, or nothing to serve no HTTP")
    return value


def _hook_path(value: str | None) -> str | None:
    return value if value == "none" else _absolute(value)


Subdomain63 = Annotated[str, _subdomain(63)]
Subdomain253 = Annotated[str, _subdomain(253)]
PodUid = Annotated[str | None, AfterValidator(_pod_uid)]
HttpAddr = Annotated[str, AfterValidator(_http_addr)]
HookPath = Annotated[str | None, AfterValidator(_hook_path)]
Seconds = Annotated[float, Field(ge=0.1, le=3600.0)]
Spec = Annotated[str | None, Field(min_length=1, max_length=4096)]
AbsolutePath = Annotated[str, AfterValidator(_absolute)]
OptionalPath = Annotated[str | None, AfterValidator(_absolute)]


class NodeSettings(BaseModel):
    """What ``dra-driver kubelet-plugin`` is told; immutable."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    node_name: Annotated[Subdomain253, Option(NODE, "NODE_NAME", "NAME", "name of this node's Node object")]
    kubeconfig: Annotated[
        str | None,
        Option(NODE, "KUBECONFIG", "FILE", "how to reach the API server; in a pod, its service account serves"),
    ] = None
    driver_name: Annotated[
        Subdomain63,
        Option(NODE, "DRIVER_NAME", "NAME", "what claims and ResourceSlices call this driver; its pool is NODE/NAME"),
    ] = "gpu.nvidia.com"
    kubelet_registrar_dir: Annotated[
        AbsolutePath,
        Option(
            KUBELET,
            "KUBELET_REGISTRAR_DIR",
            "DIR",
            "where the kubelet looks for registration sockets; the same path on the host and in the container",
        ),
    ] = "/var/lib/kubelet/plugins_registry"
    kubelet_plugins_dir: Annotated[
        AbsolutePath,
        Option(
            KUBELET,
            "KUBELET_PLUGINS_DIR",
            "DIR",
            "parent of the directory with this driver's socket and journal; the same path on the host and in the "
            "container",
        ),
    ] = "/var/lib/kubelet/plugins"
    pod_uid: Annotated[
        PodUid,
        Option(
            KUBELET,
            "POD_UID",
            "UID",
            "UID of the pod that runs this process: gives it sockets of its own, so that two pods can overlap in "
            "a rolling update; without it, one process per node",
        ),
    ] = None
    cdi_dir: Annotated[
        AbsolutePath,
        Option(KUBELET, "CDI_DIR", "DIR", "where the container runtime reads CDI specifications"),
    ] = "/var/run/cdi"
    driver_root: Annotated[
        AbsolutePath,
        Option(HARDWARE, "DRIVER_ROOT", "DIR", "where this process sees the root of the NVIDIA driver's installation"),
    ] = "/"
    driver_root_on_host: Annotated[
        OptionalPath,
        Option(HARDWARE, "DRIVER_ROOT_ON_HOST", "DIR", "where the container runtime sees that root, if elsewhere"),
    ] = None
    dev_root: Annotated[
        OptionalPath,
        Option(
            HARDWARE,
            "DEV_ROOT",
            "DIR",
            "parent of the dev directory with the GPUs' device nodes, as this process sees it; the driver root if "
            "that has a dev directory, else /",
        ),
    ] = None
    dev_root_on_host: Annotated[
        OptionalPath,
        Option(HARDWARE, "DEV_ROOT_ON_HOST", "DIR", "where the container runtime sees that parent, if elsewhere"),
    ] = None
    nvidia_cdi_hook_path: Annotated[
        HookPath,
        Option(
            HARDWARE,
            "NVIDIA_CDI_HOOK_PATH",
            "FILE",
            "NVIDIA's CDI hook on the host; looked for if not given; none to do without",
        ),
    ] = None
    proc_devices: Annotated[
        AbsolutePath,
        Option(HARDWARE, "ALT_PROC_DEVICES_PATH", "FILE", "the kernel's list of device numbers"),
    ] = "/proc/devices"
    poll_interval: Annotated[
        Seconds,
        Option(HARDWARE, "POLL_INTERVAL", "SECONDS", "how often the GPUs are looked at"),
    ] = 10.0
    simulate: Annotated[
        Spec,
        Option(
            HARDWARE,
            "SIMULATE",
            "SPEC",
            "GPUs that do not exist instead of the node's own: 8xh100-sxm5-80gb, 4xa100-sxm4-40gb,2xl4-24gb, or a "
            "YAML file",
        ),
    ] = None
    http_addr: Annotated[
        HttpAddr,
        Option(
            TELEMETRY,
            "HTTP_ADDR",
            "HOST:PORT",
            "where /metrics, /healthz and /readyz are served; nowhere if empty",
        ),
    ] = ""
    log_format: Annotated[
        LogFormat,
        Option(TELEMETRY, "LOG_FORMAT", "FORMAT", "text (key=value, for people) or json"),
    ] = "text"
    log_level: Annotated[LogLevel, Option(TELEMETRY, "LOG_LEVEL", "LEVEL", "debug, info, warning or error")] = "info"

    @model_validator(mode="after")
    def _pool_name_fits(self) -> Self:
        length = len(self.node_name) + 1 + len(self.driver_name)
        if length > _MAX_POOL_NAME:
            raise ValueError(
                f"the pool name NODE/DRIVER would have {length} characters, at most {_MAX_POOL_NAME} are allowed:"
                " choose a shorter --driver-name"
            )
        return self


def node_flags() -> list[Flag]:
    """The flags of ``dra-driver kubelet-plugin``."""
    return flags_of(NodeSettings)


def load_node_settings(given: Mapping[str, str | None], environ: Mapping[str, str]) -> NodeSettings:
    """Settings from flags and environment; ConfigurationError names each wrong one."""
    return load(NodeSettings, given, environ)
