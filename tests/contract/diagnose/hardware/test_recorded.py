"""A report becomes a fixture: the C library plays the GPUs of the machine that wrote it; NVIDIA's mock of NVML."""

import os
import re
from pathlib import Path
from typing import Any

import pytest

from dra_driver.diagnose.hardware import storage
from dra_driver.diagnose.hardware.session import judged_again
from tests.contract.diagnose.conftest import MAIN, Command, run_python
from tests.contract.node.process.test_nvidia_mock import BOARDS, ROOTS
from tests.fakes.nvml import recorded
from tests.fakes.nvml.state import NOT_SUPPORTED, UNKNOWN, State

GOLDEN = Path(__file__).parents[3] / "golden/hardware"
REPORTS = sorted(GOLDEN.glob("*.json"))
CHECKS = "3,4,5"
LINKS = re.compile(r"nvlinks=NvLinks\(.*?clique=[^)]*\)")


def timeless(value: Any) -> Any:
    """Without how long a call took, and without NVLinks: a report has no answers about these to play."""
    if isinstance(value, str):
        return LINKS.sub("", value)
    if isinstance(value, dict):
        return {key: timeless(item) for key, item in value.items() if key != "ms"}
    return [timeless(item) for item in value] if isinstance(value, list) else value


def read(command: Command, folder: Path, name: str, checks: str = CHECKS) -> tuple[dict[int, Any], dict[int, str]]:
    """Facts and verdicts of a run, identities kept, so that they can be compared with the recorded ones."""
    command("--only", checks, "--keep-identities", "--output", name)
    records = storage.load(folder / name).records
    facts = {record.number: timeless(record.reading.facts) for record in records}
    return facts, {record.number: record.verdict for record in records}


@pytest.mark.parametrize(
    "trouble",
    [
        None,
        pytest.param(("nvmlDeviceGetBrand", NOT_SUPPORTED), marks=pytest.mark.slow),
        pytest.param((recorded.V2, NOT_SUPPORTED), marks=pytest.mark.slow),
    ],
)
@pytest.mark.slow
def test_a_played_report_gives_the_same_facts(
    command: Command, state: State, tmp_path: Path, trouble: tuple[str, int] | None
) -> None:
    """From a hashed report, too: then with other UUIDs."""
    if trouble is not None:
        state.inject(*trouble)
    before = read(command, tmp_path, "first.json")
    state.clear_faults()
    state.lose(0)  # whatever was there is replaced
    recorded.play(storage.load(tmp_path / "first.json"), state)
    assert read(command, tmp_path, "second.json") == before


def test_a_code_of_a_real_machine_is_played(command: Command, state: State, tmp_path: Path) -> None:
    state.inject("nvmlDeviceGetAddressingMode", UNKNOWN, device=2)
    read(command, tmp_path, "first.json", "4,5")
    report = storage.load(tmp_path / "first.json")
    assert ("nvmlDeviceGetAddressingMode", 2, UNKNOWN) in list(recorded.faults(report))
    state.clear_faults()
    recorded.play(report, state)
    assert read(command, tmp_path, "second.json", "4,5")[1][5] == "differs"


@pytest.mark.parametrize("path", REPORTS, ids=[path.stem for path in REPORTS])
def test_recorded_reports_are_judged_as_they_were(path: Path) -> None:
    """A later version of the judges may differ on purpose: then the file is written again."""
    report = storage.load(path)
    assert report.hashed
    assert judged_again(report) == report


@pytest.mark.parametrize("path", REPORTS, ids=[path.stem for path in REPORTS])
def test_recorded_machines_are_played(path: Path, command: Command, state: State, tmp_path: Path) -> None:
    report = storage.load(path)
    recorded.play(report, state)
    facts, _ = read(command, tmp_path, "played.json")
    was = {record.number: timeless(record.reading.facts) for record in report.records}
    assert {index: gpu["rows"] for index, gpu in facts[4].items()} == {
        index: gpu["rows"] for index, gpu in was[4].items()
    }
    assert facts[5]["0"]["nvmlDeviceGetUUID"] == was[5]["0"]["nvmlDeviceGetUUID"]


WITH_MIG = {"a100", "b200", "gb200", "gb300", "h100"}


@pytest.mark.skipif(
    ROOTS not in os.environ, reason=f"${ROOTS} is not set; it names driver roots with the mock NVML of NVIDIA"
)
@pytest.mark.parametrize("board", BOARDS)
def test_the_mock_is_what_the_driver_assumes_as_far_as_it_goes(board: str, tmp_path: Path) -> None:
    """The mock opens no device file and has no profiles, nvidia-ctk, libcuda and MPS: these are not called right.

    See tests/contract/node/process/test_nvidia_mock.py.
    """
    root, path = Path(os.environ[ROOTS], board), tmp_path / "report.json"
    if not root.is_dir():
        pytest.skip(f"${ROOTS} has no driver root of that board")
    arguments = ("--driver-root", str(root), "--only", "1,2,3,4,5,8,9,10", "--output", str(path))
    environment = {**os.environ, "KUBELET_PLUGINS_DIR": str(tmp_path)}
    done = run_python(*MAIN, "hardware-check", *arguments, environment=environment, timeout=100)
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
