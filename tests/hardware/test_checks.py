"""The checks of ``dra-driver hardware-check`` on a real GPU, one test each; see docs/hardware-check.md.

HARDWARE_CHECK_ARGUMENTS has further flags, such as ``--i-own-this-gpu --gpu 0`` for the checks that change MIG.
"""

import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from dra_driver.diagnose.hardware import storage
from dra_driver.diagnose.hardware.session import CHECKS
from dra_driver.diagnose.hardware.values import CheckRecord
from dra_driver.hardware.gpu.nvml.backend import NvmlBackend

ARGUMENTS = "HARDWARE_CHECK_ARGUMENTS"


@pytest.fixture(scope="session")
def records(backend: NvmlBackend, tmp_path_factory: pytest.TempPathFactory) -> dict[int, CheckRecord]:
    """One run of all checks. The tests' own session is closed meanwhile; ``backend`` skips where there is no GPU."""
    backend.close()
    path = Path(os.environ.get("GPU_REPORT", tmp_path_factory.mktemp("check"))).with_suffix(".checks.json")
    command = [sys.executable, "-m", "dra_driver.core.command_line.main", "hardware-check", "--output", str(path)]
    command += shlex.split(os.environ.get(ARGUMENTS, ""))
    done = subprocess.run(command, capture_output=True, text=True, timeout=660, check=False)
    assert done.returncode in {0, 1, 3}, done.stdout + done.stderr
    return {record.number: record for record in storage.load(path).records}


@pytest.mark.timeout(700)
@pytest.mark.parametrize("number", [check.number for check in CHECKS])
def test_the_driver_is_right_about_this_machine(records: dict[int, CheckRecord], number: int) -> None:
    record, finding = records[number], records[number].finding
    if record.verdict == "skipped":
        pytest.skip(finding.seen)
    assert record.verdict == "ok", f"{finding.seen}. It means: {finding.meaning}"
