"""How `kubectl dra drain` ends: exit status, JSON, and what it says about the state that it leaves."""

import argparse
import json

import pytest

from dra_driver.core.errors import ConfigurationError, DraError
from dra_driver.kubectl.commands.drain import finish, seconds
from dra_driver.kubectl.drain import DrainReport


def ended(error: BaseException | None, output: str, capsys: pytest.CaptureFixture[str]) -> tuple[int, str, str]:
    report = DrainReport(command="drain", node="gpu-a", driver="gpu.nvidia.com")

    def work() -> None:
        report.annotation, report.evicted = "all", ["team/web-1"]
        if error is not None:
            raise error
        report.result, report.next_steps = "done", ("reset it",)

    status = finish(argparse.Namespace(output=output), report, work)
    printed = capsys.readouterr()
    return status, printed.out, printed.err


def test_an_interrupt_says_what_state_it_leaves(capsys: pytest.CaptureFixture[str]) -> None:
    status, out, err = ended(KeyboardInterrupt(), "text", capsys)
    assert (status, err) == (130, "kubectl dra drain: interrupted\n")
    assert "annotation gpu.dra-driver.io/drain=all of node gpu-a stays" in out
    assert "evicted pods stay evicted: team/web-1" in out
    assert "kubectl dra undrain gpu-a gives the GPUs back" in out


def test_a_failure_is_in_the_json_too(capsys: pytest.CaptureFixture[str]) -> None:
    status, out, err = ended(DraError("2 devices are in use"), "json", capsys)
    document = json.loads(out)
    assert (status, document["kind"], document["result"]) == (1, "NodeDrain", "failed")
    assert document["message"] == "2 devices are in use"
    assert document["evicted"] == ["team/web-1"]
    assert "2 devices are in use" in err


def test_success_says_what_to_do_next(capsys: pytest.CaptureFixture[str]) -> None:
    assert ended(None, "text", capsys) == (0, "next: reset it\n", "")


def test_wrong_usage_is_left_to_the_program(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ConfigurationError):
        ended(ConfigurationError("no such node"), "text", capsys)


def test_times_are_at_most_a_week() -> None:
    assert [seconds(text) for text in ("0", "90", "90s", "1.5m", "2h")] == [0, 90, 90, 90, 7200]
    for text in ("", "m", "-1s", "8000000", "nan", "inf", "1d"):
        with pytest.raises(ConfigurationError, match="--timeout"):
            seconds(text)
