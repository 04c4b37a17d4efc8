"""Settings of ``dra-driver hardware-check``: those of the node process that say where things are.

The same environment variables, so that a pod with the node process' environment needs no flag.
"""

from dataclasses import dataclass
from pathlib import PurePosixPath

from dra_driver.config.options import Option, setting

PLACES = "places, as for kubelet-plugin"


def _absolute(text: str) -> str:
    if not text.startswith("/") or "\0" in text:
        raise ValueError("expected an absolute path")
    return str(PurePosixPath(text))


def _name(text: str) -> str:
    if not 0 < len(text) <= 63 or "/" in text or text.startswith("."):
        raise ValueError("expected the driver's name, such as gpu.nvidia.com")
    return text


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckSettings:
    """Where the driver, the kernel's files and this driver's folder are."""

    driver_root: str | None = setting(
        Option(
            PLACES,
            "DRIVER_ROOT",
            "DIR",
            "root of the NVIDIA driver, as this process sees it; default: search for it below the host root",
            _absolute,
        ),
        None,
    )
    driver_root_on_host: str | None = setting(
        Option(PLACES, "DRIVER_ROOT_ON_HOST", "DIR", "the same root as the host sees it, if different", _absolute), None
    )
    host_root: str = setting(Option(PLACES, "HOST_ROOT", "DIR", "the host's / as this process sees it", _absolute), "/")
    dev_root: str | None = setting(
        Option(PLACES, "DEV_ROOT", "DIR", "parent of the dev directory with the GPUs' device nodes", _absolute), None
    )
    proc_devices: str = setting(
        Option(PLACES, "ALT_PROC_DEVICES_PATH", "FILE", "the kernel's list of device numbers", _absolute),
        "/proc/devices",
    )
    kubelet_plugins_dir: str = setting(
        Option(PLACES, "KUBELET_PLUGINS_DIR", "DIR", "parent of the folder with this driver's journal", _absolute),
        "/var/lib/kubelet/plugins",
    )
    driver_name: str = setting(Option(PLACES, "DRIVER_NAME", "NAME", "name of this driver", _name), "gpu.nvidia.com")
