"""Gauges of free, fragmented and stranded capacity in the controller's registry. Their series appear with the first
survey and disappear when another replica leads; `capacity_document` bounds their number."""

from typing import Final, Literal, get_args

from prometheus_client import Counter, Gauge

from dra_driver.core.telemetry.controller_metrics import REGISTRY

SurveyResult = Literal["done", "failed"]
SURVEY_RESULTS: Final[tuple[SurveyResult, ...]] = get_args(SurveyResult)

gpus = Gauge(
    "dra_driver_capacity_gpus", "GPUs of all nodes by state (free, used, fragmented, unavailable)", ["model", "state"],
    registry=REGISTRY,
)  # fmt: skip
memory_bytes = Gauge(
    "dra_driver_capacity_memory_bytes",
    "Memory of all GPUs: free, the rest of fragmented GPUs, and taken",
    ["model", "state"],
    registry=REGISTRY,
)
fits = Gauge(
    "dra_driver_capacity_fits", "Claims for a request that could be allocated now", ["model", "request"],
    registry=REGISTRY,
)  # fmt: skip
stranded = Gauge(
    "dra_driver_capacity_stranded",
    "Claims for a request that fail only because free capacity is fragmented",
    ["model", "request"],
    registry=REGISTRY,
)
survey_timestamp = Gauge(
    "dra_driver_capacity_survey_timestamp_seconds",
    "When the numbers were found, in seconds since 1970; 0 while there are none",
    registry=REGISTRY,
)
surveys_total = Counter(
    "dra_driver_capacity_surveys", "Surveys of the cluster, by result", ["result"], registry=REGISTRY
)


def initialise() -> None:
    """Creates the series that exist without a survey, at zero."""
    for result in SURVEY_RESULTS:
        surveys_total.labels(result)
