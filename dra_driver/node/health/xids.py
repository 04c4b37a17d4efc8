"""List the XIDs of NVIDIA's driver with their meaning and the recovery that the GPU needs.

`ROWS` is a Python tuple, which needs no parser in the node process; ``make gen`` writes it to ``docs/health.md``.
Sources, by letter:

    C  NVIDIA's XID catalog for Ampere and newer GPUs, column "Resolution Bucket (Immediate Action)"
       https://docs.nvidia.com/deploy/xid-errors/analyzing-xid-catalog.html (of 2026-09)
    N  NVIDIA/open-gpu-kernel-modules 595.45.04, src/common/sdk/nvidia/inc/nverror.h: the number and its name
    L  application errors that NVIDIA's device plugin (internal/rm/health.go) and NVIDIA's DRA driver up to 0.5.0
       (cmd/gpu-kubelet-plugin/device_health.go) ignore

The catalog's buckets RESTART_APP, IGNORE, RESET_GPU and RESTART_BM are `APP`, `NOTE`, `RESET` and `REBOOT`. Others:

    WORKFLOW_XID_45 and the list L   `APP`. The list wins over the catalog for 109, whose bucket is RESET_GPU since
                                     driver 570: that driver also reports a recovery action if a reset is needed
    WORKFLOW_XID_48, WORKFLOW_NVLINK_ERR, WORKFLOW_NVLINK5_ERR, CHECK_UVM   `RESET`
    RESTART_VM                       `REBOOT`
    XID_154                          `NOTE`: the driver reads the recovery action
    CHECK_MECHANICALS, UPDATE_SWFW, CONTACT_SUPPORT, no bucket   `SUPPORT`, but `NOTE` where the catalog says that
                                     the GPU continues (power smoothing, details of XID 48)

The fourth value is the first driver branch that reports a recovery action (NVML field 230) after this XID, from the
catalog's column "Xid 154 linkage", or 0. Drivers report the field since 565. Unused numbers are omitted.
"""

from enum import StrEnum
from typing import Final

from msgspec import Struct

APP: Final = "restart-app"
NOTE: Final = "none"
RESET: Final = "gpu-reset"
REBOOT: Final = "node-reboot"
SUPPORT: Final = "contact-support"

