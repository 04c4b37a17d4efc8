"""Checks that use a GPU get a free one, or the one whose owner agrees; processes are found by their open files."""

import copy
from pathlib import Path
from typing import Any

import pytest

from dra_driver.core.errors import ConfigurationError
from dra_driver.diagnose.hardware.session import CHECKS
from dra_driver.diagnose.hardware.survey import (
    MAX_FILES,
    Consent,
    GpuChoice,
    busy,
    choose,
    open_links,
    openers,
    skip_reason,
)
from tests.harness.raising import fails
from tests.unit.diagnose.hardware import facts

OTHER = "GPU-00000000-8c16-a98c-945a-2541fc35b20d"
BY_NUMBER = {check.number: check for check in CHECKS}


def two(**first: Any) -> dict[str, Any]:
    """A survey of two GPUs, of which the first has ``processes`` or ``mode``."""
    survey = facts.survey()
    second = copy.deepcopy(survey["gpus"][0])
    second["index"] = 1
    second["answers"]["nvmlDeviceGetUUID"] = facts.answer(OTHER)
    second["answers"]["nvmlDeviceGetMinorNumber"] = facts.answer(1)
    survey["gpus"][0]["processes"] |= first
    survey["gpus"].append(second)
    return survey


def with_mig_mode(answer: dict[str, Any]) -> dict[str, Any]:
    survey = facts.survey()
    survey["gpus"][0]["answers"]["nvmlDeviceGetMigMode"] = answer
    return survey


WITH_PROCESS = facts.answer([{"pid": 77, "name": "python3"}])

WITH_OPENER = {"complete": True, "processes": [{"pid": 5, "name": "train", "minors": [0]}]}


def test_the_first_free_gpu_is_used() -> None:
    choice = choose(two(Compute=WITH_PROCESS), Consent())
    assert choice.gpu is not None
    assert (choice.gpu.index, choice.gpu.uuid, choice.gpu.minor, choice.gpu.has_mig) == (1, OTHER, 1, True)


@pytest.mark.parametrize(
    ("survey", "reason"),
    [
        (two(Compute=WITH_PROCESS), "has 1 processes: python3 (77)"),
        (two(Graphics=WITH_PROCESS), "has 1 processes: python3 (77)"),
        (two(MPSCompute=WITH_PROCESS), "has 1 processes: python3 (77)"),
        (two(Compute=facts.NOT_SUPPORTED), "NVML does not report (code 3)"),
        (facts.survey(openers=WITH_OPENER), "is open in 1 processes: train (5)"),
        (
            facts.survey(openers={"complete": False, "processes": []}),
            "may have processes",
        ),
        (facts.survey(claims={"held": {facts.UUID: 2}}), "has 2 devices of claims prepared"),
        (facts.survey(claims={"error": "state.db cannot be read"}), "may have claims: state.db cannot be read"),
        (with_mig_mode(facts.answer([1, 1])), "is in MIG mode"),
    ],
)
def test_processes_and_claims_make_a_gpu_busy_and_so_does_not_knowing(survey: dict[str, Any], reason: str) -> None:
    assert reason in busy(survey["gpus"][0], survey)


def test_a_busy_gpu_is_used_with_its_owners_consent_alone() -> None:
    survey = facts.survey()
    survey["gpus"][0]["processes"]["Compute"] = WITH_PROCESS
    refused = choose(survey, Consent())
    assert refused == GpuChoice(reason="no free GPU: GPU 0 has 1 processes: python3 (77)")
    assert "--i-own-this-gpu" in skip_reason(BY_NUMBER[1], survey, Consent(), refused)
    assert choose(survey, Consent(owner=True)).gpu is not None


def test_consent_without_a_name_is_refused_where_there_are_several_gpus() -> None:
    with fails(ConfigurationError, "GpuNotNamed", gpus=2):
        choose(two(), Consent(owner=True))
    for name in ("1", OTHER):
        chosen = choose(two(), Consent(owner=True, gpu=name)).gpu
        assert chosen is not None
        assert chosen.index == 1


def test_a_gpu_that_does_not_exist_or_answer_is_not_chosen() -> None:
    with fails(ConfigurationError, "GpuNotFound", gpu="7"):
        choose(two(), Consent(gpu="7"))
    unanswered = facts.survey(gpus=[{"index": 0, "error": {"code": 15}}])
    assert choose(unanswered, Consent()) == GpuChoice(reason="no free GPU: none answers")


