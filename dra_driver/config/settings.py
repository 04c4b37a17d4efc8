"""Define the settings of the node process. ``node/process/preflight.py`` checks directories.

Directories follow the kubelet (``--root-dir``) and the Container Device Interface (runtimes read ``/etc/cdi``
and ``/var/run/cdi``). Name rules: ResourceSlice ``spec.driver`` is a DNS subdomain of at most 63 characters, a node
name one of at most 253, and a pool name has at most 253 in all.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass

from dra_driver.config import options
from dra_driver.core.telemetry.logs import LogFormat, LogLevel

_POD_UID = re.compile(r"[0-9A-Za-z][0-9A-Za-z-]{0,62}")
_MAX_POOL_NAME = 253
_MAX_SPEC = 4096

NODE, KUBELET, HARDWARE, TELEMETRY = "node and API server", "kubelet and container runtime", "hardware", "telemetry"


def _pod_uid(text: str) -> str:
    if not _POD_UID.fullmatch(text):
        raise ValueError("expected the pod's metadata.uid: letters, digits and dashes, at most 63")
    return text


def _hook_path(text: str) -> str:
    return text if text == "none" else options.absolute(text)


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = float("nan")
    if not 0.1 <= seconds <= 3600.0:
        raise ValueError("expected seconds from 0.1 to 3600")
    return seconds


def _spec(text: str) -> str:
    if not 0 < len(text) <= _MAX_SPEC:
        raise ValueError(f"expected 1 to {_MAX_SPEC} characters")
    return text


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeSettings:
    """Settings of ``dra-driver kubelet-plugin``, created by ``load_node_settings``."""

    node_name: str = options.setting(
        NODE, "NAME", "name of this node's Node object", parse=options.subdomain(253, "node-1.example")
    )
    kubeconfig: str | None = options.setting(
        NODE, "FILE", "kubeconfig of the API server; default in a pod: its service account", None
    )
    driver_name: str = options.setting(
        NODE,
        "NAME",
        "driver name in claims and ResourceSlices; its pool is NODE/NAME",
        "gpu.nvidia.com",
        parse=options.subdomain(63, "gpu.nvidia.com"),
    )
    allow_second_publisher: bool = options.switch(
        NODE,
        "keep devices published although a device plugin or another DRA driver offers the same GPUs: for "
        "migrations that divide them by hand",
        False,
    )
    claim_events: bool = options.switch(
        NODE,
        "record events also on claims and their pods when their device becomes unhealthy or recovers; needs the "
        "rights that claimEvents.enabled of the chart gives",
        False,
    )
    claim_status: bool = options.switch(
        NODE,
        "write status.devices of prepared claims: uuid, placement, share, and whether the device is healthy; "
        "needs Kubernetes 1.36 and the rights that claimStatus.enabled of the chart gives",
        False,
    )
    numa_node_as_list: bool = options.switch(
        NODE,
        "publish numaNode as a list, as KEP-6072 wants it where the feature gate DRAListTypeAttributes is on "
        "(Kubernetes 1.36, off by default); selectors such as numaNode == 0 then fail on every device",
        False,
    )
    kubelet_registrar_dir: str = options.path(
        KUBELET,
        "DIR",
        "folder of the kubelet's registration sockets; the same path on the host and in the container",
        "/var/lib/kubelet/plugins_registry",
    )
    kubelet_plugins_dir: str = options.path(
        KUBELET,
        "DIR",
        "parent of the directory with this driver's socket and journal; the same path on the host and in the container",
        "/var/lib/kubelet/plugins",
    )
    pod_uid: str | None = options.setting(
        KUBELET,
        "UID",
        "UID of this process' pod; with it, sockets have a name per pod, so that two pods can overlap in a "
        "rolling update; without it, only one process per node can run",
        None,
        parse=_pod_uid,
    )
    cdi_dir: str = options.path(
        KUBELET, "DIR", "directory from which the container runtime reads CDI specifications", "/var/run/cdi"
    )
    device_metadata: bool = options.switch(
        KUBELET,
        "give containers a file with the attributes of their devices (KEP-5304); files that exist stay until their "
        "claims are unprepared",
        True,
    )
    driver_root: str | None = options.path(
        HARDWARE,
        "DIR",
        "root of the NVIDIA driver's installation, as this process sees it; default: search for it below the host root",
        None,
    )
    host_root: str = options.path(
        HARDWARE, "DIR", "the host's / as this process sees it, searched for the driver and for NVIDIA's CDI hook", "/"
    )
    driver_root_on_host: str | None = options.path(
        HARDWARE, "DIR", "the same root as the container runtime sees it, if different", None
    )
    dev_root: str | None = options.path(
        HARDWARE,
        "DIR",
        "parent of the dev directory with the GPUs' device nodes, as this process sees it; default: the driver "
        "root if it has a dev directory, else /",
        None,
    )
    dev_root_on_host: str | None = options.path(
        HARDWARE, "DIR", "the same parent as the container runtime sees it, if different", None
    )
    host_dev: str | None = options.path(
        HARDWARE,
        "DIR",
        "the host's /dev as this process sees it, in which device nodes and links to them are made; default: /dev, "
        "or dev in the host root if that is another folder; none for simulated GPUs, and with --proc-devices",
        None,
    )
    nvidia_cdi_hook_path: str | None = options.setting(
        HARDWARE,
        "FILE",
        "path of NVIDIA's CDI hook on the host; default: search for it; none: use no hook",
        None,
        parse=_hook_path,
    )
    proc_devices: str = options.path(
        HARDWARE, "FILE", "the kernel's list of device numbers", "/proc/devices", env="ALT_PROC_DEVICES_PATH"
    )
    boot_id_file: str = options.path(
        HARDWARE, "FILE", "the kernel's id of this boot; another file is for tests", "/proc/sys/kernel/random/boot_id"
    )
    poll_interval: float = options.setting(
        HARDWARE, "SECONDS", "interval between two polls of the GPUs", 10.0, parse=_seconds
    )
    health: bool = options.switch(HARDWARE, "monitor GPU health and taint unhealthy and missing GPUs", True)
    policy_dir: str | None = options.path(
        HARDWARE,
        "DIR",
        "folder of GpuPolicy files (*.yaml, *.yml, *.json), read again when they change; default: claims may "
        "have GPUs whole or as any MIG profile",
        None,
    )
    policy_objects: bool = options.switch(
        HARDWARE,
        "follow the GpuPolicy objects of the API server in addition to the files; needs the right to list and "
        "watch them, and works without their CustomResourceDefinition",
        True,
    )
    gpu_node: bool = options.switch(
        NODE,
        "keep the GpuNode object of this node, which says what its GPUs are, how they are used and which policies "
        "are in force; works without its CustomResourceDefinition",
        True,
    )
    usage: bool = options.switch(
        NODE, "work with the usage exporter of this node: report its findings in events and in the GpuNode", False
    )
    simulate: str | None = options.setting(
        HARDWARE,
        "SPEC",
        "simulate these GPUs instead of using the node's: 8xh100-sxm5-80gb, 4xa100-sxm4-40gb,2xl4-24gb, or a YAML file",
        None,
        parse=_spec,
    )
    http_addr: str = options.http_endpoint(TELEMETRY)
    log_format: LogFormat = options.format_of_logs(TELEMETRY)
    log_level: LogLevel = options.level_of_logs(TELEMETRY)

    def __post_init__(self) -> None:
        length = len(self.node_name) + 1 + len(self.driver_name)
        if length > _MAX_POOL_NAME:
            raise ValueError(
                f"the pool name NODE/DRIVER would have {length} characters, at most {_MAX_POOL_NAME} are allowed:"
                " choose a shorter --driver-name"
            )


def node_flags() -> list[options.Flag]:
    return options.flags_of(NodeSettings)


def load_node_settings(given: Mapping[str, str | None], environ: Mapping[str, str]) -> NodeSettings:
    """Settings from flags and environment. Raises ConfigurationError that names each wrong one."""
    return options.load(NodeSettings, given, environ)
