"""Hide files of the base document from the containers of one claim.

All claims of a node have the base document in common, so a claim cannot leave out a part of it. Its own document mounts
another file in place of the hidden one, as container runtimes hide paths (``maskedPaths`` of the OCI runtime
specification). CDI removes an earlier mount of the same container path (cncf-tags/container-device-interface,
pkg/cdi/container-edits.go), and the base document comes first.

Runtimes mask with ``/dev/null``. CDI mounts cannot: in a pod with a user namespace they get the option ``idmap``
(withIDMapForBindMount, same file), which file systems of device nodes refuse (mount_setattr(2), EINVAL on Linux 6.18).
"""

from typing import Final

from dra_driver.hardware.cdi.layout import MPS_PROGRAMS
from dra_driver.hardware.cdi.libraries import DriverFiles
from dra_driver.hardware.cdi.spec import ContainerEdits, Mount

_OPTIONS: Final = ("ro", "nosuid", "nodev", "noexec", "bind")


def without_mps_programs(files: DriverFiles, mask: str) -> ContainerEdits:
    """Edits that hide the programs of MPS from containers whose GPU other claims use too.

    ``mask`` is a plain file of the host that all users may read and that is no program. With the control program,
    root in one container could change the limits of all clients of the GPU's daemon, or end it. This protects against
    carelessness: an image can bring the program along.
    """
    paths = (file.container_path for file in files.files)
    masked = [path for path in paths if path.rpartition("/")[2] in MPS_PROGRAMS]
    return ContainerEdits(mounts=tuple(Mount(host_path=mask, container_path=path, options=_OPTIONS) for path in masked))
