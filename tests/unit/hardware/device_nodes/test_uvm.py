"""Loading nvidia-uvm."""

import pytest

from dra_driver.core.errors import DriverUnavailableError
from dra_driver.hardware.device_nodes.numbers import Majors
from dra_driver.hardware.device_nodes.tools import DriverTools, Outcome
from dra_driver.hardware.device_nodes.uvm import RETRY_S, UNLOADED_S, UvmModule

WITHOUT, WITH, NONE = Majors(nvidia=195), Majors(nvidia=195, uvm=510), Majors()


class Kernel(DriverTools):
    """A kernel in which a tool loads the module, if it can, and a clock."""

    def __init__(self, majors: Majors, *, can_load: bool = True) -> None:
        self.majors = majors
        self.can_load = can_load
        self.calls = 0
        self.now = 100.0
        self.may_load = True
        self.uvm = UvmModule(lambda: self.majors, self, may_load=lambda: self.may_load, clock=lambda: self.now)

    def load_uvm(self) -> Outcome:
        self.calls += 1
        if self.can_load:
            self.majors = WITH
        return Outcome(worked=self.can_load, said="nvidia-modprobe ended with status 1")


def test_it_is_loaded_when_the_driver_is_there_without_it() -> None:
    kernel = Kernel(WITHOUT)
    assert kernel.uvm.majors() == WITH
    assert (kernel.calls, kernel.uvm.problem) == (1, None)


@pytest.mark.parametrize("majors", [WITH, NONE])
def test_nothing_is_loaded_otherwise(majors: Majors) -> None:
    """Without the driver, loading it is the business of the system."""
    kernel = Kernel(majors)
    assert kernel.uvm.majors() == majors
    assert kernel.calls == 0


def test_a_module_that_cannot_be_loaded_is_an_error_with_a_next_step() -> None:
    """CUDA fails in every container without it, while nvidia-smi works."""
    kernel = Kernel(WITHOUT, can_load=False)
    with pytest.raises(DriverUnavailableError, match="ended with status 1; run `nvidia-modprobe -u -c0`"):
        kernel.uvm.majors()
    assert kernel.uvm.problem is not None


def test_failed_tries_are_half_a_minute_apart() -> None:
    """A tool that hangs must not hold up every prepare."""
    kernel = Kernel(WITHOUT, can_load=False)
    for _ in range(3):
        with pytest.raises(DriverUnavailableError, match="status 1"):
            kernel.uvm.majors()
    assert kernel.calls == 1
    kernel.now += RETRY_S
    with pytest.raises(DriverUnavailableError):
        kernel.uvm.majors()
    assert kernel.calls == 2


def test_a_module_that_another_program_loads_is_seen_at_once() -> None:
    kernel = Kernel(WITHOUT, can_load=False)
    with pytest.raises(DriverUnavailableError):
        kernel.uvm.majors()
    kernel.majors = WITH
    assert kernel.uvm.majors() == WITH
    assert kernel.uvm.problem is None


def test_a_module_that_was_unloaded_is_left_alone_for_a_minute() -> None:
    """An administrator unloads it before the driver; loading it again would keep the driver in use."""
    kernel = Kernel(WITH)
    kernel.uvm.majors()
    kernel.majors = WITHOUT
    for _ in range(2):
        with pytest.raises(DriverUnavailableError, match="unloaded a moment ago"):
            kernel.uvm.majors()
    assert kernel.calls == 0
    kernel.now += UNLOADED_S
    assert kernel.uvm.majors() == WITH


def test_a_new_driver_gets_it_at_once() -> None:
    """After an upgrade: both were unloaded, and only the driver is back."""
    kernel = Kernel(WITH)
    for majors in (WITH, WITHOUT, NONE, WITHOUT):
        kernel.majors = majors
        try:
            kernel.uvm.majors()
        except DriverUnavailableError:
            assert majors is WITHOUT
    assert kernel.uvm.last == WITH


def test_nothing_is_loaded_while_the_driver_is_being_replaced() -> None:
    kernel = Kernel(WITHOUT)
    kernel.may_load = False
    with pytest.raises(DriverUnavailableError):
        kernel.uvm.majors()
    assert kernel.calls == 0
    kernel.may_load = True
    assert kernel.uvm.majors() == WITH


def test_where_nothing_may_be_loaded_the_sentence_says_what_to_do() -> None:
    with pytest.raises(DriverUnavailableError, match="not nvidia-uvm, the module behind /dev/nvidia-uvm; run"):
        UvmModule(lambda: WITHOUT, None).majors()