ROWS: Final[tuple[tuple[int, str, str, int, str], ...]] = (
    (8, "a program's work did not end in time", APP, 0, "C"),
    (11, "a program sent an invalid or corrupted push buffer", APP, 0, "C"),
    (13, "a program raised an exception of the graphics or compute engine", APP, 0, "CNL"),
    (14, "a test message of the driver", NOTE, 0, "CN"),
    (25, "a program sent an invalid or illegal push buffer", APP, 0, "C"),
    (31, "a program accessed GPU memory that is not mapped (page fault)", APP, 0, "CNL"),
    (32, "a program sent an invalid or corrupted push buffer", APP, 0, "CN"),
    (37, "the driver's firmware does not know a method", NOTE, 0, "C"),
    (38, "the driver's firmware reported a watchdog timeout", NOTE, 0, "C"),
    (39, "copy engine 0 raised an exception", APP, 0, "CN"),
    (40, "copy engine 1 raised an exception", APP, 0, "CN"),
    (41, "copy engine 2 raised an exception", APP, 0, "CN"),
    (43, "a program made the GPU stop its work; the GPU is healthy", APP, 0, "CNL"),
    (44, "the graphics engine failed while it switched contexts", NOTE, 0, "CN"),
    (45, "a program's channels were removed after an earlier error, or because the program ended", APP, 0, "CNL"),
    (46, "the GPU stopped processing", RESET, 0, "C"),
    (48, "an uncorrectable (double-bit) memory error", RESET, 565, "CN"),
    (54, "the board's auxiliary power is not connected", SUPPORT, 0, "C"),
    (60, "the video processor raised an exception", APP, 0, "CN"),
    (62, "the power micro-controller halted", RESET, 565, "CN"),
    (63, "a row was remapped or a page retired; it applies after the next reset", NOTE, 565, "CN"),
    (64, "a row could not be remapped, or a page not be retired", RESET, 565, "CN"),
    (66, "the driver accessed a register that it may not", NOTE, 0, "C"),
    (67, "the driver accessed memory that it may not", NOTE, 0, "C"),
    (68, "video decoder 0 raised an exception", APP, 0, "CNL"),
    (69, "a program raised a class error of the graphics engine", APP, 0, "CN"),
    (70, "copy engine 3 raised an exception", APP, 0, "CN"),
    (71, "copy engine 4 raised an exception", APP, 0, "CN"),
    (72, "copy engine 5 raised an exception", APP, 0, "CN"),
    (74, "an NVLink connection failed", RESET, 565, "CN"),
    (75, "copy engine 6 raised an exception", APP, 0, "CN"),
    (76, "copy engine 7 raised an exception", APP, 0, "CN"),
    (77, "copy engine 8 raised an exception", APP, 0, "CN"),
    (78, "a virtual GPU could not start; driver or firmware needs an update", SUPPORT, 0, "CN"),
    (79, "the GPU has fallen off the bus", REBOOT, 565, "CN"),
    (80, "a program's push buffer arrived corrupted", APP, 0, "CN"),
    (82, "JPEG decoder 0 raised an exception", APP, 0, "CN"),
    (83, "video decoder 1 raised an exception", APP, 0, "CN"),
    (84, "video decoder 2 raised an exception", APP, 0, "CN"),
    (85, "copy engine 9 raised an exception", APP, 0, "CN"),
    (86, "optical flow engine 0 raised an exception", APP, 0, "CN"),
    (88, "video decoder 3 raised an exception", APP, 0, "CN"),
    (89, "video decoder 4 raised an exception", APP, 0, "CN"),
    (92, "many single-bit memory errors, which were corrected", NOTE, 0, "CN"),
    (93, "the InfoROM is protected against further writes", NOTE, 0, "CN"),
    (94, "an uncorrectable memory error that is contained to one program", APP, 565, "CN"),
    (95, "an uncorrectable memory error that is not contained", RESET, 565, "CN"),
    (96, "video decoder 5 raised an exception", APP, 0, "CN"),
    (97, "video decoder 6 raised an exception", APP, 0, "CN"),
    (98, "video decoder 7 raised an exception", APP, 0, "CN"),
    (99, "JPEG decoder 1 raised an exception", APP, 0, "CN"),
    (100, "JPEG decoder 2 raised an exception", APP, 0, "CN"),
    (101, "JPEG decoder 3 raised an exception", APP, 0, "CN"),
    (102, "JPEG decoder 4 raised an exception", APP, 0, "CN"),
    (103, "JPEG decoder 5 raised an exception", APP, 0, "CN"),
    (104, "JPEG decoder 6 raised an exception", APP, 0, "CN"),
    (105, "JPEG decoder 7 raised an exception", APP, 0, "CN"),
    (106, "a test message of the board's management bus", NOTE, 0, "C"),
    (107, "a silent test message of the board's management bus", NOTE, 0, "C"),
    (108, "a remote address could not be translated over NVLink", NOTE, 0, "CN"),
    (109, "a context switch did not end in time", APP, 570, "CL"),
    (110, "a security fault, uncommon without a hardware failure", RESET, 565, "CN"),
    (119, "the GPU's system processor (GSP) did not answer in time", RESET, 0, "CN"),
    (120, "the GPU's system processor (GSP) reported an error", RESET, 565, "CN"),
    (121, "errors of the chip-to-chip link, which were corrected", NOTE, 0, "CN"),
    (126, "copy engine 10 raised an exception", APP, 0, "CN"),
    (127, "copy engine 11 raised an exception", APP, 0, "CN"),
    (128, "copy engine 12 raised an exception", APP, 0, "CN"),
    (129, "copy engine 13 raised an exception", APP, 0, "CN"),
    (130, "copy engine 14 raised an exception", APP, 0, "CN"),
    (131, "copy engine 15 raised an exception", APP, 0, "CN"),
    (132, "copy engine 16 raised an exception", APP, 0, "CN"),
    (133, "copy engine 17 raised an exception", APP, 0, "CN"),
    (134, "copy engine 18 raised an exception", APP, 0, "CN"),
    (135, "copy engine 19 raised an exception", APP, 0, "CN"),
    (136, "the training of an NVLink connection failed", RESET, 565, "CN"),
    (137, "a program made an illegal access over NVLink", NOTE, 0, "CN"),
    (139, "optical flow engine 1 raised an exception", APP, 0, "CN"),
    (140, "uncorrectable memory errors kept the driver from remapping rows", RESET, 0, "CN"),
    (141, "CUDA's fast path reported an error", NOTE, 0, "CN"),
    (142, "video encoder 3 raised an exception", SUPPORT, 0, "CN"),
    (143, "the GPU could not be initialised", RESET, 575, "CN"),
    (144, "NVLink: error in unit SAW", RESET, 565, "CN"),
    (145, "NVLink: error in unit RLW", RESET, 565, "CN"),
    (146, "NVLink: error in unit TLW", RESET, 565, "CN"),
    (147, "NVLink: error in unit TREX", RESET, 565, "CN"),
    (148, "NVLink: error in unit NVLPW_CTRL", RESET, 565, "CN"),
    (149, "NVLink: error in unit NETIR", RESET, 565, "CN"),
    (150, "NVLink: error in unit MSE", RESET, 565, "CN"),
    (151, "the rotation of an encryption key failed", REBOOT, 0, "CN"),
    (152, "the deep learning accelerator's memory unit reported an error", NOTE, 0, "C"),
    (153, "the deep learning accelerator did not answer in time", NOTE, 0, "C"),
    (154, "the recovery action of the GPU changed", NOTE, 0, "CN"),
    (155, "an NVLink connection is down", RESET, 565, "CN"),
    (156, "a resource of the GPU is retired at the next reset", RESET, 565, "CN"),
    (157, "a resource could not be retired: none is spare", NOTE, 0, "CN"),
    (158, "a fatal timeout inside the GPU", RESET, 565, "CN"),
    (159, "an error of the coherent link to the processor", RESET, 565, "CN"),
    (160, "a memory channel is retired", NOTE, 575, "CN"),
    (161, "a memory channel could not be retired", NOTE, 575, "CN"),
    (162, "power smoothing works again", NOTE, 0, "CN"),
    (163, "power smoothing is off", NOTE, 0, "CN"),
    (164, "power smoothing is near the end of its life", NOTE, 0, "CN"),
    (165, "power smoothing is at the end of its life", NOTE, 0, "CN"),
    (166, "unencrypted NVLink traffic in confidential computing", SUPPORT, 0, "CN"),
    (167, "a fatal timeout on PCI Express", SUPPORT, 0, "CN"),
    (168, "memory errors in the protected region; the GPU has less memory", SUPPORT, 0, "CN"),
    (169, "the security micro-controller halted", SUPPORT, 0, "CN"),
    (170, "an error of NVLink in confidential computing", SUPPORT, 0, "CN"),
    (171, "details of XID 48: the error is in DRAM", NOTE, 0, "CN"),
    (172, "details of XID 48: the error is in SRAM", NOTE, 0, "CN"),
    (173, "the chip-to-chip link failed", SUPPORT, 0, "N"),
    (174, "a program's channel was reset and the program ended", SUPPORT, 0, "N"),
    (175, "an error of the memory subsystem", SUPPORT, 0, "N"),
    (176, "many corrected errors on PCI Express", SUPPORT, 0, "N"),
)
"""Number, meaning, recovery, first driver branch that reports a recovery action after it, sources."""


