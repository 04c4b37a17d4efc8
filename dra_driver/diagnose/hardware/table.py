"""All checks, by number: 1 to 11 on any machine, 12 to 14 only with the consent of the GPU's owner."""

from typing import Final

from dra_driver.diagnose.hardware import judge_cuda, judge_files, judge_mig, judge_nvml, judge_session
from dra_driver.diagnose.hardware.values import HardwareCheck, Need

SURVEY: Final = "read_survey:survey"
SURVEY_S: Final = 60.0
RESTORE: Final = "read_mig_change:restore"
RESTORE_S: Final = 40.0
_ON_FREE_GPU: Final[frozenset[Need]] = frozenset({"root", "free GPU"})
_BY_OWNER: Final[frozenset[Need]] = frozenset({"root", "owner"})

CHECKS: Final = (
    HardwareCheck(
        number=1,
        name="CUDA in a container's view",
        expected="CUDA works with the device nodes and libraries of a claim, and not without UVM",
        reader="read_cuda:contexts",
        judge=judge_cuda.contexts,
        limit_s=60.0,
        needs=_ON_FREE_GPU,
    ),
    HardwareCheck(
        number=2,
        name="what a session holds",
        expected="closing NVML releases all device files and the kernel module",
        reader="read_session:held",
        judge=judge_session.held,
        limit_s=30.0,
    ),
    HardwareCheck(
        number=3,
        name="codes while MIG mode is off",
        expected="functions for MIG answer Not Supported, Not Found or nothing",
        reader="read_nvml:without_mode",
        judge=judge_nvml.without_mode,
        limit_s=30.0,
    ),
    HardwareCheck(
        number=4,
        name="MIG profiles and fields",
        expected="profiles, names and placements are those of the catalog, by version 1 or 2",
        reader="read_nvml:profiles",
        judge=judge_nvml.profiles,
        limit_s=30.0,
    ),
    HardwareCheck(
        number=5,
        name="every property of a GPU",
        expected="a property is read, or is missing by one of four codes",
        reader="read_nvml:described",
        judge=judge_nvml.every_call,
        limit_s=45.0,
    ),
    HardwareCheck(
        number=6,
        name="missing device nodes",
        expected="NVML as root makes missing nodes with the kernel's numbers, or none",
        reader="read_nodes:missing_nodes",
        judge=judge_files.missing_nodes,
        limit_s=30.0,
        needs=frozenset({"root"}),
    ),
    HardwareCheck(
        number=7,
        name="device numbers",
        expected="numbers read from /proc are those of the nodes in /dev",
        reader="read_files:kernel",
        judge=judge_files.kernel,
        limit_s=15.0,
    ),
    HardwareCheck(
        number=8,
        name="files of the driver",
        expected="version and files are those of NVML, nvidia-ctk and the linker's cache",
        reader="read_files:files",
        judge=judge_files.files,
        limit_s=60.0,
    ),
    HardwareCheck(
        number=9,
        name="libraries in turn",
        expected="after a session's end another file of NVML is used, also from several threads",
        reader="read_session:copies",
        judge=judge_session.copies,
        limit_s=75.0,
    ),
    HardwareCheck(
        number=10,
        name="an MPS daemon",
        expected="the daemon takes this driver's commands, and a client keeps its limit",
        reader="read_mps:daemon",
        judge=judge_cuda.daemon,
        limit_s=75.0,
        needs=_ON_FREE_GPU,
    ),
    HardwareCheck(
        number=11,
        name="nvidia-smi and first calls",
        expected="nvidia-smi runs in the environment that it gets, and first calls end within a minute",
        reader="read_session:first_calls",
        judge=judge_session.first_calls,
        limit_s=75.0,
    ),
    HardwareCheck(
        number=12,
        name="first MIG instance beside a client",
        expected="creating works, or is refused with IN_USE while another client has the GPU",
        reader="read_mig_change:first_create",
        judge=judge_mig.first_create,
        limit_s=60.0,
        needs=_BY_OWNER,
    ),
    HardwareCheck(
        number=13,
        name="instance that another process listed",
        expected="destroying works, at the latest after the other process has ended",
        reader="read_mig_change:subscriptions",
        judge=judge_mig.subscriptions,
        limit_s=60.0,
        needs=_BY_OWNER,
    ),
    HardwareCheck(
        number=14,
        name="fabric after MIG",
        expected="the fabric is complete again within 30 s after the last instance",
        reader="read_mig_change:fabric",
        judge=judge_mig.fabric,
        limit_s=75.0,
        needs=_BY_OWNER,
    ),
)
