"""Container Device Interface documents: find the driver's files, describe GPUs, write the files."""

from dra_driver.hardware.cdi.edits import claim_spec, metadata_edits, mps_edits
from dra_driver.hardware.cdi.hook import HookVersions, choose_hook
from dra_driver.hardware.cdi.libraries import discover
from dra_driver.hardware.cdi.names import CdiNames
from dra_driver.hardware.cdi.provider import CdiProvider
from dra_driver.hardware.cdi.spec import CdiSpec, ContainerEdits, decode
from dra_driver.hardware.cdi.watch import FolderWatch
from dra_driver.hardware.cdi.writer import CdiWriter
from dra_driver.hardware.driver_root.root import DriverRoot
