"""SM utilisation of GPU instances between two looks, by NVML's GPU performance monitoring (Hopper and newer, 525+).

nvml.h: nvmlGpmMigSampleGet fills a sample, nvmlGpmMetricsGet computes metrics from two of one instance that lie at
least 100 ms apart. Samples belong to the session and are freed before its end.
"""

import contextlib
import logging
import time
from collections.abc import Callable, Collection
from functools import partial
from typing import Any, Final

import pynvml

from dra_driver.hardware.gpu.nvml.errors import ABSENT, describe, optional

log = logging.getLogger(__name__)

LEAST_S: Final = 0.1
_SM_UTIL: Final = 2  # NVML_GPM_METRIC_SM_UTIL


class GpmMeter:
    """The instances of one GPU in one session. For one thread."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._is_supported: bool | None = None
        self._samples: dict[tuple[int, str], tuple[Any, float]] = {}  # and when it was taken

    def read(self, handle: Any, gi_id: int, uuid: str) -> int | None:
        """Percent since the last call for that instance; None at the first, and where nothing tells."""
        if not self._supports(handle):
            return None
        key = gi_id, uuid
        former = self._samples.get(key)
        if former is not None and self._clock() - former[1] < LEAST_S:
            return None
        sample = optional("nvmlGpmSampleAlloc", pynvml.nvmlGpmSampleAlloc)
        if sample is None:
            return None
        taken = partial(pynvml.nvmlGpmMigSampleGet, handle, gi_id, sample)
        if optional("nvmlGpmMigSampleGet", taken, _FAILS) is None:
            _free(sample)
            return None
        self._samples[key] = sample, self._clock()
        if former is None:
            return None
        try:
            return _sm_percent(former[0], sample)
        finally:
            _free(former[0])

    def keep(self, keys: Collection[tuple[int, str]]) -> None:
        """Free the samples of all other instances."""
        for key in self._samples.keys() - set(keys):
            _free(self._samples.pop(key)[0])

    def _supports(self, handle: Any) -> bool:
        if self._is_supported is None:
            ask = partial(pynvml.nvmlGpmQueryDeviceSupport, handle)
            answer = optional("nvmlGpmQueryDeviceSupport", ask, _FAILS)
            self._is_supported = answer is not None and bool(answer.isSupportedDevice)
        return self._is_supported


_FAILS: Final = ABSENT | {pynvml.NVML_ERROR_INVALID_ARGUMENT, pynvml.NVML_ERROR_NOT_FOUND, pynvml.NVML_ERROR_IN_USE}


def _sm_percent(earlier: Any, later: Any) -> int | None:
    question = pynvml.c_nvmlGpmMetricsGet_t()
    question.version, question.numMetrics = pynvml.NVML_GPM_METRICS_GET_VERSION, 1
    question.sample1, question.sample2 = earlier, later
    question.metrics[0].metricId = _SM_UTIL
    if optional("nvmlGpmMetricsGet", partial(pynvml.nvmlGpmMetricsGet, question), _FAILS) is None:
        return None
    metric = question.metrics[0]
    if metric.nvmlReturn != pynvml.NVML_SUCCESS or not 0 <= metric.value <= 100:
        return None
    return round(metric.value)


def _free(sample: Any) -> None:
    try:
        with contextlib.suppress(pynvml.NVMLLibraryMismatchError):
            pynvml.nvmlGpmSampleFree(sample)
    except pynvml.NVMLError as error:
        log.debug("a sample was not freed", extra={"reason": describe(error)})