_REPORTED_SINCE: Final = 565
"""The driver branch that has NVML field 230; a driver with the field may lack links of later branches."""


class XidRecovery(StrEnum):
    NONE = "none"
    RESTART_APP = "restart-app"
    GPU_RESET = "gpu-reset"
    NODE_REBOOT = "node-reboot"
    CONTACT_SUPPORT = "contact-support"


class Xid(Struct, frozen=True):
    """``reported``: a driver with NVML field 230 reports a recovery action if this XID needs one."""

    number: int
    meaning: str
    recovery: XidRecovery
    reported: bool
    sources: str

    @property
    def taints(self) -> bool:
        """Return whether it taints by default."""
        return self.recovery not in {XidRecovery.NONE, XidRecovery.RESTART_APP}


KNOWN: Final = {
    number: Xid(number, meaning, XidRecovery(recovery), 0 < since <= _REPORTED_SINCE, sources)
    for number, meaning, recovery, since, sources in ROWS
}


def xid(number: int) -> Xid:
    """The entry of the XID. An unknown XID taints, as with NVIDIA's drivers, until the GPU was reset or the node
    rebooted."""
    known = KNOWN.get(number)
    return known or Xid(number, "it is not in this driver's table", XidRecovery.CONTACT_SUPPORT, False, "")


def label(number: int) -> str:
    """The XID as a metric's label: its number, or ``other`` for an unknown XID."""
    return str(number) if number in KNOWN else "other"
