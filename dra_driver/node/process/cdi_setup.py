"""Builds the provider of CDI documents from settings, hardware and device nodes."""

from dra_driver.config.settings import NodeSettings
from dra_driver.hardware.cdi import CdiNames, CdiProvider, CdiWriter
from dra_driver.node.process.device_nodes import HostDeviceNodes
from dra_driver.node.process.hardware import Hardware


def open_cdi(
    settings: NodeSettings, found: Hardware, nodes: HostDeviceNodes, names: CdiNames, writer: CdiWriter
) -> CdiProvider:
    """The provider, which has nvidia-uvm loaded before it writes its numbers. Opens and reads nothing itself."""
    return CdiProvider(
        found.root,
        names,
        writer,
        found.proc_devices,
        settings.nvidia_cdi_hook_path,
        proc_driver=found.proc_driver,
        host=found.host,
        majors=nodes.uvm.majors,
        simulated=settings.simulate is not None,
    )