def test_checks_are_skipped_for_what_they_need() -> None:
    """Nothing that changes MIG runs without consent, nothing that mounts without root."""
    survey, choice = facts.survey(), choose(facts.survey(), Consent())
    skipped = {number for number, check in BY_NUMBER.items() if skip_reason(check, survey, Consent(), choice)}
    assert skipped == {12, 13, 14}
    owner = Consent(owner=True)
    assert not any(skip_reason(check, survey, owner, choice) for check in CHECKS)
    user = facts.survey(machine={"uid": 1000})
    assert {n for n, check in BY_NUMBER.items() if skip_reason(check, user, owner, choice)} == {1, 6, 10, 12, 13, 14}
    assert {skip_reason(BY_NUMBER[n], user, owner, choice) for n in (1, 6)} == {"it needs root"}


def test_changes_of_mig_are_skipped_on_a_gpu_without_it() -> None:
    survey = with_mig_mode(dict(facts.NOT_SUPPORTED))
    owner = Consent(owner=True)
    assert skip_reason(BY_NUMBER[12], survey, owner, choose(survey, owner)) == "GPU 0 does not support MIG"


@pytest.mark.parametrize("survey", [{}, {"gpus": []}])
def test_without_a_gpu_every_check_says_what_stays_open(survey: dict[str, Any]) -> None:
    reasons = {skip_reason(check, survey, Consent(), choose(survey, Consent())) for check in CHECKS}
    assert len(reasons) == len(CHECKS)
    assert all("without a usable NVIDIA GPU" in reason for reason in reasons)


def process(root: Path, pid: int, name: str, *targets: str) -> None:
    folder = root / f"proc/{pid}"
    (folder / "fd").mkdir(parents=True)
    (folder / "comm").write_text(f"{name}\n")
    for number, target in enumerate(targets):
        (folder / f"fd/{number}").symlink_to(target)


def test_a_program_that_computes_has_uvm_and_its_gpus_open(tmp_path: Path) -> None:
    """A monitor has GPUs open, and no UVM."""
    process(tmp_path, 2, "kthreadd")
    process(tmp_path, 70, "dcgm-exporter", "/dev/nvidia0", "/dev/nvidiactl")
    process(tmp_path, 71, "train", "/dev/nvidia-uvm", "/dev/nvidia3", "/dev/nvidia1", "/dev/nvidia3", "/dev/null")
    process(tmp_path, 72, "moved", "/run/nvidia/driver/dev/nvidia-uvm (deleted)", "/run/nvidia/driver/dev/nvidia12")
    found = openers((str(tmp_path),))
    assert found["complete"] is True
    assert sorted((one["pid"], one["name"], one["minors"]) for one in found["processes"]) == [
        (71, "train", [1, 3]),
        (72, "moved", [12]),
    ]


def test_a_containers_own_processes_are_not_all_of_the_node(tmp_path: Path) -> None:
    """Its process 2 is no thread of the kernel."""
    process(tmp_path, 2, "python3")
    assert openers((str(tmp_path),)) == {"complete": False, "processes": []}


def test_the_first_root_with_the_nodes_processes_is_read(tmp_path: Path) -> None:
    """The host's, mounted into a pod; else this process' own."""
    process(tmp_path / "own", 2, "kthreadd")
    process(tmp_path / "own", 9, "train", "/dev/nvidia-uvm", "/dev/nvidia0")
    (tmp_path / "host").mkdir()
    found = openers((str(tmp_path / "host"), str(tmp_path / "own")))
    assert [one["pid"] for one in found["processes"]] == [9]


def test_a_process_that_cannot_be_read_is_not_passed_over_in_silence(tmp_path: Path) -> None:
    process(tmp_path, 2, "kthreadd")
    process(tmp_path, 9, "train", "/dev/nvidia-uvm", "/dev/nvidia0")

    def links(folder: Path) -> list[str]:
        if folder.name == "9":
            raise PermissionError
        return open_links(folder)

    assert openers((str(tmp_path),), links=links) == {"complete": False, "processes": []}


def test_a_process_with_more_files_than_are_read_is_not_passed_over_in_silence(tmp_path: Path) -> None:
    process(tmp_path, 2, "kthreadd")
    assert openers((str(tmp_path),), links=lambda _: ["/dev/null"] * (MAX_FILES - 1))["complete"] is True
    assert openers((str(tmp_path),), links=lambda _: ["/dev/null"] * MAX_FILES)["complete"] is False
