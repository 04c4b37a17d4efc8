"""How `kubectl dra drain` ends: exit status, JSON, and what it says about the state that it leaves."""

import argparse
import json

import pytest

from dra_driver.core.errors import ConfigurationError, DraError
from dra_driver.kubectl.commands import kubectl
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
    """Ctrl-C at any moment: what stays, how to go on, and how to go back."""
    status, out, err = ended(KeyboardInterrupt(), "text", capsys)
    assert (status, err) == (130, "kubectl dra drain: interrupted\n")
    assert "annotation gpu.dra-driver.io/drain=all of node gpu-a stays" in out
    assert "evicted pods stay evicted: team/web-1" in out
    assert "kubectl dra undrain gpu-a gives the GPUs back" in out


def test_a_failure_is_in_the_json_too(capsys: pytest.CaptureFixture[str]) -> None:
    """A script reads one document, whatever happened."""
    status, out, err = ended(DraError("2 devices are in use"), "json", capsys)
    document = json.loads(out)
    assert (status, document["kind"], document["result"]) == (1, "NodeDrain", "failed")
    assert document["message"] == "2 devices are in use"
    assert document["evicted"] == ["team/web-1"]
    assert "2 devices are in use" in err


def test_success_says_what_to_do_next(capsys: pytest.CaptureFixture[str]) -> None:
    """And nothing about a state that is left."""
    assert ended(None, "text", capsys) == (0, "next: reset it\n", "")


def test_wrong_usage_is_left_to_the_program() -> None:
    """It ends with status 2, as for every command."""
    with pytest.raises(ConfigurationError):
        finish(argparse.Namespace(output="text"), DrainReport(command="drain", node="n", driver="d"), _misuse)
    assert kubectl.main(["drain", "gpu-a", "--force"]) == 2


def _misuse() -> None:
    raise ConfigurationError("no such node")


@pytest.mark.parametrize(("text", "expected"), [("0", 0), ("90", 90), ("90s", 90), ("1.5m", 90), ("2h", 7200)])
def test_times(text: str, expected: float) -> None:
    """As people write them."""
    assert seconds(text) == expected


@pytest.mark.parametrize("text", ["", "m", "-1s", "8000000", "nan", "inf", "1d"])
def test_times_that_are_refused(text: str) -> None:
    """A week is the most."""
    with pytest.raises(ConfigurationError, match="--timeout"):
        seconds(text)
