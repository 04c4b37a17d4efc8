"""What each kind of failure of an NVML call becomes; the calls themselves are tested in tests/contract/hardware/gpu."""

from collections.abc import Callable

import pynvml
import pytest

from dra_driver.core.errors import DeviceLostError, DraError, DriverUnavailableError
from dra_driver.hardware.gpu.nvml import errors as nvml


def failing(error: Exception) -> Callable[[], int]:
    def nvmlDeviceGetName() -> int:  # noqa: N802 - the messages have the name of NVML's function
        raise error

    return nvmlDeviceGetName


@pytest.mark.parametrize("code", sorted(nvml.ABSENT))
def test_what_nvml_does_not_offer_is_absent_but_not_when_a_gpu_cannot_do_without_it(code: int) -> None:
    """A GPU without a name can be used, one without a UUID cannot."""
    assert nvml.optional(failing(pynvml.NVMLError(code))) is None
    with pytest.raises(DeviceLostError, match=rf"^nvmlDeviceGetName failed: .*\(NVML code {code}\)"):
        nvml.required(failing(pynvml.NVMLError(code)))


def test_a_library_that_has_only_an_older_form_of_a_call_does_not_offer_it() -> None:
    """pynvml raises an exception for it that is no NVMLError."""
    mismatch = pynvml.NVMLLibraryMismatchError("old")
    assert nvml.optional(failing(mismatch)) is None
    with pytest.raises(DeviceLostError, match="upgrade the driver"):
        nvml.required(failing(mismatch))


def test_an_answer_that_cannot_be_read_is_no_answer() -> None:
    """One board with a damaged name must not take the node's other GPUs with it."""
    garbage = UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid start byte")
    assert nvml.optional(failing(garbage)) is None
    with pytest.raises(DeviceLostError, match="its answer cannot be read"):
        nvml.required(failing(garbage))


@pytest.mark.parametrize("code", sorted(nvml.DRIVER_TROUBLE))
@pytest.mark.parametrize("ask", [nvml.optional, nvml.required, nvml.driver_call])
def test_errors_of_the_whole_driver_are_not_reported_for_one_gpu(code: int, ask: Callable[..., object]) -> None:
    """It is retried with a new session, and no GPU is withdrawn for it."""
    with pytest.raises(DriverUnavailableError) as caught:
        ask(failing(pynvml.NVMLError(code)))
    assert nvml.DRIVER_TROUBLE[code] in str(caught.value)
    assert isinstance(caught.value.__cause__, pynvml.NVMLError)


@pytest.mark.parametrize("code", [*range(1, 30), 999, 12345])
def test_every_code_of_nvml_becomes_none_or_an_error_of_this_project(code: int) -> None:
    """No pynvml exception leaves gpu/nvml: it is unhashable and cannot be compared."""
    answer: object
    try:
        answer = nvml.optional(failing(pynvml.NVMLError(code)))
    except DraError as error:
        answer = str(error)
    assert answer is None or f"(NVML code {code})" in str(answer)
