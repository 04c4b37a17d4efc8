"""Tables of `kubectl get`."""

from datetime import UTC, datetime, timedelta

import pytest

from dra_driver.core.time import rfc3339
from dra_driver.sim.apiserver.kinds import JOBS, PODS
from dra_driver.sim.apiserver.printers import duration
from dra_driver.sim.apiserver.verbs import table
from tests.unit.sim_apiserver.builders import Obj

NOW = datetime(2026, 1, 2, tzinfo=UTC)


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [
        (-5, "<invalid>"), (0, "0s"), (119, "119s"), (120, "2m"), (200, "3m20s"), (601, "10m"), (10800, "3h"),
        (11000, "3h3m"), (86400, "24h"), (86400 * 3 + 3600, "3d1h"), (86400 * 30, "30d"), (86400 * 800, "2y70d"),
        (86400 * 365 * 9, "9y"),
    ],
)  # fmt: skip
def test_durations_have_two_units_at_most(seconds: int, shown: str) -> None:
    assert duration(seconds) == shown


def _cells(kind: object, obj: Obj) -> list[object]:
    metadata = {"name": "x", "creationTimestamp": rfc3339(NOW - timedelta(seconds=90))} | obj.pop("metadata", {})
    made = table(kind, [obj | {"metadata": metadata}], {}, NOW)  # type: ignore[arg-type]
    cells: list[object] = made["rows"][0]["cells"]
    return cells


def _pod(status: Obj, **metadata: str) -> list[object]:
    spec = {"containers": [{"name": "a"}, {"name": "b"}], "initContainers": [{"name": "i"}]}
    return _cells(PODS, {"metadata": metadata, "spec": spec, "status": status})[1:4]


RUNNING = {"name": "a", "ready": True, "restartCount": 0, "state": {"running": {}}}


@pytest.mark.parametrize(
    ("status", "cells"),
    [
        ({"phase": "Pending"}, ["0/2", "Pending", "0"]),
        ({"phase": "Failed", "reason": "Evicted"}, ["0/2", "Evicted", "0"]),
        (
            {"phase": "Pending", "conditions": [{"type": "PodScheduled", "reason": "SchedulingGated"}]},
            ["0/2", "SchedulingGated", "0"],
        ),
        ({"phase": "Pending", "initContainerStatuses": [{"state": {"running": {}}}]}, ["0/2", "Init:0/1", "0"]),
        (
            {"phase": "Pending", "initContainerStatuses": [{"state": {"waiting": {"reason": "ErrImagePull"}}}]},
            ["0/2", "Init:ErrImagePull", "0"],
        ),
        (
            {"phase": "Pending", "initContainerStatuses": [{"state": {"terminated": {"exitCode": 3}}}]},
            ["0/2", "Init:ExitCode:3", "0"],
        ),
        ({"phase": "Running", "containerStatuses": [RUNNING, RUNNING]}, ["2/2", "Running", "0"]),
        (
            {
                "phase": "Running",
                "containerStatuses": [
                    RUNNING,
                    {
                        "state": {"waiting": {"reason": "CrashLoopBackOff"}},
                        "restartCount": 3,
                        "lastState": {"terminated": {"finishedAt": "2026-01-01T23:59:00Z"}},
                    },
                ],
            },
            ["1/2", "CrashLoopBackOff", "3 (60s ago)"],
        ),
        (
            {
                "phase": "Succeeded",
                "containerStatuses": [{"state": {"terminated": {"reason": "Completed", "exitCode": 0}}}],
            },
            ["0/2", "Completed", "0"],
        ),
        (
            {
                "phase": "Running",
                "containerStatuses": [RUNNING, {"state": {"terminated": {"reason": "Completed", "exitCode": 0}}}],
            },
            ["1/2", "NotReady", "0"],
        ),
        (
            {"phase": "Failed", "containerStatuses": [{"state": {"terminated": {"signal": 9, "exitCode": 137}}}]},
            ["0/2", "Signal:9", "0"],
        ),
    ],
)
def test_pods_show_ready_status_and_restarts(status: Obj, cells: list[str]) -> None:
    assert _pod(status) == cells


def test_a_deleted_pod_is_terminating_unless_it_has_finished() -> None:
    assert _pod({"phase": "Running", "containerStatuses": [RUNNING]}, deletionTimestamp="x")[1] == "Terminating"
    assert _pod({"phase": "Succeeded"}, deletionTimestamp="x")[1] == "Succeeded"


def test_jobs_count_completions() -> None:
    status = {
        "succeeded": 1,
        "startTime": "2026-01-01T23:59:00Z",
        "conditions": [{"type": "Complete", "status": "True"}],
    }
    done = _cells(JOBS, {"spec": {"completions": 1}, "status": status | {"completionTime": "2026-01-01T23:59:30Z"}})
    assert done[1:4] == ["Complete", "1/1", "30s"]
    running = _cells(JOBS, {"spec": {"parallelism": 3}, "status": {"startTime": "2026-01-01T23:59:00Z"}})
    assert running[1:4] == ["Running", "0/1 of 3", "60s"]
