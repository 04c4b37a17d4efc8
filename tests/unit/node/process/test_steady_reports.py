"""Sentences about devices that change at every look."""

from msgspec.structs import replace

from dra_driver.core.model.ids import DeviceName, PoolName
from dra_driver.node.process.health_report import DeviceReport, DeviceState
from dra_driver.node.process.steady_reports import STEADY_S, SteadyReports

SICK = DeviceReport(
    pool=PoolName("node-a/gpu.nvidia.com"), device=DeviceName("gpu-0"), state=DeviceState.UNHEALTHY, message="0 failed"
)
OTHER = replace(SICK, device=DeviceName("gpu-1"))
LOOK_S = 10.0


class Clock:
    """Stands still."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def test_a_sentence_that_changes_at_every_look_is_told_once_a_minute() -> None:
    """Each new one is a write to every pod that has the device, and to its claim."""
    clock = Clock()
    steady = SteadyReports(clock)
    told = []
    for look in range(61):
        (report,) = steady.of([replace(SICK, message=f"{look} failed")])
        told.append(report.message)
        clock.now += LOOK_S
    assert list(dict.fromkeys(told)) == [f"{look} failed" for look in range(0, 61, int(STEADY_S / LOOK_S))]


def test_a_new_state_is_told_at_once() -> None:
    """And with its own sentence."""
    steady = SteadyReports(Clock())
    steady.of([SICK])
    for state, message in ((DeviceState.HEALTHY, ""), (DeviceState.UNHEALTHY, "lost"), (DeviceState.UNKNOWN, "late")):
        report = replace(SICK, state=state, message=message)
        assert steady.of([report]) == (report,)


def test_the_last_sentence_is_told_in_the_end() -> None:
    """It may be that recovery was seen."""
    clock = Clock()
    steady = SteadyReports(clock)
    steady.of([SICK])
    last = replace(SICK, message="Recovery was seen")
    assert steady.of([last]) == (SICK,)
    clock.now += STEADY_S
    assert steady.of([last]) == (last,)


def test_devices_do_not_delay_each_other_and_those_that_are_gone_are_forgotten() -> None:
    """A device that comes back has a sentence of its own."""
    steady = SteadyReports(Clock())
    steady.of([SICK])
    assert steady.of([replace(OTHER, message="new")]) == (replace(OTHER, message="new"),)
    again = replace(SICK, message="again")
    assert steady.of([again]) == (again,)
