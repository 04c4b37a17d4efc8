"""The hardware check on NVIDIA's own mock of NVML, seven boards: see
tests/contract/node/process/test_nvidia_mock.py."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from dra_driver.diagnose.hardware import storage
from tests.contract.diagnose.hardware.conftest import ROOT
from tests.contract.node.process.test_nvidia_mock import BOARDS, ROOTS

WITH_MIG = {"a100", "b200", "gb200", "gb300", "h100"}

pytestmark = pytest.mark.skipif(
    ROOTS not in os.environ, reason=f"${ROOTS} is not set; it names driver roots with the mock NVML of NVIDIA"
)


@pytest.mark.parametrize("board", BOARDS)
def test_the_mock_is_what_the_driver_assumes_as_far_as_it_goes(board: str, tmp_path: Path) -> None:
    """It opens no device file and has no profiles, nvidia-ctk, libcuda and MPS: these are not called right."""
    root, path = Path(os.environ[ROOTS], board), tmp_path / "report.json"
    if not root.is_dir():
        pytest.skip(f"${ROOTS} has no driver root of that board")
    command = [sys.executable, "-m", "dra_driver.core.command_line.main", "hardware-check", "--driver-root", str(root)]
    done = subprocess.run(
        [*command, "--only", "1,2,3,4,5,8,9,10", "--output", str(path)],
        env={**os.environ, "PYTHONPATH": str(ROOT), "KUBELET_PLUGINS_DIR": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    verdicts = {record.number: record.verdict for record in storage.load(path).records}
    assert {number: verdicts[number] for number in (1, 2, 5, 8, 9, 10)} == {
        1: "skipped",
        2: "cannot tell",
        5: "ok",
        8: "ok",
        9: "ok",
        10: "skipped",
    }, done.stdout
    assert verdicts[4] == ("cannot tell" if board in WITH_MIG else "skipped")
    assert verdicts[3] == "ok"
    assert done.returncode == 3
